"""Statistics of series over time: trends and intervals over prompts. Plain numpy.

Prompts are the independent samples, frames are not: a frame looks like the one before. Therefore a trend is fitted to
every prompt's own series, and its interval is taken over prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
_Z = 1.959963984540054  # normal quantile of 0.975


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its interval of :data:`LEVEL`."""

    value: float
    low: float
    high: float

    @property
    def direction(self) -> int:
        """1 if all of it is above 0, -1 if all of it is below, else 0."""
        return int(self.low > 0) - int(self.high < 0)


class Bootstrap:
    """Percentile intervals over ``count`` prompts, all from the same resampled prompts.

    Every quantity of one study with the same seed is resampled alike, so that intervals of differences are paired.
    """

    def __init__(self, count: int, seed: int, resamples: int = RESAMPLES):
        self.seed = seed
        self.picks = np.random.default_rng(seed).integers(0, count, (resamples, count))

    def mean(self, values: np.ndarray) -> Interval:
        """Mean of one value a prompt, ``[prompts]``."""
        return self.of(values, lambda chosen: chosen.mean(axis=-1))

    def of(self, values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
        """A ``statistic`` that maps ``[..., prompts]`` to ``[...]``, of ``values`` ``[prompts]``."""
        low, high = np.quantile(statistic(values[self.picks]), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Interval(float(statistic(values)), float(low), float(high))


def wilson(successes: int, count: int) -> Interval:
    """Wilson score interval of a share."""
    share, square = successes / count, _Z ** 2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count ** 2)) / (1 + square / count)
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def slopes(series: np.ndarray) -> np.ndarray:
    """Least-squares slope per frame ``[...]`` of ``series`` ``[..., T]``."""
    time = np.arange(series.shape[-1]) - (series.shape[-1] - 1) / 2
    return series @ time / (time @ time)


def spearman(series: np.ndarray) -> np.ndarray:
    """Rank correlation with time ``[n]`` of ``series`` ``[n, T]``; ties share their mean rank, a constant has 0."""
    ranks = np.stack([mean_ranks(row) for row in series])
    ranks -= ranks.mean(axis=1, keepdims=True)
    time = np.arange(series.shape[1]) - (series.shape[1] - 1) / 2
    spread = np.sqrt((ranks ** 2).sum(axis=1) * (time @ time))
    return np.divide(ranks @ time, spread, out=np.zeros(len(series)), where=spread > 0)


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, float64 ``[n]``, of ``values`` ``[n]``; equal ones share their mean rank."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1.0
    return (last - (counts - 1) / 2)[group]


@dataclass(frozen=True)
class MannKendall:
    """Mann-Kendall test of one series: ``tau`` (1: every later value is higher), two-sided ``p``.

    ``p`` takes the values as independent. Successive frames are not, so it is too small: told, not judged by.
    """

    tau: float
    p: float

    @classmethod
    def of(cls, series: np.ndarray) -> MannKendall:
        """Test ``series`` ``[T]``, normal approximation with correction for ties."""
        count = len(series)
        signs = np.sign(series[None, :] - series[:, None])
        score = np.triu(signs, 1).sum()
        _, ties = np.unique(series, return_counts=True)
        variance = (count * (count - 1) * (2 * count + 5) - (ties * (ties - 1) * (2 * ties + 5)).sum()) / 18
        z = (score - np.sign(score)) / math.sqrt(variance) if variance > 0 else 0.0
        return cls(tau=float(2 * score / (count * (count - 1))), p=math.erfc(abs(z) / math.sqrt(2)))


@dataclass(frozen=True)
class Trend:
    """How a series of every prompt goes over frames.

    Parameters
    ----------
    first_frame, frames : :class:`int`
        What was looked at.
    slope : Interval
        Mean slope per frame.
    spearman : Interval
        Mean rank correlation with time.
    kendall : MannKendall
        Of the mean series over prompts.
    ends : :class:`int`
        Frames at either end that ``start`` and ``end`` are means of.
    start, end, change : Interval
        Means at the beginning and at the end, and their difference, paired by prompt.
    """

    first_frame: int
    frames: int
    slope: Interval
    spearman: Interval
    kendall: MannKendall
    ends: int
    start: Interval
    end: Interval
    change: Interval

    @classmethod
    def of(cls, series: np.ndarray, first_frame: int, bootstrap: Bootstrap) -> Trend:
        """Trend of ``series`` ``[prompts, T]`` from ``first_frame`` on; the ends are 8 frames, or half of fewer."""
        seen = series[:, first_frame:]
        ends = min(8, seen.shape[1] // 2)
        start, end = seen[:, :ends].mean(axis=1), seen[:, -ends:].mean(axis=1)
        return cls(first_frame=first_frame, frames=seen.shape[1], slope=bootstrap.mean(slopes(seen)),
                   spearman=bootstrap.mean(spearman(seen)), kendall=MannKendall.of(seen.mean(axis=0)), ends=ends,
                   start=bootstrap.mean(start), end=bootstrap.mean(end), change=bootstrap.mean(end - start))

    @property
    def direction(self) -> int:
        """1 if the slope and the change are above 0 with their whole intervals, -1 if below, else 0."""
        return self.slope.direction if self.slope.direction == self.change.direction else 0

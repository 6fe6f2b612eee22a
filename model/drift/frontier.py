"""Comparison of gates at equal replay ratio: along the line through each gate's runs, dense included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from model.drift.results import Result
from model.drift.trend import LEVEL, Bootstrap, Interval


@dataclass(frozen=True)
class Point:
    """What a gate gives at a replay ratio, over the first ``frames`` frames.

    ``value`` of ``measure`` (``ok`` or ``motion_kept``), ``difference`` to the first gate at the same ratio, None for
    that itself or where it does not reach the ratio.
    """

    gate: str
    frames: int
    ratio: float
    measure: str
    value: Interval
    difference: Interval | None


def frontier(dense: Result, gates: Sequence[Sequence[Result]], ratios: Sequence[float], lengths: Sequence[int],
             bootstrap: Bootstrap) -> list[Point]:
    """Interpolated points of all ``gates``, each the runs of one gate with the model's own window.

    A ratio that a gate does not reach has no point: nothing is extrapolated.
    """
    points = []
    for length in lengths:
        for measure in ("ok", "motion_kept"):
            curves = [_samples(measure, length, [dense, *runs], ratios, bootstrap) for runs in gates]
            for runs, (values, samples) in zip(gates, curves):
                for place, ratio in enumerate(ratios):
                    if np.isnan(values[place]):
                        continue
                    difference = values[place] - curves[0][0][place]
                    points.append(Point(
                        gate=runs[0].run.gate, frames=length, ratio=ratio, measure=measure,
                        value=_interval(values[place], samples[:, place]),
                        difference=None if runs is gates[0] or np.isnan(difference) else
                        _interval(difference, samples[:, place] - curves[0][1][:, place])))
    return points


def _samples(measure: str, length: int, runs: Sequence[Result], ratios: Sequence[float],
             bootstrap: Bootstrap) -> tuple[np.ndarray, np.ndarray]:
    """The measure at ``ratios``: of all prompts ``[ratios]``, and of every resample ``[resamples, ratios]``."""
    reached = np.stack([run.eligible_ratio(length) for run in runs])
    found = np.stack([run.checked(measure, (0, length - 1)) for run in runs])

    def line(picks: np.ndarray) -> np.ndarray:
        x, y = reached[:, picks].mean(axis=1), found[:, picks].mean(axis=1)
        order = np.argsort(x)
        return np.interp(ratios, x[order], y[order], right=np.nan)

    return line(np.arange(runs[0].prompts)), np.stack([line(picks) for picks in bootstrap.picks])


def _interval(value: float, samples: np.ndarray) -> Interval:
    # A resample whose line ends short of the ratio says nothing about it.
    low, high = np.nanquantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(value), float(low), float(high))

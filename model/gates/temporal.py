"""The temporal attention score and its gates, in the board's fixed-point arithmetic.

Source: FastCar (arXiv:2505.14709), eq. 5 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.config import RunSizes
from model.gates.decision import Rows, Rule, Step
from model.gates.threshold import ThresholdGate

VARIANTS = ("paper", "released", "cosine")
"""Definitions of the temporal attention score, see :func:`temporal_scores`."""
SCORE_FRACTION_BITS = 16
"""A fixed-point score or threshold is worth 2**-16 per LSB."""


def temporal_scores(variant: str, raw_query: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Temporal attention scores ``[rows, heads]`` of a token and its aligned predecessor.

    ``paper`` is FastCar's eq. 5: q.k / sqrt(d), query and key after RoPE. ``released`` is what the authors' code
    computes: the same with the query before RoPE. ``cosine`` is q.k / (|q| |k|), both after RoPE.

    Parameters
    ----------
    raw_query, query : ``[rows, heads, head_dim]``
        The token's query before and after RoPE.
    key : ``[rows, heads, head_dim]``
        Cached key of the aligned token, after RoPE.
    """
    if variant == "cosine":
        return functional.cosine_similarity(query, key, dim=-1)
    return ((raw_query if variant == "released" else query) * key).sum(dim=-1) / math.sqrt(key.shape[-1])


def tas_fixed(scores: np.ndarray) -> np.ndarray:
    """Scores as the board takes them: int32 with 16 fraction bits, ties to even, saturating, same shape.

    A NaN becomes the lowest score: it never speaks for a replay.
    """
    scaled = np.rint(np.asarray(scores, dtype=np.float64) * (1 << SCORE_FRACTION_BITS))
    lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    return np.clip(np.where(np.isnan(scaled), lowest, scaled), lowest, highest).astype(np.int32)


def tas_threshold(threshold: float, heads: int) -> int:
    """``heads * threshold`` in units of a fixed-point score, saturating at 64 bits (so infinities work).

    A row replays if the sum of its fixed-point scores is at least this. Raises ValueError for NaN.
    """
    if np.isnan(threshold):
        raise ValueError("the threshold is NaN; give a number, or an infinity for always (-inf) or never (inf)")
    scaled = np.rint(np.float64(threshold) * heads * (1 << SCORE_FRACTION_BITS))
    lowest, highest = -(1 << 63), (1 << 63) - 1
    return int(scaled) if lowest < scaled < highest else (highest if scaled > 0 else lowest)


def tas_replays(scores: np.ndarray, threshold: float) -> np.ndarray:
    """Rows, bool ``[rows]``, that replay by the board's arithmetic on float ``scores`` ``[rows, heads]``."""
    return tas_fixed(scores).sum(axis=1, dtype=np.int64) >= tas_threshold(threshold, scores.shape[1])


class TasGate(ThresholdGate):
    """Temporal attention score (FastCar eq. 5 and 8): replay if its mean over heads is at least tau.

    Parameters
    ----------
    thresholds : :class:`float`, or one per layer
        tau; infinities mean never (+) and always (-).
    joint_pairs, max_age : see :class:`~model.gates.threshold.ThresholdGate`
    variant : one of :data:`VARIANTS`
        Definition of the score, see :func:`temporal_scores`. ``released`` also compares as the authors' code does:
        strictly greater, in the model's precision; a board is then told the rows.
    thresholds_for : :class:`str` or None
        Variant that the thresholds were calibrated for; None is ``variant``.
    heads : bool ``[layers, heads]`` or None
        Heads that count, at least one in each layer; None is all of them, as in the paper.
    """

    name = "tas"
    needs_scores = True
    high_replays = True
    never = math.inf

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *, variant: str = "paper",
                 thresholds_for: str | None = None, heads: np.ndarray | None = None, max_age: int = 0):
        super().__init__(thresholds, joint_pairs, max_age=max_age)
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
        if thresholds_for not in (None, variant):
            raise ValueError(f"the thresholds were calibrated for {thresholds_for!r}, not for {variant!r}; calibrate "
                             f"again, or set thresholds_for={variant!r} to use them all the same")
        if heads is not None and not heads.any(axis=1).all():
            raise ValueError("every layer needs at least one head that counts")
        self.variant = variant
        self._heads = heads
        # No score reaches infinity: where every threshold is that, none is computed, and replay costs nothing.
        self.needs_scores = not bool(np.isposinf(np.asarray(thresholds, dtype=float)).all())

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        if self._heads is not None and len(self._heads) != config.layers:
            raise ValueError(f"heads are given for {len(self._heads)} layers, the model has {config.layers}")

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None
                  ) -> Tensor:
        """What is compared: mean score per row. High replays."""
        return self._counted(layer, scores).mean(dim=1)

    def replays(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None) -> Tensor:
        if not self.needs_scores:
            return ~self.all_rows
        counted, threshold = self._counted(layer, scores), self.per_layer[layer]
        if self.variant == "released":
            return counted.mean(dim=1) > threshold
        return torch.from_numpy(tas_replays(counted.float().cpu().numpy(), threshold))

    def rule(self, layer: int, scores: Tensor | None) -> Rule | None:
        if self.variant == "released" or not self.needs_scores:
            return None
        if scores is None:  # frame 0
            return Rule()
        fixed = tas_fixed(scores.float().cpu().numpy())
        count = scores.shape[1]
        if self._heads is not None:
            fixed, count = fixed * self._heads[layer], int(self._heads[layer].sum())
        return Rule(tas_scores=fixed, tas_threshold=tas_threshold(self.per_layer[layer], count))

    def _counted(self, layer: int, scores: Tensor | None) -> Tensor:
        if scores is None:
            raise ValueError("the tas gate needs scores in eligible steps")
        return scores if self._heads is None else scores[:, torch.from_numpy(self._heads[layer])]

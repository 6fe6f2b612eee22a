"""Replay gates: which rows compute a layer's MLP in a step, and which replay its output of one frame earlier.

A gate sees every layer of every step. It answers with a :class:`Decision`: either a mask, or the raw temporal
attention scores, so that the engine (a board, say) decides by itself. Frame 0 never replays.

Source: FastCar (arXiv:2505.14709), eq. 5 and 8; the change gate is this project's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.config import RunSizes
from model.frames import FrameLayout

VARIANTS = ("paper", "released", "cosine")
"""Definitions of the temporal attention score, see :func:`temporal_scores`."""
SCORE_FRACTION_BITS = 16
"""A fixed-point score or threshold is worth 2**-16 per LSB."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of one generation: video i is row i; under guidance its unconditional twin is row ``len(seeds) + i``."""

    seeds: tuple[int, ...]
    guided: bool

    @property
    def videos(self) -> int:
        """Videos that are generated together."""
        return len(self.seeds)

    @property
    def count(self) -> int:
        """Rows of the batch."""
        return self.videos * (1 + self.guided)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One visual step: ``number`` counts from 0, ``index`` is its place in frame ``frame``."""

    number: int
    frame: int
    index: int

    @classmethod
    def at(cls, number: int, layout: FrameLayout) -> Step:
        """Visual step ``number`` of ``layout``."""
        return cls(number=number, frame=layout.frame(number), index=layout.index(number))

    @property
    def eligible(self) -> bool:
        """Whether there is a frame before, so that rows may replay."""
        return self.frame > 0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a gate says about one layer and step.

    Parameters
    ----------
    source : ``"mask"`` or ``"tas"``
        Whether ``compute`` says it, or the engine compares ``scores`` with ``threshold``.
    eligible : :class:`bool`
        False in frame 0: every row computes, whatever the rest says.
    compute : bool ``[rows]``
        Rows that compute, for ``"mask"``.
    scores : float32 ``[rows, heads]``
        Raw logits q.k / sqrt(d) per head, for ``"tas"``: a row replays if their mean is at least ``threshold``.
    """

    source: str
    eligible: bool
    compute: Tensor | None = None
    scores: Tensor | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.source not in ("mask", "tas"):
            raise ValueError(f"source must be 'mask' or 'tas', not {self.source!r}")
        if self.source == "mask" and self.compute is None:
            raise ValueError("a mask decision needs compute")
        if self.source == "tas" and self.eligible and (self.scores is None or self.threshold is None):
            raise ValueError("a tas decision needs scores and threshold unless it is not eligible")

    @property
    def comparison(self) -> tuple[Tensor, float]:
        """``scores`` and ``threshold`` of an eligible tas decision. Raises ValueError for any other."""
        if self.scores is None or self.threshold is None:
            raise ValueError(f"a {self.source!r} decision without scores compares nothing")
        return self.scores, self.threshold


class Gate(Protocol):
    """Decides layer by layer. One object serves one generation at a time."""

    name: str
    needs_scores: bool

    def begin(self, config: RunSizes, rows: Rows) -> None:
        """A new generation: forget everything."""

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        """The decision on MLP inputs ``x`` ``[rows, hidden]``.

        ``scores`` float32 ``[rows, heads]`` are there in eligible steps if ``needs_scores``.
        """

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        """Learn which rows, bool ``[rows]``, computed."""


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


class DenseGate:
    """Everything computes."""

    name = "dense"
    needs_scores = False

    def begin(self, config: RunSizes, rows: Rows) -> None:
        self._all = torch.ones(rows.count, dtype=torch.bool)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        return Decision(source="mask", eligible=step.eligible, compute=self._all)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        pass


class _PairedGate:
    """What the replaying gates share: their thresholds per layer, and joint decisions of guidance pairs."""

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool):
        self.thresholds = thresholds
        self.joint_pairs = joint_pairs
        values = np.atleast_1d(np.asarray(thresholds, dtype=float))
        if values.ndim != 1 or np.isnan(values).any():
            raise ValueError(f"a threshold must be a number, or one number per layer, not {thresholds!r}")

    def begin(self, config: RunSizes, rows: Rows) -> None:
        values = np.atleast_1d(np.asarray(self.thresholds, dtype=float)).tolist()
        if len(values) not in (1, config.layers):
            raise ValueError(f"{len(values)} thresholds for {config.layers} layers; give one, or one per layer")
        self._per_layer = values if len(values) == config.layers else values * config.layers
        self._all = torch.ones(rows.count, dtype=torch.bool)
        self._pairs = rows.videos if self.joint_pairs and rows.guided else 0

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        pass

    def _mask(self, replay: Tensor) -> Decision:
        if self._pairs:
            replay = (replay[:self._pairs] & replay[self._pairs:]).repeat(2)
        return Decision(source="mask", eligible=True, compute=~replay)

    def _first_frame(self) -> Decision:
        return Decision(source="mask", eligible=False, compute=self._all)


class TasGate(_PairedGate):
    """Temporal attention score (FastCar eq. 5 and 8): replay if its mean over heads is at least tau.

    Parameters
    ----------
    thresholds : :class:`float`, or one per layer
        tau; infinities mean never (+) and always (-).
    joint_pairs : :class:`bool`
        A guidance pair replays only if both rows would. The gate then decides by itself, by the board's arithmetic.
    variant : one of :data:`VARIANTS`
        Definition of the score, see :func:`temporal_scores`. ``released`` also compares as the authors' code does:
        strictly greater, in the model's precision; the gate then always decides by itself.
    thresholds_for : :class:`str` or None
        Variant that the thresholds were calibrated for; None is ``variant``.
    """

    name = "tas"
    needs_scores = True

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *, variant: str = "paper",
                 thresholds_for: str | None = None):
        super().__init__(thresholds, joint_pairs)
        if variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
        if thresholds_for not in (None, variant):
            raise ValueError(f"the thresholds were calibrated for {thresholds_for!r}, not for {variant!r}; calibrate "
                             f"again, or set thresholds_for={variant!r} to use them all the same")
        self.variant = variant
        # No score reaches infinity: where every threshold is that, none is computed, and replay costs nothing.
        self.needs_scores = not bool(np.isposinf(np.asarray(thresholds, dtype=float)).all())

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Tensor:
        """What is compared: mean score per row. High replays."""
        if scores is None:
            raise ValueError("the tas gate needs scores in eligible steps")
        return scores.mean(dim=1)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        if not step.eligible:
            return self._first_frame()
        if not self.needs_scores:
            return self._mask(~self._all)
        threshold = self._per_layer[layer]
        if scores is None:
            raise ValueError("the tas gate needs scores in eligible steps")
        if self.variant == "released":
            return self._mask((scores.mean(dim=1) > threshold).cpu())
        if self._pairs:
            return self._mask(torch.from_numpy(tas_replays(scores.float().cpu().numpy(), threshold)))
        return Decision(source="tas", eligible=True, scores=scores, threshold=threshold)


class ChangeGate(_PairedGate):
    """Replay while the MLP input x has hardly moved: ``|x - x_ref| / |x| <= theta``.

    ``x_ref`` is the input of the row, layer and index when the cached value was computed; memory is one frame of
    inputs, ``[layers, stride, rows, hidden]`` in their precision.

    Parameters
    ----------
    thresholds : :class:`float`, or one per layer
        theta, relative Euclidean change; below 0 nothing replays.
    joint_pairs : :class:`bool`
        A guidance pair replays only if both rows would.
    """

    name = "change"
    needs_scores = False

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False):
        super().__init__(thresholds, joint_pairs)

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        self._shape = (config.layers, config.layout.stride, rows.count, config.hidden)
        self._reference: Tensor | None = None

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Tensor:
        """What is compared: relative change per row. Low replays."""
        if self._reference is None:
            raise ValueError("the change gate has no reference input before frame 0 is done")
        return (x - self._reference[layer, step.index]).norm(dim=1) / x.norm(dim=1)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        if not step.eligible:
            return self._first_frame()
        return self._mask((self.statistic(layer, step, x, scores) <= self._per_layer[layer]).cpu())

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        if self._reference is None:
            self._reference = x.new_zeros(self._shape)
        self._reference[layer, step.index, computed] = x[computed]


THRESHOLD_GATES: dict[str, type[TasGate] | type[ChangeGate]] = {"tas": TasGate, "change": ChangeGate}
"""Gates with a threshold that is calibrated, by name."""


class RandomGate(_PairedGate):
    """Control: each row, layer and eligible step replays with probability ``ratio``, whatever it holds.

    A row's draws depend on ``seed`` and on the seed of its video, not on its neighbours.
    """

    name = "random"
    needs_scores = False

    def __init__(self, ratio: float, seed: int = 0, joint_pairs: bool = False):
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio must be in 0..1, not {ratio!r}")
        super().__init__(ratio, joint_pairs)
        self.ratio, self.seed = ratio, seed

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        self._shape = (config.layout.stride, config.layers)
        self._generators = [np.random.default_rng([self.seed, number, twin])
                            for twin in range(1 + rows.guided) for number in rows.seeds]
        self._frame = 0

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        if not step.eligible:
            return self._first_frame()
        if step.frame != self._frame:
            self._frame = step.frame
            draws = np.stack([generator.random(self._shape) for generator in self._generators], axis=-1)
            self._replay = torch.from_numpy(draws < self.ratio)
        return self._mask(self._replay[step.index, layer])

"""What replay did: counts per frame, layer and branch, ages of replayed values, quantiles of what was compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

QUANTILES = (0.05, 0.2, 0.5, 0.8, 0.95)
"""Levels that are shown."""
SAMPLES = 4096
"""Statistics kept per layer for quantiles, a uniform sample of all."""
SEQUENCES = 64
"""Sequences of which a ratio of their own is kept, the latest."""


class Sample:
    """Uniform sample of a stream of numbers, with its exact count and extremes."""

    def __init__(self, seed: int):
        self.count = 0
        self.least, self.most = np.inf, -np.inf
        self._values = np.empty(SAMPLES, dtype=np.float32)
        self._rng = np.random.default_rng(seed)

    def add(self, values: np.ndarray) -> None:
        """Take in ``values`` ``[n]``."""
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))
        for value in values:
            slot = self.count if self.count < SAMPLES else int(self._rng.integers(self.count + 1))
            if slot < SAMPLES:
                self._values[slot] = value
            self.count += 1

    @property
    def values(self) -> np.ndarray:
        """The sample, float32; the first :data:`SAMPLES` in order of arrival, later ones anywhere."""
        return self._values[:min(self.count, SAMPLES)]


@dataclass(kw_only=True)
class SequenceCounts:
    """Row steps of one sequence: all, those that could have replayed, those that did."""

    row_steps: int = 0
    eligible: int = 0
    replayed: int = 0


@dataclass(kw_only=True)
class FrameCounts:
    """Row steps of one frame, each int64 ``[layers, branches]``; ages are in frames, at least 1."""

    row_steps: np.ndarray
    eligible: np.ndarray
    replayed: np.ndarray
    age_sum: np.ndarray
    age_max: np.ndarray


@dataclass(kw_only=True)
class ReplayStatistics:
    """Everything since replay was enabled.

    A *row step* is one row of one layer in one single-token visual step; a layer step is that of all rows together.

    Parameters
    ----------
    layers : tuple of :class:`int`
        Layers that take part; arrays are in this order.
    branches : :class:`int`
        2 under guidance (conditional first), else 1.
    """

    layers: tuple[int, ...]
    branches: int
    mlp_calls: int = 0
    """Layer steps whose MLP was evaluated."""
    mlp_skips: int = 0
    """Layer steps in which every row replayed."""
    rows_computed: int = 0
    """Rows that were evaluated and used, over all layer steps."""
    frames: list[FrameCounts] = field(default_factory=list)
    sequences: deque[SequenceCounts] = field(default_factory=lambda: deque(maxlen=SEQUENCES))
    sequence_count: int = 0
    samples: list[Sample] = field(init=False)
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """Replay memory held now, by kind of tensor."""
    peak_memory_bytes: int = 0

    def __post_init__(self) -> None:
        self.samples = [Sample(layer) for layer in self.layers]

    def begin(self) -> SequenceCounts:
        """Counters of a new sequence."""
        self.sequences.append(SequenceCounts())
        self.sequence_count += 1
        return self.sequences[-1]

    def add(self, place: int, frame: int, counts: SequenceCounts, eligible: bool, replay: np.ndarray,
            ages: np.ndarray) -> None:
        """Count layer ``self.layers[place]`` of one step: bool ``replay`` and the new ``ages``, each ``[rows]``."""
        while len(self.frames) <= frame:
            shape = (len(self.layers), self.branches)
            self.frames.append(FrameCounts(**{name: np.zeros(shape, dtype=np.int64)
                                              for name in FrameCounts.__dataclass_fields__}))
        there = self.frames[frame]
        rows, replayed = len(replay), int(replay.sum())
        for branch, part in enumerate(np.split(np.arange(rows), self.branches)):
            there.row_steps[place, branch] += len(part)
            there.eligible[place, branch] += eligible * len(part)
            if replayed:
                there.replayed[place, branch] += replay[part].sum()
                there.age_sum[place, branch] += ages[part][replay[part]].sum()
                there.age_max[place, branch] = max(there.age_max[place, branch], ages[part].max())
        counts.row_steps += rows
        counts.eligible += eligible * rows
        counts.replayed += replayed
        self.rows_computed += rows - replayed
        self.mlp_skips += replayed == rows
        self.mlp_calls += replayed < rows

    def total(self, name: str, axes: Sequence[int] = (0, 1, 2)) -> np.ndarray:
        """``name`` of :class:`FrameCounts`, ``[frames, layers, branches]``, summed over ``axes``."""
        shape = (0, len(self.layers), self.branches)
        stacked = np.stack([getattr(frame, name) for frame in self.frames]) if self.frames else np.zeros(shape, int)
        return stacked.sum(axis=tuple(axes))

    def ratio(self, of: str = "eligible", axes: Sequence[int] = (0, 1, 2)) -> np.ndarray:
        """Replayed share of the ``eligible`` or of all ``row_steps``, summed over ``axes``; 0 of nothing is 0."""
        return self.total("replayed", axes) / np.maximum(self.total(of, axes), 1)

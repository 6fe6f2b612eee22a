"""What a gate says, and what it is asked: the types that gates, engines and boards share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from model.config import RunSizes
from model.frames import FrameLayout


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
class Rule:
    """A decision as a board makes it by itself (hw/registers.py, SOURCE and what follows).

    Index bits: rows of ``forced``, rows whose temporal attention score or change speaks against replay, and rows of age
    ``max_age`` or more compute, and with them the other rows of their group. In frame 0 every row computes, and
    references and ages are kept all the same.

    Parameters
    ----------
    tas_scores : int32 ``[rows, heads]`` or None
        Per-head scores with 16 fraction bits; a row may replay if their sum is at least ``tas_threshold``.
    change_thresholds : tuple of :class:`int` or None
        Q of model/change.py for every row, which may replay if its input is that near to its reference.
    forced : bool ``[rows]`` or None
        Rows that compute whatever else holds.
    groups : tuple of :class:`int`
        For every row the rows that decide with it, a bit each, itself included; empty where all decide alone.
    max_age : :class:`int`
        Most replays in a row of a cached value; 0 is no bound.
    fresh_age : :class:`int`
        Age that a value computed in this step starts with.
    """

    tas_scores: np.ndarray | None = None
    tas_threshold: int = 0
    change_thresholds: tuple[int, ...] | None = None
    forced: Tensor | None = None
    groups: tuple[int, ...] = ()
    max_age: int = 0
    fresh_age: int = 0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a gate says about one layer and step.

    Parameters
    ----------
    eligible : :class:`bool`
        False in frame 0: every row computes, whatever the rest says.
    compute : bool ``[rows]``
        Rows that compute.
    rule : :class:`Rule` or None
        By what a board comes to the same rows; None: it is told them.
    """

    eligible: bool
    compute: Tensor
    rule: Rule | None = None


class Gate(Protocol):
    """Decides layer by layer. One object serves one generation at a time.

    A gate with an attribute ``needs_residual`` that is true gets the residual stream, too (see
    :meth:`model.gates.threshold.ThresholdGate.decide`).
    """

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

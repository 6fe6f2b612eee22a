"""What all gates with a threshold share: thresholds per layer, joint pairs, and the bound on the age of a value."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.config import RunSizes
from model.gates.decision import Decision, Rows, Rule, Step


class ThresholdGate(ABC):
    """A gate that compares a number of each row with a threshold.

    Rows decide alone, or in guidance pairs, and may be bound in the age of what they replay.

    Parameters
    ----------
    thresholds : :class:`float`, or one per layer
    joint_pairs : :class:`bool`
        A guidance pair replays only if both rows would.
    max_age : :class:`int`
        Most replays in a row of one cached value; 0 is no bound. Values start at ages that differ from index to index
        and layer to layer, so that refreshes come evenly.
    """

    name: str
    needs_scores = False
    needs_residual = False
    high_replays = False
    """Whether a row replays at or above its threshold, or at or below it."""
    never = -1.0
    """Threshold at which nothing replays."""
    video_thresholds: Sequence[float] | None = None
    """For calibration: one threshold for each video in place of all others. A board is then told the rows."""

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *, max_age: int = 0):
        self.thresholds = thresholds
        self.joint_pairs = joint_pairs
        self.max_age = max_age
        values = np.atleast_1d(np.asarray(thresholds, dtype=float))
        if values.ndim != 1 or np.isnan(values).any():
            raise ValueError(f"a threshold must be a number, or one number per layer, not {thresholds!r}")
        if not 0 <= max_age < 1 << 16:
            raise ValueError(f"max_age must be in 0..65535 (0 is no bound), not {max_age!r}")

    def begin(self, config: RunSizes, rows: Rows) -> None:
        values = np.atleast_1d(np.asarray(self.thresholds, dtype=float)).tolist()
        if len(values) not in (1, config.layers):
            raise ValueError(f"{len(values)} thresholds for {config.layers} layers; give one, or one per layer")
        self.per_layer: list[float] = values if len(values) == config.layers else values * config.layers
        self.all_rows = torch.ones(rows.count, dtype=torch.bool)
        self._pairs = rows.videos if self.joint_pairs and rows.guided else 0
        self._groups = tuple(1 << row | 1 << (row + self._pairs) % rows.count
                             for row in range(rows.count)) if self._pairs else ()
        self._limits = None
        if self.video_thresholds is not None:
            self._limits = torch.tensor(self.video_thresholds, dtype=torch.float64).repeat(rows.count // rows.videos)
        self._ages = torch.zeros(config.layers, config.layout.stride, rows.count, dtype=torch.int32)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None,
               residual: Tensor | None = None) -> Decision:
        """As :meth:`model.gates.decision.Gate.decide`; ``residual`` ``[rows, hidden]``: what the MLP output adds to,
        where ``needs_residual``."""
        rule = self.rule(layer, scores if step.eligible else None) if self._limits is None else None
        if rule is not None:
            rule = dataclasses.replace(rule, groups=self._groups, max_age=self.max_age,
                                       fresh_age=self._fresh_age(layer, step))
        if not step.eligible:
            return Decision(eligible=False, compute=self.all_rows, rule=rule)
        if self._limits is None:
            compute = ~self.replays(layer, step, x, scores, residual).cpu()
        else:
            value = self.statistic(layer, step, x, scores, residual)
            compute = value < self._limits if self.high_replays else value > self._limits
        if self.max_age:
            compute |= self._ages[layer, step.index] >= self.max_age
        if self._pairs:
            compute = (compute[:self._pairs] | compute[self._pairs:]).repeat(2)
        return Decision(eligible=True, compute=compute, rule=rule)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        ages = self._ages[layer, step.index]
        ages += 1
        ages[computed] = self._fresh_age(layer, step)

    def _fresh_age(self, layer: int, step: Step) -> int:
        return (step.index + layer) % self.max_age if self.max_age and not step.eligible else 0

    @abstractmethod
    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None,
                  residual: Tensor | None = None) -> Tensor:
        """What is compared with the threshold: float ``[rows]``, in eligible steps."""

    def replays(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None) -> Tensor:
        """Rows, bool ``[rows]``, that may replay, pairs and ages left aside."""
        value, threshold = self.statistic(layer, step, x, scores, residual), self.per_layer[layer]
        return value >= threshold if self.high_replays else value <= threshold

    def rule(self, layer: int, scores: Tensor | None) -> Rule | None:
        """How a board decides; None: it cannot, it is told. ``scores`` are None in frame 0."""
        return None

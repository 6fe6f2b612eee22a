"""The gate made of two: TAS as a hint, change as the judge."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from model.config import RunSizes
from model.gates.change import ChangeGate
from model.gates.decision import Rows, Rule, Step
from model.gates.temporal import TasGate


class TasAndChangeGate(ChangeGate):
    """Replay if the temporal attention score and the change both say so.

    The score is known first: a row that it lets compute needs no look at its reference.

    Parameters
    ----------
    thresholds : theta of the change, see :class:`~model.gates.change.ChangeGate`
    tau : :class:`float`, or one per layer
        Threshold of the score, see :class:`~model.gates.temporal.TasGate`.
    """

    name = "tas+change"
    needs_scores = True

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *,
                 tau: float | Sequence[float], max_age: int = 0):
        super().__init__(thresholds, joint_pairs, max_age=max_age)
        self._tas = TasGate(tau)

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        self._tas.begin(config, rows)

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None
                  ) -> Tensor:
        """Relative change, infinite where the score speaks against replay. Low replays."""
        change = super().statistic(layer, step, x, scores, residual)
        return change.masked_fill(~self._tas.replays(layer, step, x, scores, residual), float("inf"))

    def replays(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None) -> Tensor:
        return (super().replays(layer, step, x, scores, residual)
                & self._tas.replays(layer, step, x, scores, residual))

    def rule(self, layer: int, scores: Tensor | None) -> Rule | None:
        tas, change = self._tas.rule(layer, scores), super().rule(layer, scores)
        if tas is None or change is None:
            return None
        return dataclasses.replace(tas, change_thresholds=change.change_thresholds)

"""Controls: everything computes, chance decides, or an oracle that knows what the MLP would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from model.config import RunSizes
from model.gates.decision import Decision, Rows, Step
from model.gates.threshold import ThresholdGate


class DenseGate:
    """Everything computes."""

    name = "dense"
    needs_scores = False

    def begin(self, config: RunSizes, rows: Rows) -> None:
        self._all = torch.ones(rows.count, dtype=torch.bool)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        return Decision(eligible=step.eligible, compute=self._all)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        pass


class RandomGate(ThresholdGate):
    """Control: each row, layer and eligible step replays with probability ``ratio``, whatever it holds.

    A row's draws depend on ``seed`` and on the seed of its video, not on its neighbours.
    """

    name = "random"

    def __init__(self, ratio: float, seed: int = 0, joint_pairs: bool = False, *, max_age: int = 0):
        if not 0 <= ratio <= 1:
            raise ValueError(f"ratio must be in 0..1, not {ratio!r}")
        super().__init__(ratio, joint_pairs, max_age=max_age)
        self.ratio, self.seed = ratio, seed

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        self._draw_shape = (config.layout.stride, config.layers)
        self._generators = [np.random.default_rng([self.seed, number, twin])
                            for twin in range(1 + rows.guided) for number in rows.seeds]
        self._frame = 0

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None
                  ) -> Tensor:
        """Uniform draws of the rows."""
        if step.frame != self._frame:
            self._frame = step.frame
            self._draws = torch.from_numpy(np.stack([generator.random(self._draw_shape)
                                                     for generator in self._generators], axis=-1))
        return self._draws[step.index, layer]

    def replays(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None) -> Tensor:
        return self.statistic(layer, step, x, scores) < self.ratio


class OracleGate(ThresholdGate):
    """Control: replay if the MLP output, which it computes, has hardly changed against the cached one.

    Parameters
    ----------
    thresholds, joint_pairs, max_age : see :class:`~model.gates.threshold.ThresholdGate`
        Of ``|y - y_cached|`` relative to the norm of y.
    mlps : functions ``[rows, hidden]`` -> ``[rows, hidden]``, one per layer
    to_residual : :class:`bool`
        Relative to the norm of the residual stream instead.
    """

    name = "oracle"

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *,
                 mlps: Sequence[Callable[[Tensor], Tensor]], to_residual: bool = False, max_age: int = 0):
        super().__init__(thresholds, joint_pairs, max_age=max_age)
        self._mlps = mlps
        self.needs_residual = to_residual
        self.name = "oracle-residual" if to_residual else "oracle"

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        self._cached = torch.zeros(config.layers, config.layout.stride, rows.count, config.hidden)

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None
                  ) -> Tensor:
        """What is compared: relative change of the output per row. Low replays."""
        y = self._mlps[layer](x)
        scale = y
        if self.needs_residual:
            if residual is None:
                raise ValueError("this oracle needs the residual stream")
            scale = residual
        return (y - self._cached[layer, step.index]).norm(dim=1) / scale.norm(dim=1)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        super().update(layer, step, x, computed)
        if computed.any():
            self._cached[layer, step.index, computed] = self._mlps[layer](x[computed])

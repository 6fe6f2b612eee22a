"""Change gates: replay while the MLP input has hardly moved since the cached output was computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.change import change_replays, change_sums, change_threshold
from model.config import RunSizes
from model.gates.decision import Rows, Rule, Step
from model.gates.threshold import ThresholdGate
from model.integer import MxMatrix

UNCONDITIONAL = 2.0
"""How much more an unconditional row may change before it computes; 1 treats all rows alike."""


class ChangeGate(ThresholdGate):
    """``|x - x_ref| <= theta |x|`` on MX codes: the exact integer rule of model/change.py, as a board computes it.

    ``x_ref`` is the quantised input of the row, layer and index when the cached value was computed; memory is one
    frame of them, about 33 bytes for 32 values.

    Parameters
    ----------
    thresholds : :class:`float`, or one per layer
        theta, relative Euclidean change; below 0 nothing replays.
    joint_pairs, max_age : see :class:`~model.gates.threshold.ThresholdGate`
    weights : sequence of :class:`float` or None
        One per layer, multiplies its threshold: what a change in it matters less than in others.
    unconditional : :class:`float`
        Multiplies the threshold of unconditional rows. Guidance of scale s adds s times the conditional and 1 - s times
        the unconditional logits, so that errors of the latter matter less.
    """

    name = "change"

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *, max_age: int = 0,
                 weights: Sequence[float] | None = None, unconditional: float = UNCONDITIONAL):
        super().__init__(thresholds, joint_pairs, max_age=max_age)
        if not unconditional > 0:
            raise ValueError(f"unconditional must be positive, not {unconditional!r}")
        self._unconditional = unconditional
        if weights is not None and not all(weight > 0 for weight in weights):
            raise ValueError(f"weights must be positive, not {list(weights)!r}")
        self._weights = None if weights is None else tuple(weights)

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        weights = (1.0,) * config.layers if self._weights is None else self._weights
        if len(weights) != config.layers:
            raise ValueError(f"{len(weights)} weights for {config.layers} layers")
        twin = np.arange(rows.count) >= rows.videos
        self._scale = np.multiply.outer(weights, np.where(twin, self._unconditional, 1.0))  # [layers, rows]
        self._quotients = [tuple(change_threshold(theta * scale) for scale in row.tolist()) if theta >= 0 else None
                           for theta, row in zip(self.per_layer, self._scale)]
        shape = (config.layers, config.layout.stride, rows.count)
        self._codes = np.zeros((*shape, config.hidden), dtype=np.int8)
        self._scales = np.zeros((*shape, config.hidden // 32), dtype=np.uint8)

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None
                  ) -> Tensor:
        """What is compared: relative change per row over the layer's weight, float64. Low replays."""
        distance, norm, gap = change_sums(quantised(x), self._reference(layer, step))
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(distance == 0, 0.0, np.sqrt(distance / norm) * np.exp2(gap))
        return torch.from_numpy(relative / self._scale[layer])

    def replays(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None) -> Tensor:
        limit = self._quotients[layer]
        if limit is None:
            return ~self.all_rows
        return torch.from_numpy(change_replays(quantised(x), self._reference(layer, step), limit))

    def rule(self, layer: int, scores: Tensor | None) -> Rule | None:
        limit = self._quotients[layer]
        return None if limit is None else Rule(change_thresholds=limit)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        super().update(layer, step, x, computed)
        rows = computed.numpy()
        if rows.any():
            kept = quantised(x[computed])
            self._codes[layer, step.index, rows], self._scales[layer, step.index, rows] = kept.codes, kept.scales

    @property
    def reference_bytes(self) -> int:
        """Memory held by the references."""
        return self._codes.nbytes + self._scales.nbytes

    def _reference(self, layer: int, step: Step) -> MxMatrix:
        return MxMatrix(self._codes[layer, step.index], self._scales[layer, step.index])


class FloatChangeGate(ThresholdGate):
    """``|x - x_ref| <= theta |x|`` in the model's own precision, on any device; a board is told the rows.

    Parameters
    ----------
    thresholds, joint_pairs, max_age : as for :class:`ChangeGate`
    sensitivities : sequence of :class:`float` or None
        One per layer: then the change, times the layer's sensitivity, is compared with theta times the norm of the
        residual stream that the MLP output is added to, instead of |x|.
    """

    name = "change-float"

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *, max_age: int = 0,
                 sensitivities: Sequence[float] | None = None):
        super().__init__(thresholds, joint_pairs, max_age=max_age)
        self._sensitivities = sensitivities
        self.needs_residual = sensitivities is not None

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        if self._sensitivities is not None and len(self._sensitivities) != config.layers:
            raise ValueError(f"{len(self._sensitivities)} sensitivities for {config.layers} layers")
        self._shape = (config.layers, config.layout.stride, rows.count, config.hidden)
        self._reference: Tensor | None = None

    @property
    def reference_bytes(self) -> int:
        """Memory held by the references."""
        return 0 if self._reference is None else self._reference.numel() * self._reference.element_size()

    def statistic(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None
                  ) -> Tensor:
        """What is compared: relative change per row. Low replays."""
        if self._reference is None:
            raise ValueError("the change gate has no reference input before frame 0 is done")
        change = (x - self._reference[layer, step.index]).norm(dim=1)
        if self._sensitivities is None:
            return change / x.norm(dim=1)
        if residual is None:
            raise ValueError("the change gate with sensitivities needs the residual stream")
        return self._sensitivities[layer] * change / residual.norm(dim=1)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        super().update(layer, step, x, computed)
        if self._reference is None:
            self._reference = x.new_zeros(self._shape)
        self._reference[layer, step.index, computed] = x[computed]


def quantised(x: Tensor) -> MxMatrix:
    """MX codes of MLP inputs ``x`` ``[rows, hidden]``, the ones that a board is given."""
    return MxMatrix.from_float(x.detach().float().cpu().numpy())

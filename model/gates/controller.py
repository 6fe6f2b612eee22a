"""A change gate whose thresholds follow a target over time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from model.change import change_replays, change_threshold
from model.config import RunSizes
from model.gates.change import UNCONDITIONAL, ChangeGate, quantised
from model.gates.decision import Decision, Rows, Rule, Step

TARGETS = ("ratio", "budget")


class ControlledGate(ChangeGate):
    """Holds a replay ratio, or a budget of change, for every video and group of layers.

    After each frame, theta of a video and layer group moves by ``exp(gain * error)``, by at most a factor ``rate`` a
    frame, and stays within a factor ``span`` of where it began. It begins with ``thresholds``, so that nothing jumps
    when control sets in. Error: target less replay ratio of the frame, or the share of the budget that was not used.

    Parameters
    ----------
    thresholds, joint_pairs, max_age, weights : see :class:`~model.gates.change.ChangeGate`
    target : :class:`float`
        Replay ratio of eligible steps in 0..1, or mean relative change that replay lets pass per row step.
    signal : one of :data:`TARGETS`
    layer_groups : sequence of :class:`int`
        Group number of every layer; by default each layer is its own group for a budget, and all are one for a ratio.
    gain, rate, span : :class:`float`
        See above; rate and span above 1.
    """

    name = "controlled"

    def __init__(self, thresholds: float | Sequence[float], joint_pairs: bool = False, *, target: float,
                 signal: str = "ratio", layer_groups: Sequence[int] | None = None, gain: float = 1.0,
                 rate: float = 1.25, span: float = 4.0, max_age: int = 0, weights: Sequence[float] | None = None,
                 unconditional: float = UNCONDITIONAL):
        super().__init__(thresholds, joint_pairs, max_age=max_age, weights=weights, unconditional=unconditional)
        if signal not in TARGETS:
            raise ValueError(f"signal must be one of {', '.join(TARGETS)}, not {signal!r}")
        if not 0 < target < (1 if signal == "ratio" else np.inf):
            raise ValueError(f"target {target!r} of a {signal} must be above 0{' and below 1' * (signal == 'ratio')}")
        if not (gain > 0 and rate > 1 and span > 1):
            raise ValueError(f"gain must be above 0, rate and span above 1, not {gain!r}, {rate!r}, {span!r}")
        if min(np.atleast_1d(thresholds)) <= 0:
            raise ValueError(f"control needs thresholds above 0 to begin with, not {thresholds!r}")
        self._target, self._signal, self._layer_groups = target, signal, layer_groups
        self._gain, self._rate, self._span = gain, rate, span

    def begin(self, config: RunSizes, rows: Rows) -> None:
        super().begin(config, rows)
        groups = self._layer_groups
        if groups is None:
            groups = range(config.layers) if self._signal == "budget" else (0,) * config.layers
        if len(groups) != config.layers:
            raise ValueError(f"{len(groups)} layer groups for {config.layers} layers")
        self._group = np.asarray(groups)
        self._videos = rows.videos
        self._video = np.arange(rows.count) % rows.videos
        self._factor = np.ones((config.layers, rows.videos))
        """What each layer's theta is multiplied with, by video."""
        self._frame = 0
        self._forget_frame()

    def _forget_frame(self) -> None:
        self._sum = np.zeros_like(self._factor)
        self._count = np.zeros(len(self._factor), dtype=np.int64)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None,
               residual: Tensor | None = None) -> Decision:
        if step.frame != self._frame:
            self._control()
            self._frame = step.frame
        decision = super().decide(layer, step, x, scores, residual)
        if step.eligible:
            replayed = ~decision.compute.numpy()
            spent = replayed.astype(float)
            if self._signal == "budget":
                value = self.statistic(layer, step, x, scores).numpy() * self._scale[layer]
                spent = np.where(replayed, value, 0.0)
            self._sum[layer] += spent.reshape(-1, self._videos).mean(axis=0)
            self._count[layer] += 1
        return decision

    def replays(self, layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None) -> Tensor:
        return torch.from_numpy(change_replays(quantised(x), self._reference(layer, step), self._limits_now(layer)))

    def rule(self, layer: int, scores: Tensor | None) -> Rule | None:
        return Rule(change_thresholds=self._limits_now(layer))

    def _limits_now(self, layer: int) -> tuple[int, ...]:
        theta = self.per_layer[layer] * self._scale[layer] * self._factor[layer, self._video]
        return tuple(change_threshold(value) for value in theta.tolist())

    def _control(self) -> None:
        """End of a frame: one step of the controller."""
        if not self._count.all():
            return
        for group in np.unique(self._group):
            members = self._group == group
            value = self._sum[members].sum(axis=0) / self._count[members].sum()
            error = (self._target - value) / (1.0 if self._signal == "ratio" else self._target)
            change = np.clip(np.exp(self._gain * error), 1 / self._rate, self._rate)
            self._factor[members] = np.clip(self._factor[members] * change, 1 / self._span, self._span)
        self._forget_frame()

"""One decoder layer under replay: the attention hands over the score, the MLP computes only the rows that need it.

Source: FastCar (arXiv:2505.14709), eq. 8: the cached value is the MLP output before the residual addition, and a
replayed value stays cached.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from model.gates import Step
from model.hf.config import ReplayConfig
from model.hf.errors import ReplayError
from model.hf.gate import attention_statistic, change_statistic, replays
from model.hf.row_plan import evaluate_all
from model.hf.sequence import LayerState, Sequence
from model.hf.statistics import ReplayStatistics

MlpRunner = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, np.ndarray, bool], Tensor]


def run_needed_rows(mlp: Callable[[Tensor], Tensor], x: Tensor, cached: Tensor, compute: np.ndarray,
                    full: bool) -> Tensor:
    """MLP outputs ``[rows, 1, hidden]`` of ``x``: of the rows ``compute`` fresh, of the others from ``cached``.

    At least one row does not compute. ``full`` says that evaluating all of them is faster than gathering.
    """
    y = cached.clone()
    if not compute.any():
        return y
    rows = torch.from_numpy(compute).to(x.device)
    if full:
        return torch.where(rows[:, None, None], mlp(x), y)
    y[rows] = mlp(x[rows])
    return y


class LayerReplay:
    """Replaces ``mlp.forward`` of one layer; hooks on the module see whole batches as ever.

    Parameters
    ----------
    place : :class:`int`
        Number among the participating layers.
    threshold : :class:`float`
        Of this layer.
    current : callable
        Returns the sequence of the model call under way, or None outside one.
    """

    def __init__(self, config: ReplayConfig, place: int, layer: int, threshold: float, mlp: nn.Module,
                 attention: Callable[..., tuple[Tensor, Tensor | None]], statistics: ReplayStatistics,
                 current: Callable[[], Sequence | None], runner: MlpRunner = run_needed_rows):
        self.config, self.place, self.layer, self.threshold = config, place, layer, threshold
        self.attention = attention
        self._mlp, self._statistics, self._current, self._runner = mlp, statistics, current, runner
        self._forward = mlp.forward
        self._replaced = mlp.__dict__.get("forward")
        mlp.forward = self.forward

    def remove(self) -> None:
        """Give the module its own forward back."""
        if self._replaced is None:
            del self._mlp.forward
        else:
            self._mlp.forward = self._replaced

    def observe(self, query: Tensor, key: Tensor, sliding_window: int | None) -> None:
        """See queries ``[rows, heads, tokens, d]`` and keys ``[rows, kv_heads, cached, d]``, the new ones included."""
        sequence = self._current()
        if sequence is None or self.config.variant == "change":
            return
        state = sequence.layers[self.place]
        state.statistic = None
        # Static caches have room behind the newest key, sliding ones forget the oldest.
        newest = min(sequence.total, key.shape[2]) - 1
        short = sliding_window is not None and sliding_window <= self.config.stride
        if sequence.step is not None and sequence.eligible:
            index, before = sequence.step.index, newest - self.config.stride
            if short:
                previous = state.at("keys", index)
            elif before < 0:
                raise ReplayError(f"layer {self.layer} keeps {key.shape[2]} keys, the score needs the one "
                                  f"{self.config.stride} positions back; use a longer cache, or exclude_layers")
            else:
                previous = key[:, :, before]
            state.statistic = attention_statistic(self.config.variant, query[:, :, 0], previous)
            self._statistics.samples[self.place].add(state.statistic)
        if short:
            tokens = query.shape[2]
            for number, offset in sequence.stored:
                at = newest - (tokens - 1 - offset)
                if at >= 0:
                    state.store("keys", number % self.config.stride, key[:, :, at])

    def forward(self, x: Tensor) -> Tensor:
        """MLP outputs of ``x`` ``[rows, tokens, hidden]``, computed or replayed."""
        sequence = self._current()
        if sequence is None:
            return self._forward(x)
        state = sequence.layers[self.place]
        if sequence.step is None:
            y = self._forward(x)
            for number, offset in sequence.stored:
                self._store(state, number % self.config.stride, x[:, offset], y[:, offset])
                state.ages[number % self.config.stride] = 0
            return y
        return self._step(sequence, sequence.step, state, x)

    def _step(self, sequence: Sequence, step: Step, state: LayerState, x: Tensor) -> Tensor:
        index, rows = step.index, sequence.rows
        replay = np.zeros(rows, dtype=bool)
        if sequence.eligible:
            if self.config.variant == "change":
                state.statistic = change_statistic(x[:, 0], state.at("references", index))
                self._statistics.samples[self.place].add(state.statistic)
            if state.statistic is None:
                raise ReplayError(f"layer {self.layer} has no score: its attention did not go through the registered "
                                  "function; call disable_replay and enable_replay after changing the attention")
            replay = replays(self.config, self.threshold, state.statistic, state.ages[index])
            state.statistic = None
        if replay.any():
            full = evaluate_all(self._mlp, rows)[rows - int(replay.sum())]
            y = self._runner(self._forward, x, state.at("outputs", index).unsqueeze(1), ~replay, full)
            if not replay.all():
                self._store(state, index, x[:, 0], y[:, 0], torch.from_numpy(~replay).to(x.device))
        else:
            # All rows together take the very path of a dense model, bit for bit.
            y = self._forward(x)
            self._store(state, index, x[:, 0], y[:, 0])
        state.ages[index] = np.where(replay, state.ages[index] + 1, 0)
        self._statistics.add(self.place, step.frame, sequence.counts, sequence.eligible, replay,
                             state.ages[index])
        return y

    def _store(self, state: LayerState, index: int, x: Tensor, y: Tensor, rows: Tensor | None = None) -> None:
        state.store("outputs", index, y, rows)
        if self.config.variant == "change":
            state.store("references", index, x, rows)

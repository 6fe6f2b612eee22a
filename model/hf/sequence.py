"""Replay state of one sequence: where it is, and per layer one frame of MLP outputs.

One sequence belongs to one key-value cache, so that guidance with two caches works, and goes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from model.gates import Step
from model.hf.config import ReplayConfig
from model.hf.errors import ReplayError
from model.hf.layout_check import LayoutCheck
from model.hf.statistics import SequenceCounts


@dataclass
class LayerState:
    """One frame of one layer; tensors appear with the first token that is stored.

    ``outputs`` and ``references`` are ``[stride, rows, hidden]`` of the model's dtype, ``keys``
    ``[stride, rows, kv_heads, d]``; ``ages`` int32 ``[stride, rows]`` counts replays in a row.
    """

    stride: int
    rows: int
    ages: np.ndarray = field(init=False)
    outputs: Tensor | None = None
    references: Tensor | None = None
    keys: Tensor | None = None
    statistic: np.ndarray | None = None
    """What attention found for the step under way, float32 ``[rows]``."""

    def __post_init__(self) -> None:
        self.ages = np.zeros((self.stride, self.rows), dtype=np.int32)

    def store(self, name: str, index: int, value: Tensor, rows: Tensor | None = None) -> None:
        """Keep ``value`` ``[rows, ...]`` at ``index``, of the given ``rows`` only if given."""
        value = value.detach()
        ring = getattr(self, name)
        if ring is None:
            ring = value.new_zeros(self.stride, *value.shape)
            setattr(self, name, ring)
        if rows is None:
            ring[index] = value
        else:
            ring[index, rows] = value[rows]

    def at(self, name: str, index: int) -> Tensor:
        """What :meth:`store` kept at ``index``, ``[rows, ...]``."""
        return getattr(self, name)[index]

    @property
    def size_bytes(self) -> dict[str, int]:
        """Memory held, by tensor."""
        tensors = {name: getattr(self, name) for name in ("outputs", "references", "keys")}
        return {name: 0 if t is None else t.numel() * t.element_size() for name, t in tensors.items()}


class Sequence:
    """Position in the frame layout, and the state of every participating layer.

    Attributes
    ----------
    step : Step or None
        The visual step under way, if this call feeds just one token of a frame.
    stored : list of (visual step, offset in the call)
        Frame tokens of the call under way that must be remembered, at most a stride of them.
    """

    def __init__(self, config: ReplayConfig, layers: int, rows: int, past: int, check: LayoutCheck,
                 counts: SequenceCounts):
        if config.guided and rows % 2:
            raise ReplayError(f"guided=True needs an even number of rows, conditional ones first, not {rows}")
        self.config, self.rows, self.check, self.counts = config, rows, check, counts
        self.layers = [LayerState(config.stride, rows) for _ in range(layers)]
        self.total = past
        self.prelude = config.prelude
        self._first_stored: int | None = None
        self._started = False
        self.step: Step | None = None
        self.eligible = False
        self.stored: list[tuple[int, int]] = []

    def advance(self, tokens: int) -> None:
        """A call that feeds ``tokens`` positions begins."""
        single = tokens == 1 and self._started
        if self.prelude is None and single:
            self.prelude = self.total
        begin = self.total
        self.total += tokens
        self._started = True
        self.step, self.eligible, self.stored = None, False, []
        if self.prelude is None:
            return
        first = max(begin - self.prelude, 0)
        end = self.total - self.prelude
        if end <= first:
            return
        if self._first_stored is None:
            self._first_stored = first
        self.stored = [(number, number + self.prelude - begin)
                       for number in range(max(first, end - self.config.stride), end)]
        if single:
            self.step = Step.at(first, self.config.layout(self.prelude))
            self.eligible = (first - self._first_stored >= self.config.stride
                             and self.step.frame >= self.config.warmup_frames)

    def visual(self, tokens: int) -> list[tuple[int, int]]:
        """(visual step, offset) of every frame token in the call under way, which feeds ``tokens``."""
        if self.prelude is None:
            return []
        offset = self.total - tokens - self.prelude
        return [(offset + at, at) for at in range(tokens) if offset + at >= 0]

    @property
    def size_bytes(self) -> dict[str, int]:
        """Replay memory by kind."""
        parts = [layer.size_bytes for layer in self.layers]
        return {name: sum(part[name] for part in parts) for name in ("outputs", "references", "keys")}

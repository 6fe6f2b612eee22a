"""Replay of MLP outputs: the ring of cached values, and the float engine that skips replayed rows.

Source: FastCar (arXiv:2505.14709), eq. 8. The cached value is the MLP output before the residual addition; a
replayed value stays in the ring, so that replays chain. Memory is one frame, however long the video is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from model.config import StackSizes
from model.frames import FrameLayout
from model.gates import Decision
from model.transformer import Block


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Outcome of one layer and step.

    ``y`` float32 ``[rows, hidden]``, valid until the same layer and index is stepped again; ``computed`` bool
    ``[rows]``, the rows whose MLP ran. The others replayed.
    """

    y: Tensor
    computed: Tensor


class ReplayRing:
    """Last MLP output of every layer, index in the frame and row: ``[layers, stride, rows, hidden]``."""

    def __init__(self, layers: int, layout: FrameLayout, rows: int, hidden: int, *,
                 dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"):
        self.values = torch.zeros(layers, layout.stride, rows, hidden, dtype=dtype, device=device)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return self.values.numel() * self.values.element_size()


class ReplayingMlp(ABC):
    """An MLP engine with its own ring: runs the MLP on the computing rows only and counts that.

    Attributes
    ----------
    calls, rows_computed : :class:`int`
        MLP evaluations since :meth:`begin`, and rows in them; the prefill is not counted.
    """

    def __init__(self, layers: int, hidden: int, *, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu"):
        self.layers, self.hidden = layers, hidden
        self._dtype, self._device = dtype, device
        self.calls = self.rows_computed = 0
        self.ring: ReplayRing | None = None

    def begin(self, rows: int, layout: FrameLayout) -> None:
        """A new generation of ``rows`` rows: forget everything."""
        self.ring = ReplayRing(self.layers, layout, rows, self.hidden, dtype=self._dtype, device=self._device)
        self.calls = self.rows_computed = 0

    def prefill(self, layer: int, x: Tensor) -> Tensor:
        """MLP outputs of prelude tokens ``x`` ``[tokens, hidden]``; nothing is cached."""
        return self.mlp(layer, x)

    def step(self, layer: int, index: int, x: Tensor, decision: Decision) -> StepResult:
        """MLP outputs of ``x`` ``[rows, hidden]`` at ``index`` of the frame, computed or replayed.

        Raises
        ------
        RuntimeError
            :meth:`begin` was not called.
        ValueError
            ``x`` has other rows than the generation.
        """
        if self.ring is None:
            raise RuntimeError("step before begin; begin(rows, layout) starts a generation")
        cached = self.ring.values[layer, index]
        if x.shape != cached.shape:
            raise ValueError(f"MLP inputs must be {list(cached.shape)} in this generation, not {list(x.shape)}")
        computed = decision.compute.cpu() if decision.eligible else torch.ones(len(x), dtype=torch.bool)
        count = int(computed.sum())
        if count:
            self.calls += 1
            self.rows_computed += count
            # All rows together take the very path of a dense generation, bit for bit.
            if count == len(x):
                cached.copy_(self.mlp(layer, x))
            else:
                cached[computed] = self.mlp(layer, x[computed])
        return StepResult(y=cached, computed=computed)

    @abstractmethod
    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """The MLP itself: float32 ``[n, hidden]`` of ``x`` ``[n, hidden]``."""


class BlockStack(Protocol):
    """A transformer as :class:`FloatMlp` sees it: ``blocks`` of :class:`~model.transformer.Block`, and sizes."""

    blocks: nn.ModuleList

    @property
    def config(self) -> StackSizes: ...


class FloatMlp(ReplayingMlp):
    """The MLPs of a transformer in its own precision."""

    def __init__(self, transformer: BlockStack, *, dtype: torch.dtype = torch.float32,
                 device: torch.device | str = "cpu"):
        super().__init__(transformer.config.layers, transformer.config.hidden, dtype=dtype, device=device)
        self._mlps = [cast(Block, block).mlp for block in transformer.blocks]

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        return self._mlps[layer](x)

"""MLP engines: who computes the SwiGLU of a layer and keeps the replay cache.

The generator talks to one interface, :class:`MlpEngine`; behind it stands the float model, the integer model here,
or a board.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from model.frames import FrameLayout
from model.gates import Decision
from model.integer import MlpWeights, MxMatrix, bf16_to_float
from model.prepared import PreparedMlp
from model.replay import ReplayingMlp, StepResult
from model.transformer import Block, Transformer


class MlpEngine(Protocol):
    """Computes or replays MLP outputs, one layer and step at a time, steps in order, layers in order in each step."""

    def begin(self, rows: int, layout: FrameLayout) -> None:
        """A new generation of ``rows`` rows: forget everything."""

    def prefill(self, layer: int, x: Tensor) -> Tensor:
        """MLP outputs ``[tokens, hidden]`` of the prelude tokens ``x`` of all rows; nothing replays."""

    def step(self, layer: int, index: int, x: Tensor, decision: Decision) -> StepResult:
        """MLP outputs of ``x`` ``[rows, hidden]`` at ``index`` of the frame.

        Rows compute or replay as ``decision`` says; replayed rows give the output that the same layer, index and
        row had one frame earlier.
        """


def quantised_weights(transformer: Transformer) -> list[MlpWeights]:
    """MXINT8 weights of every layer's MLP: the one quantisation that engines, boards and dumps use."""
    mlps = [cast(Block, block).mlp for block in transformer.blocks]
    return [MlpWeights(*(MxMatrix.from_float(projection.weight.detach().float().numpy())
                         for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))) for mlp in mlps]


class IntegerMlp(ReplayingMlp):
    """The integer model of ``model/integer.py``: MXINT8 in, BF16 out."""

    def __init__(self, weights: list[MlpWeights]):
        super().__init__(len(weights), weights[0].hidden)
        self._mlps = [PreparedMlp(layer) for layer in weights]

    @classmethod
    def of(cls, transformer: Transformer) -> IntegerMlp:
        """The engine with the quantised weights of ``transformer``."""
        return cls(quantised_weights(transformer))

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        inputs = MxMatrix.from_float(x.detach().numpy())
        return torch.from_numpy(bf16_to_float(self._mlps[layer](inputs).y))

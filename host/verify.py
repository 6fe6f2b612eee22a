"""Runs the golden model beside a board and stops at the first difference."""

import numpy as np
from torch import Tensor

from model.engine import MlpEngine
from model.frames import FrameLayout
from model.gates import Decision
from model.replay import StepResult


class VerifyError(Exception):
    """Board and golden model differ."""


class VerifiedMlp:
    """An engine that answers with what ``board`` gives, after comparing it with ``golden``.

    Attributes
    ----------
    compared : :class:`int`
        Output elements found equal since :meth:`begin`.
    """

    def __init__(self, board: MlpEngine, golden: MlpEngine):
        self._board, self._golden = board, golden
        self.compared = 0

    def begin(self, rows: int, layout: FrameLayout) -> None:
        self._layout, self._step = layout, -1
        self.compared = 0
        self._board.begin(rows, layout)
        self._golden.begin(rows, layout)

    def prefill(self, layer: int, x: Tensor) -> Tensor:
        y = self._board.prefill(layer, x)
        self._compare(f"layer {layer}, prelude", "token", y, self._golden.prefill(layer, x))
        return y

    def step(self, layer: int, index: int, x: Tensor, decision: Decision) -> StepResult:
        self._step += layer == 0
        result, golden = self._board.step(layer, index, x, decision), self._golden.step(layer, index, x, decision)
        where = f"layer {layer}, step {self._step} (frame {self._layout.frame(self._step)}, index {index})"
        for slot in np.flatnonzero(result.computed.numpy() != golden.computed.numpy()):
            did = [("computed" if r.computed[slot] else "replayed") for r in (result, golden)]
            raise VerifyError(f"{where}, slot {slot}: the board {did[0]}, the golden model {did[1]}")
        self._compare(where, "slot", result.y, golden.y)
        return result

    def _compare(self, where: str, row_name: str, found: Tensor, expected: Tensor) -> None:
        a, b = found.numpy(), expected.numpy()
        different = np.argwhere(a.view(np.uint32) != b.view(np.uint32))
        if len(different):
            row, element = different[0]
            raise VerifyError(f"{where}, {row_name} {row}, element {element}: the board gives "
                              f"{float(a[row, element])!r}, the golden model {float(b[row, element])!r} "
                              f"({len(different)} of {a.size} elements differ)")
        self.compared += a.size

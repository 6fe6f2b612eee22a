"""The integer MLP for many evaluations of the same weights: the bits of ``model.integer.mlp``, several times faster.

A block product that is shifted right by no more than GUARD_BITS loses nothing, so an accumulator whose shifts are all
that small is a plain dot product of codes scaled by powers of two. In float64 every partial sum of it is exact (it is
a multiple of one accumulator LSB below 2**42), so a library matrix product gives the accumulator in whatever order it
adds. Rows with a longer shift go the general way.
"""

from __future__ import annotations

import numpy as np
import torch

from model.integer import BF16_NAN, GUARD_BITS, MlpResult, MlpWeights, MxMatrix, accumulate, swiglu, to_bf16
from model.mx import BLOCK, SCALE_NAN

CHUNK = 1 << 14
"""Hidden outputs that are worked on at once: temporaries stay in the processor's cache."""


class PreparedMatrix:
    """A weight matrix ready for :meth:`accumulate`."""

    def __init__(self, matrix: MxMatrix):
        self._matrix = matrix
        self._largest = matrix.largest_scale
        drop, self._longest = _drops(matrix, np.full(len(matrix.codes), self._largest))
        # A torch product, because it follows torch's number of threads; numpy's library has another pool of its own.
        self._values = torch.from_numpy(np.ascontiguousarray(_scaled(matrix.codes, -drop).T))

    def accumulate(self, x: MxMatrix) -> tuple[np.ndarray, np.ndarray]:
        """As :func:`model.integer.accumulate` of ``x`` with this matrix."""
        largest = np.where(x.scales == SCALE_NAN, 0, x.scales).max(axis=1).astype(np.int64)
        drop, _ = _drops(x, largest)
        long = drop.max(axis=1) + self._longest > GUARD_BITS
        if long.all():
            return accumulate(x, self._matrix)
        acc = (torch.from_numpy(_scaled(x.codes, GUARD_BITS - drop)) @ self._values).numpy().astype(np.int64)
        if long.any():
            acc[long], _ = accumulate(MxMatrix(x.codes[long], x.scales[long]), self._matrix)
        return acc, largest + self._largest


class PreparedMlp:
    """One layer; calling it with ``x`` gives what :func:`model.integer.mlp` gives."""

    def __init__(self, weights: MlpWeights):
        self._gate, self._up, self._down = (PreparedMatrix(m) for m in (weights.gate, weights.up, weights.down))
        self._bad = any((m.scales == SCALE_NAN).any() for m in (weights.gate, weights.up, weights.down))

        self._rows = max(1, CHUNK // weights.intermediate)

    def __call__(self, x: MxMatrix) -> MlpResult:
        parts = [self._chunk(MxMatrix(x.codes[start:start + self._rows], x.scales[start:start + self._rows]))
                 for start in range(0, max(1, len(x.codes)), self._rows)]
        if len(parts) == 1:
            return parts[0]
        y, nan, codes, scales = (np.concatenate(arrays) for arrays in zip(*(
            (part.y, part.nan, part.hidden_codes.codes, part.hidden_codes.scales) for part in parts)))
        return MlpResult(y, nan, MxMatrix(codes, scales))

    def _chunk(self, x: MxMatrix) -> MlpResult:
        hidden = swiglu(*self._gate.accumulate(x), *self._up.accumulate(x))
        acc, exponent = self._down.accumulate(hidden)
        nan = (x.scales == SCALE_NAN).any(axis=1) | self._bad
        return MlpResult(np.where(nan[:, None], BF16_NAN, to_bf16(acc, exponent)).astype(np.uint16), nan, hidden)


def _drops(matrix: MxMatrix, largest: np.ndarray) -> tuple[np.ndarray, int]:
    """Bits ``[rows, blocks]`` by which each block lies below the ``largest`` scale of its row, and the most of them.

    A block of zeros adds nothing wherever it lies: 0.
    """
    scales = np.where(matrix.scales == SCALE_NAN, 0, matrix.scales).astype(np.int64)
    zero = ~matrix.codes.reshape(*scales.shape, BLOCK).any(axis=2)
    drop = np.where(zero, 0, largest[:, None] - scales)
    return drop, int(drop.max(initial=0))


def _scaled(codes: np.ndarray, power: np.ndarray) -> np.ndarray:
    """``codes [rows, n] * 2**power [rows, n / 32]`` in float64."""
    blocks = codes.reshape(*power.shape, BLOCK).astype(np.float64)
    return np.ldexp(blocks, power[:, :, None]).reshape(codes.shape)

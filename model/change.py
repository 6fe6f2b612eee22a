"""The change rule on MX codes, as the board computes it: has an MLP input hardly moved since its reference? numpy only.

Rule. Input x and reference r are MXINT8 rows of n elements: codes c and scale bytes e, one for each block of 32. With
the largest scale byte X of x, and E the largest one of x and r,

    norm     N = sum over i of (c_i(x) * 2**8 >> X - e_i(x)) ** 2
    distance D = sum over i of ((c_i(x) * 2**8 >> E - e_i(x)) - (c_i(r) * 2**8 >> E - e_i(r))) ** 2

where ``>>`` is the arithmetic shift (towards minus infinity), by at most 15. N is worth 4**X of some unit and D 4**E of
the same, so that a row replays if and only if

    D * 4**(E - X) * 2**24 <= Q * N,        Q = round(theta**2 * 2**24), 0 <= Q < 2**32

which is ``|x - r| <= theta |x|`` but for the bits shifted out, each block's below 2**-8 of a code LSB of the largest
block. It never replays where E - X exceeds 15, or where a block of either row is NaN (scale byte 255). A zero row
replays over a zero reference.

Sums are below 2**49 for 32,768 elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from model.integer import MxMatrix
from model.mx import BLOCK, SCALE_NAN

GUARD_BITS = 8
"""Bits below a code LSB of the largest block that take part."""
LONGEST_SHIFT = 15
"""Shifts beyond this act like this one: nothing but the sign is left."""
SQUARE_FRACTION_BITS = 24
THRESHOLD_BITS = 32


def change_threshold(theta: float) -> int:
    """Q of relative change ``theta``; saturates. Raises ValueError for NaN and below 0, where nothing replays."""
    if not theta >= 0:
        raise ValueError(f"theta must be at least 0, not {theta!r}; below 0 nothing replays and there is no rule")
    largest = (1 << THRESHOLD_BITS) - 1
    return min(largest, round(theta * theta * (1 << SQUARE_FRACTION_BITS))) if math.isfinite(theta) else largest


def aligned(matrix: MxMatrix, largest: np.ndarray) -> np.ndarray:
    """Codes with :data:`GUARD_BITS` more bits, shifted down to scale ``largest`` ``[rows]``: int64 ``[rows, n]``."""
    shift = np.minimum(largest[:, None] - matrix.scales.astype(np.int64), LONGEST_SHIFT)
    blocks = matrix.codes.astype(np.int64).reshape(*shift.shape, BLOCK) << GUARD_BITS
    return (blocks >> shift[:, :, None]).reshape(matrix.codes.shape)


def change_sums(x: MxMatrix, reference: MxMatrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distance D, norm N and E - X of every row, each int64 ``[rows]``. NaN blocks count with scale byte 255."""
    own = x.scales.max(axis=1).astype(np.int64)
    common = np.maximum(own, reference.scales.max(axis=1))
    norm = np.square(aligned(x, own)).sum(axis=1)
    distance = np.square(aligned(x, common) - aligned(reference, common)).sum(axis=1)
    return distance, norm, common - own


def change_replays(x: MxMatrix, reference: MxMatrix, threshold: int | Sequence[int]) -> np.ndarray:
    """Rows, bool ``[rows]``, that replay by the rule with Q = ``threshold``, one or one per row."""
    limits = [threshold] * len(x.codes) if isinstance(threshold, int) else threshold
    nan = (x.scales == SCALE_NAN).any(axis=1) | (reference.scales == SCALE_NAN).any(axis=1)
    # Products need up to 2**103: Python's integers have no limit.
    return np.array([not bad and gap <= LONGEST_SHIFT and (d << (2 * gap + SQUARE_FRACTION_BITS)) <= limit * n
                     for d, n, gap, bad, limit in zip(*(part.tolist() for part in change_sums(x, reference)),
                                                      nan.tolist(), limits, strict=True)], dtype=bool)

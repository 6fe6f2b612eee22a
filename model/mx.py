"""OCP Microscaling (MX) v1.0 block formats in plain numpy: MXINT8 and MXFP4.

A block is 32 consecutive elements of the last axis sharing one E8M0 scale byte. An element is a signed integer *code*;
its value is ``code * 2**(scale - 127 - fraction_bits)``:

========  ==============  ======================================  =============
format    fraction_bits   codes                                   largest code
========  ==============  ======================================  =============
mxint8    6               -127..127 (-128 is never produced)      127
mxfp4     1               twice the E2M1 value: 0 1 2 3 4 6 8 12  12
========  ==============  ======================================  =============

Source: OCP Microscaling Formats (MX) Specification v1.0, sections 5 and 6.3; docs/numerics.md states every rule.
"""

from dataclasses import dataclass

import numpy as np

BLOCK = 32
"""Elements that share one scale (the lanes of a dot product)."""
SCALE_BIAS = 127
SCALE_NAN = 255
"""Scale byte of a block that held a NaN or an infinity."""


@dataclass(frozen=True)
class Format:
    """An MX element format: ``emax`` is the exponent of the largest normal element, in powers of two."""

    name: str
    fraction_bits: int
    emax: int
    largest: int


FORMATS = {"mxint8": Format("mxint8", 6, 0, 127), "mxfp4": Format("mxfp4", 1, 2, 12)}


def quantize(x: np.ndarray, fmt: str = "mxint8") -> tuple[np.ndarray, np.ndarray]:
    """Quantise ``x [..., n]`` (float, n a multiple of 32) to ``codes int8 [..., n]``, ``scales uint8 [..., n/32]``.

    The scale is floor(log2(max |v|)) - emax, clamped to the E8M0 range -127..127; elements round to nearest, ties to
    even, and clamp to the largest code. A zero block gives scale byte 0 and codes 0; a block with a NaN or an infinity
    gives scale byte 255 and codes 0. Raises ValueError for an unknown format or a length that is no multiple of 32.
    """
    spec = _format(fmt)
    values = np.asarray(x, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] % BLOCK:
        raise ValueError(f"the last axis must be a multiple of {BLOCK}, not shape {values.shape}; pad it with zeros")
    blocks = values.reshape(*values.shape[:-1], values.shape[-1] // BLOCK, BLOCK)
    bad = ~np.all(np.isfinite(blocks), axis=-1)
    blocks = np.where(bad[..., None], 0.0, blocks)
    peak = np.abs(blocks).max(axis=-1)
    exponent = np.clip(np.frexp(peak)[1] - 1 - spec.emax, -SCALE_BIAS, SCALE_BIAS)
    exponent = np.where(peak == 0, -SCALE_BIAS, exponent)
    element = np.ldexp(blocks, -exponent[..., None])
    codes = np.clip(_round(element, spec), -spec.largest, spec.largest)
    scales = np.where(bad, SCALE_NAN, exponent + SCALE_BIAS)
    return codes.reshape(values.shape).astype(np.int8), scales.astype(np.uint8)


def dequantize(codes: np.ndarray, scales: np.ndarray, fmt: str = "mxint8") -> np.ndarray:
    """Return the float64 values ``[..., n]`` of ``codes [..., n]`` and ``scales [..., n/32]``; scale 255 gives NaN.

    Raises ValueError for an unknown format or shapes that do not belong together.
    """
    spec = _format(fmt)
    if codes.ndim == 0 or codes.shape[-1] % BLOCK or scales.shape != (*codes.shape[:-1], codes.shape[-1] // BLOCK):
        raise ValueError(f"codes {codes.shape} need a scale per {BLOCK} elements of the last axis, not {scales.shape}")
    blocks = codes.reshape(*scales.shape, BLOCK).astype(np.float64)
    values = np.ldexp(blocks, scales.astype(np.int64)[..., None] - SCALE_BIAS - spec.fraction_bits)
    return np.where((scales == SCALE_NAN)[..., None], np.nan, values).reshape(codes.shape)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"unknown MX format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def _round(element: np.ndarray, spec: Format) -> np.ndarray:
    """Codes nearest to ``element`` (in units of the block scale), ties to the even mantissa."""
    if spec.name == "mxint8":
        return np.rint(np.ldexp(element, spec.fraction_bits))
    # E2M1 has one mantissa bit: the step is 0.5 below 2 (subnormals and exponent 0), then 1, then 2. `rint` on the
    # quotient is ties-to-even on the mantissa because the quotient's parity is the mantissa bit.
    exponent = np.clip(np.frexp(element)[1] - 1, 0, spec.emax)
    return np.ldexp(np.rint(np.ldexp(element, 1 - exponent)), exponent)

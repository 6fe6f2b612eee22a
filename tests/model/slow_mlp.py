"""The integer MLP and the MX formats a second time, slowly: Python integers and fractions, one element at a time.

Written from the rules in docs/numerics.md and sharing no code and no table with ``model/``, so that a test which
compares both finds a slip in either. Numbers of the rules appear here as literals on purpose.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import floor, isfinite

HALF = Fraction(1, 2)
FP4_MAGNITUDES = [Fraction(n, 2) for n in (0, 1, 2, 3, 4, 6, 8, 12)]


@dataclass(frozen=True)
class Block:
    """32 integer codes and the E8M0 scale byte they share; 255 marks a block that held a NaN or an infinity."""

    codes: tuple[int, ...]
    scale: int


Row = Sequence[Block]


def two_to(power: int) -> Fraction:
    return Fraction(1 << power) if power >= 0 else Fraction(1, 1 << -power)


def log2_floor(value: Fraction) -> int:
    """Largest p with 2**p <= value, for value > 0."""
    power = value.numerator.bit_length() - value.denominator.bit_length()
    return power if two_to(power) <= value else power - 1


def nearest_fp4(value: Fraction) -> int:
    """Doubled E2M1 magnitude nearest to ``value`` >= 0; of two equally near the one whose mantissa bit is 0."""
    def preference(index: int) -> tuple[Fraction, int]:
        return abs(FP4_MAGNITUDES[index] - value), index & 1  # E2M1 codes 0..7: the low bit is the mantissa bit

    return int(2 * FP4_MAGNITUDES[min(range(8), key=preference)])


def quantize_block(values: Sequence[float], fmt: str = "mxint8") -> Block:
    """One block of 32 floats."""
    if not all(isfinite(v) for v in values):
        return Block((0,) * len(values), 255)
    exact = [Fraction(v) for v in values]
    peak = max(abs(v) for v in exact)
    if peak == 0:
        return Block((0,) * len(values), 0)
    largest_exponent = {"mxint8": 0, "mxfp4": 2}[fmt]
    exponent = min(127, max(-127, log2_floor(peak) - largest_exponent))
    codes = []
    for value in exact:
        element = value / two_to(exponent)
        if fmt == "mxint8":
            codes.append(min(127, max(-127, round(element * 64))))  # round() of a fraction is ties-to-even
        else:
            codes.append(nearest_fp4(abs(element)) * (-1 if element < 0 else 1))
    return Block(tuple(codes), exponent + 127)


def quantize_row(values: Sequence[float], fmt: str = "mxint8") -> list[Block]:
    return [quantize_block(values[k:k + 32], fmt) for k in range(0, len(values), 32)]


def finite_scale(block: Block) -> int:
    return 0 if block.scale == 255 else block.scale


def dot(x: Row, w: Row, w_largest: int) -> tuple[int, int]:
    """Aligned accumulator and exponent of one output; ``w_largest`` is the largest scale byte of the whole matrix."""
    top = max(finite_scale(block) for block in x) + w_largest
    total = 0
    for a, b in zip(x, w, strict=True):
        product = sum(p * q for p, q in zip(a.codes, b.codes, strict=True))
        drop = top - finite_scale(a) - finite_scale(b)
        total += floor(Fraction(product * 2**12) / two_to(drop) + HALF)
    return total, top


def value_of(total: int, top: int) -> Fraction:
    """What an accumulator means: 127 off each scale byte, 6 fraction bits in each code, 12 guard bits."""
    return total * two_to(top - 2 * 127 - 2 * 6 - 12)


def matrix_times(x: Row, matrix: Sequence[Row]) -> list[tuple[int, int]]:
    largest = max(finite_scale(block) for row in matrix for block in row)
    return [dot(x, row, largest) for row in matrix]


@cache
def true_sigmoid(numerator: int) -> Fraction:
    """sigmoid(-numerator/32) by the series of exp, to far more than the 40 bits that rounding a knot can need."""
    term, total, k = 1 << 300, 0, 0
    while term:
        total += term
        k += 1
        term = term * numerator // (32 * k)
    return 1 / (1 + Fraction(total, 1 << 300))


@cache
def segment_shift(whole: int) -> int:
    """Largest s for which sigmoid(-whole) * 2**s is at most 1."""
    shift = 0
    while true_sigmoid(32 * whole) * 2 ** (shift + 1) <= 1:
        shift += 1
    return shift


@cache
def knot(whole: int, index: int) -> int:
    """sigmoid(-(whole + index/32)) in units of 2**-(16 + shift of the segment), to nearest; index 0..32."""
    return round(true_sigmoid(32 * whole + index) * 2 ** (16 + segment_shift(whole)))


def silu_parts(gate: Fraction) -> tuple[int, int, int, int]:
    """Gate mantissa, its exponent, sigmoid factor and its exponent, all magnitudes."""
    power = log2_floor(abs(gate))
    mantissa = floor(abs(gate) / two_to(power - 15))
    kept = mantissa * two_to(power - 15)
    if kept >= 16:
        return mantissa, power - 15, (0 if gate < 0 else 2**16), -16
    steps = floor(kept * 2**12)
    whole, rest = divmod(steps, 2**12)
    index, fraction = divmod(rest, 2**7)
    left, right = knot(whole, index), knot(whole, index + 1)
    factor = left - (left - right) * fraction // 2**7
    shift = segment_shift(whole)
    if gate < 0:
        return mantissa, power - 15, factor, -16 - shift
    return mantissa, power - 15, 2**16 - factor // 2**shift, -16


def swiglu(gate: Fraction, up: Fraction) -> Fraction:
    """silu(gate) * up by the rules: truncated 16-bit mantissas, table sigmoid, product cut by 15 bits."""
    if gate == 0 or up == 0:
        return Fraction(0)
    g, g_exponent, factor, f_exponent = silu_parts(gate)
    silu = g * factor // 2**15 * two_to(g_exponent + f_exponent + 15)
    power = log2_floor(abs(up))
    magnitude = silu * floor(abs(up) / two_to(power - 15)) * two_to(power - 15)
    return -magnitude if (gate < 0) != (up < 0) else magnitude


def requantize(values: Sequence[Fraction]) -> Block:
    """32 hidden values to MXINT8: the rule of quantisation on exact fractions."""
    peak = max(abs(v) for v in values)
    exponent = -127 if peak == 0 else min(127, max(-127, log2_floor(peak)))
    return Block(tuple(min(127, max(-127, round(v * 64 / two_to(exponent)))) for v in values), exponent + 127)


def bf16_word(value: Fraction) -> int:
    """BF16 word: ties to even, flush below 2**-126 (before rounding) to a signed zero, overflow to infinity."""
    if value == 0:
        return 0
    sign = 0x8000 if value < 0 else 0
    power = log2_floor(abs(value))
    if power < -126:
        return sign
    mantissa = round(abs(value) / two_to(power - 7))
    if mantissa == 256:
        mantissa, power = 128, power + 1
    return sign | (0x7F80 if power > 127 else (power + 127) << 7 | (mantissa - 128))


@dataclass(frozen=True)
class SlowResult:
    """One row: ``y`` BF16 words, ``nan``, hidden blocks, and every accumulator value met on the way."""

    y: list[int]
    nan: bool
    hidden: list[Block]
    accumulators: list[int]


def mlp(x: Row, gate: Sequence[Row], up: Sequence[Row], down: Sequence[Row]) -> SlowResult:
    """The whole MLP for one row of activations."""
    gates, ups = matrix_times(x, gate), matrix_times(x, up)
    values = [swiglu(value_of(*g), value_of(*u)) for g, u in zip(gates, ups, strict=True)]
    hidden = [requantize(values[k:k + 32]) for k in range(0, len(values), 32)]
    outputs = matrix_times(hidden, down)
    nan = any(block.scale == 255 for rows in ([x], gate, up, down) for row in rows for block in row)
    y = [0x7FC0 if nan else bf16_word(value_of(*output)) for output in outputs]
    return SlowResult(y, nan, hidden, [total for total, _ in (*gates, *ups, *outputs)])

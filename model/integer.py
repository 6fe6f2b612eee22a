"""The integer MLP, bit for bit as the hardware computes it: the golden model. numpy only.

``mlp`` takes MXINT8 activations and weights and returns BF16 words. Sums are exact and order-independent: every block
product is aligned to one exponent per (token, matrix) before it is added. docs/numerics.md derives each constant and
states the error it adds. The RTL imports its constants and tables from here.
"""

from dataclasses import dataclass
from decimal import Decimal, localcontext

import numpy as np

from model.mx import BLOCK, FORMATS, SCALE_BIAS, SCALE_NAN, quantize

GUARD_BITS = 12
"""Bits kept below the unit of the largest aligned block product; lower ones are rounded off, halves upwards."""
PRODUCT_BITS = 20
"""Signed width of one exact block product sum: 32 * 127 * 127 < 2**19."""
MAX_BLOCKS = 1024
"""Longest reduction, in blocks of 32 (32,768 elements)."""
ACCUMULATOR_BITS = PRODUCT_BITS + GUARD_BITS + 10
ACCUMULATOR_EXPONENT = -(2 * SCALE_BIAS + 2 * FORMATS["mxint8"].fraction_bits + GUARD_BITS)
"""An accumulator LSB is worth 2**(largest x scale byte + largest w scale byte + this)."""
SHIFT_LIMIT = PRODUCT_BITS + GUARD_BITS
"""A right shift by the full width rounds every aligned product to 0, as any longer one does."""

MANTISSA_BITS = 16
"""Significant bits of gate and up after normalisation (truncated magnitude)."""
SIGMOID_INDEX_BITS, SIGMOID_FRACTION_BITS = 5, 7
"""Table intervals per unit of |gate| (2**5) and interpolation bits inside one interval."""
SIGMOID_RANGE = 16
"""|gate| from here on: sigmoid is 0 on the negative and 1 on the positive side."""
SIGMOID_BITS = 16
SILU_SHIFT = 15
"""gate mantissa (16 bits) * sigmoid (17 bits) drops this many bits: 17 remain."""

BF16_NAN, BF16_INF = 0x7FC0, 0x7F80


def _sigmoid_table() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``base, delta [512]`` and ``shift [16]``: sigmoid(-a) = (base - delta * f) * 2**-(16 + shift) inside an interval.

    ``shift`` depends on the integer part of a only and keeps base above 2**13, so that small sigmoids stay precise.
    Decimal arithmetic, so that the table is the same on every machine.
    """
    steps = 1 << SIGMOID_INDEX_BITS
    base, delta, shift = [], [], []
    with localcontext() as context:
        context.prec = 40

        def sigmoid(numerator: int) -> Decimal:
            return 1 / (1 + (Decimal(numerator) / steps).exp())

        for whole in range(SIGMOID_RANGE):
            start, scale = sigmoid(whole * steps), 0
            while start * 2 ** (scale + 1) <= 1:
                scale += 1
            shift.append(scale)
            knots = [int((sigmoid(whole * steps + j) * 2 ** (SIGMOID_BITS + scale)).to_integral_value())
                     for j in range(steps + 1)]
            base += knots[:-1]
            delta += [a - b for a, b in zip(knots, knots[1:])]
    return np.array(base, dtype=np.int64), np.array(delta, dtype=np.int64), np.array(shift, dtype=np.int64)


SIGMOID_BASE, SIGMOID_DELTA, SIGMOID_SHIFT = _sigmoid_table()


@dataclass(frozen=True)
class MxMatrix:
    """MXINT8 codes ``int8 [rows, n]`` with scale bytes ``uint8 [rows, n/32]``, blocks along the reduction axis."""

    codes: np.ndarray
    scales: np.ndarray

    def __post_init__(self) -> None:
        if (self.codes.dtype, self.scales.dtype) != (np.int8, np.uint8):
            raise ValueError(f"codes must be int8 and scales uint8, not {self.codes.dtype} and {self.scales.dtype}")
        rows_of_blocks = self.codes.shape[:1] + tuple(n // BLOCK for n in self.codes.shape[1:])
        if self.codes.ndim != 2 or self.codes.shape[1] % BLOCK or self.scales.shape != rows_of_blocks:
            raise ValueError(f"codes must be [rows, n] with scales [rows, n/{BLOCK}], not {self.codes.shape} "
                             f"with {self.scales.shape}")

    @classmethod
    def from_float(cls, values: np.ndarray) -> "MxMatrix":
        return cls(*quantize(values))

    @property
    def largest_scale(self) -> int:
        """Largest scale byte of the matrix, NaN blocks left out (0 when there is none)."""
        return int(np.where(self.scales == SCALE_NAN, 0, self.scales).max(initial=0))


@dataclass(frozen=True)
class MlpWeights:
    """One layer's SwiGLU weights: gate and up ``[intermediate, hidden]``, down ``[hidden, intermediate]``."""

    gate: MxMatrix
    up: MxMatrix
    down: MxMatrix

    def __post_init__(self) -> None:
        gate, up, down = self.gate.codes.shape, self.up.codes.shape, self.down.codes.shape
        if up != gate or down != gate[::-1]:
            raise ValueError(f"gate and up must be [intermediate, hidden] and down [hidden, intermediate], "
                             f"not {gate}, {up} and {down}")

    @property
    def hidden(self) -> int:
        return self.gate.codes.shape[1]

    @property
    def intermediate(self) -> int:
        return self.gate.codes.shape[0]


@dataclass(frozen=True)
class MlpResult:
    """``y`` BF16 words uint16 ``[rows, hidden]``; ``nan`` bool ``[rows]``; ``hidden_codes`` the requantised SwiGLU."""

    y: np.ndarray
    nan: np.ndarray
    hidden_codes: MxMatrix


def floor_log2(value: np.ndarray) -> np.ndarray:
    """Position of the leading one of positive int64 values below 2**53; -1 for zero."""
    return np.frexp(np.asarray(value).astype(np.float64))[1].astype(np.int64) - 1


def shift_round_even(magnitude: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """``magnitude >> shift`` for non-negative int64 and shift 0..62, rounded to nearest, ties to even."""
    kept = magnitude >> shift
    rest = magnitude - (kept << shift)
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    up = (shift > 0) & ((rest > half) | ((rest == half) & (kept & 1 == 1)))
    return kept + up


def accumulate(x: MxMatrix, w: MxMatrix) -> tuple[np.ndarray, np.ndarray]:
    """Aligned sums of ``x [rows, n]`` times ``w [outputs, n]``.

    Returns ``acc`` int64 ``[rows, outputs]`` (fits ACCUMULATOR_BITS) and ``exponent`` int64 ``[rows]``, the sum of the
    largest scale bytes of the row and of the matrix; the value is ``acc * 2**(exponent + ACCUMULATOR_EXPONENT)``.
    Each block product sum P enters as floor(P * 2**GUARD_BITS / 2**(exponent - sx - sw) + 1/2).
    Raises ValueError for reductions that differ or are outside 1..MAX_BLOCKS blocks.
    """
    rows, outputs, blocks = len(x.codes), len(w.codes), x.scales.shape[1]
    if not 1 <= blocks <= MAX_BLOCKS or w.scales.shape[1] != blocks:
        raise ValueError(f"reduction of {blocks} blocks against {w.scales.shape[1]}; "
                         f"they must agree and be 1..{MAX_BLOCKS}")
    x_scales = np.where(x.scales == SCALE_NAN, 0, x.scales).astype(np.int32)
    w_scales = np.where(w.scales == SCALE_NAN, 0, w.scales).astype(np.int32)
    x_largest = x_scales.max(axis=1)
    x_drop = (x_largest[:, None] - x_scales).T[:, :, None]
    # float32 holds every partial sum exactly (below 2**24) and reaches the fast matrix product.
    x_blocks = x.codes.reshape(rows, blocks, BLOCK).transpose(1, 0, 2).astype(np.float32)
    acc = np.empty((rows, outputs), dtype=np.int64)
    chunk = max(1, (1 << 23) // max(1, rows * blocks))
    for start in range(0, outputs, chunk):
        part = slice(start, min(start + chunk, outputs))
        w_blocks = w.codes[part].reshape(-1, blocks, BLOCK).transpose(1, 2, 0).astype(np.float32)
        product = np.matmul(x_blocks, w_blocks).astype(np.int32)
        drop = x_drop + (w.largest_scale - w_scales[part]).T[:, None, :]
        acc[:, part] = _align(product << GUARD_BITS, drop).sum(axis=0, dtype=np.int64)
    return acc, x_largest.astype(np.int64) + w.largest_scale


def _align(product: np.ndarray, drop: np.ndarray) -> np.ndarray:
    """``product`` int32 shifted right by ``drop`` >= 0 bits, halves rounded upwards (one carry bit in hardware)."""
    doubled = product >> np.maximum(np.minimum(drop, SHIFT_LIMIT) - 1, 0)
    return np.where(drop == 0, product, (doubled >> 1) + (doubled & 1))


def normalise(acc: np.ndarray, exponent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split ``acc`` into ``negative`` bool, ``mantissa`` int64 (0 or MANTISSA_BITS bits, truncated) and ``power``.

    |value| is mantissa * 2**(power - MANTISSA_BITS + 1); power is floor(log2 |value|), meaningless for zero.
    """
    magnitude = np.abs(acc)
    lead = floor_log2(magnitude)
    excess = lead - (MANTISSA_BITS - 1)
    mantissa = np.where(excess >= 0, magnitude >> np.maximum(excess, 0), magnitude << np.maximum(-excess, 0))
    return acc < 0, mantissa, lead + exponent + ACCUMULATOR_EXPONENT


def sigmoid(negative: np.ndarray, mantissa: np.ndarray, power: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sigmoid of a normalised gate as ``(factor, shift)``: factor * 2**-(SIGMOID_BITS + shift), factor <= 2**16."""
    bits = SIGMOID_INDEX_BITS + SIGMOID_FRACTION_BITS
    big = (power >= 4) & (mantissa > 0)
    right = np.clip(MANTISSA_BITS - 1 - bits - power, 0, 63)
    a = np.where(big, 0, mantissa >> right)
    index, fraction = a >> SIGMOID_FRACTION_BITS, a & ((1 << SIGMOID_FRACTION_BITS) - 1)
    factor = SIGMOID_BASE[index] - ((SIGMOID_DELTA[index] * fraction) >> SIGMOID_FRACTION_BITS)
    shift = SIGMOID_SHIFT[index >> SIGMOID_INDEX_BITS]
    one = 1 << SIGMOID_BITS
    positive_factor = np.where(big, one, one - (factor >> shift))
    return np.where(negative, np.where(big, 0, factor), positive_factor), np.where(negative, shift, 0)


def swiglu(gate: np.ndarray, gate_exponent: np.ndarray, up: np.ndarray, up_exponent: np.ndarray) -> MxMatrix:
    """silu(gate) * up, requantised to MXINT8 per 32 outputs; accumulators ``[rows, n]``, exponents ``[rows]``."""
    g_negative, g, g_power = normalise(gate, gate_exponent[:, None])
    u_negative, u, u_power = normalise(up, up_exponent[:, None])
    factor, shift = sigmoid(g_negative, g, g_power)
    silu = (g * factor) >> SILU_SHIFT
    magnitude = silu * u
    # |h| = magnitude * 2**weight
    weight = (g_power - (MANTISSA_BITS - 1) - SIGMOID_BITS - shift + SILU_SHIFT) + (u_power - (MANTISSA_BITS - 1))
    return _requantise(g_negative ^ u_negative, magnitude, weight)


def _requantise(negative: np.ndarray, magnitude: np.ndarray, weight: np.ndarray) -> MxMatrix:
    rows, width = magnitude.shape
    shape = (rows, width // BLOCK, BLOCK)
    lowest = -(1 << 20)
    power = np.where(magnitude > 0, floor_log2(magnitude) + weight, lowest).reshape(shape).max(axis=2)
    exponent = np.clip(power, -SCALE_BIAS, SCALE_BIAS)
    right = np.repeat(exponent, BLOCK, axis=1) - FORMATS["mxint8"].fraction_bits - weight
    # The leading one of a non-zero magnitude is at bit 28 or above, so a shift under 22 can only mean a code over 127.
    code = np.minimum(shift_round_even(magnitude, np.clip(right, 0, 62)), FORMATS["mxint8"].largest)
    codes = np.where(negative, -code, code).astype(np.int8)
    return MxMatrix(codes, (exponent + SCALE_BIAS).astype(np.uint8))


def to_bf16(acc: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """BF16 words uint16 of accumulators ``[rows, n]``: ties to even, overflow to infinity, below 2**-126 to zero."""
    magnitude = np.abs(acc)
    lead = floor_log2(magnitude)
    power = lead + exponent[:, None] + ACCUMULATOR_EXPONENT
    rounded = np.where(lead >= 7, shift_round_even(magnitude, np.maximum(lead - 7, 0)),
                       magnitude << np.maximum(7 - lead, 0))
    # A mantissa that rounds up to 256 carries into the exponent field by plain addition.
    word = ((power + 126) << 7) + rounded
    word = np.where((magnitude == 0) | (power < -126), 0, np.minimum(word, BF16_INF))
    return (word | np.where(acc < 0, 0x8000, 0)).astype(np.uint16)


def mlp(x: MxMatrix, weights: MlpWeights) -> MlpResult:
    """The whole SwiGLU MLP: ``down(silu(gate(x)) * up(x))`` for ``x`` of ``[rows, hidden]``.

    A NaN block in a row of x, or in any weight, gives BF16 NaN in every output of the rows it reaches and sets ``nan``.
    """
    hidden = swiglu(*accumulate(x, weights.gate), *accumulate(x, weights.up))
    acc, exponent = accumulate(hidden, weights.down)
    bad_weights = any((m.scales == SCALE_NAN).any() for m in (weights.gate, weights.up, weights.down))
    nan = (x.scales == SCALE_NAN).any(axis=1) | bad_weights
    return MlpResult(np.where(nan[:, None], BF16_NAN, to_bf16(acc, exponent)).astype(np.uint16), nan, hidden)


def bf16_to_float(words: np.ndarray) -> np.ndarray:
    """float32 values of BF16 words (uint16)."""
    return (words.astype(np.uint32) << 16).view(np.float32)

"""The integer MLP against the slow definition: same bits on every kind of data, and the bounds numerics.md states."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model import integer
from model.integer import ACCUMULATOR_BITS, BF16_NAN, GUARD_BITS, MAX_BLOCKS, MlpWeights, MxMatrix, bf16_to_float, mlp
from model.mx import BLOCK, SCALE_NAN, dequantize
from tests.model import slow_mlp

SIGMOID_RELATIVE_ERROR = 2.0**-11
"""Bound stated in docs/numerics.md for |gate| < 16."""
SIGMOID_ABSOLUTE_ERROR = 1.2e-7
"""Bound stated there for |gate| >= 16."""


def as_rows(matrix: MxMatrix) -> list[list[slow_mlp.Block]]:
    return [[slow_mlp.Block(tuple(c), s) for c, s in zip(codes.reshape(-1, BLOCK).tolist(), scales.tolist())]
            for codes, scales in zip(matrix.codes, matrix.scales)]


def assert_same_bits(x: MxMatrix, weights: MlpWeights, where: str) -> None:
    """Hidden codes, BF16 words and the NaN flag of every row equal the slow definition's; accumulators fit."""
    result = mlp(x, weights)
    slow_weights = [as_rows(m) for m in (weights.gate, weights.up, weights.down)]
    for row, blocks in enumerate(as_rows(x)):
        want = slow_mlp.mlp(blocks, *slow_weights)
        assert as_rows(result.hidden_codes)[row] == want.hidden, f"{where}: hidden of row {row}"
        got = result.y[row].tolist()
        differing = next((i for i, (a, b) in enumerate(zip(got, want.y, strict=True)) if a != b), None)
        assert differing is None, (
            f"{where}: row {row} output {differing}: {got[differing]:#x} instead of {want.y[differing]:#x}")
        assert bool(result.nan[row]) == want.nan, f"{where}: nan of row {row}"
        assert max(map(abs, want.accumulators)) < 1 << (ACCUMULATOR_BITS - 1), f"{where}: row {row}"


def random_case(rng, draw, rows=2, hidden=64, intermediate=64, gain=1.0) -> tuple[MxMatrix, MlpWeights]:
    """An MLP whose operands come from ``draw(shape)``; ``gain`` scales the gate's and up's results."""
    weight_gain = gain / np.sqrt(hidden)
    return MxMatrix.from_float(draw((rows, hidden))), MlpWeights(
        MxMatrix.from_float(draw((intermediate, hidden)) * weight_gain),
        MxMatrix.from_float(draw((intermediate, hidden)) * weight_gain),
        MxMatrix.from_float(draw((hidden, intermediate)) / np.sqrt(intermediate)))


def constant(rows: int, width: int, codes, scale=127) -> MxMatrix:
    """A matrix of one code pattern (repeated along each row) and one scale byte."""
    return MxMatrix(np.tile(np.resize(np.array(codes, np.int8), width), (rows, 1)),
                    np.full((rows, width // BLOCK), scale, np.uint8))


# Same bits as the slow definition

@pytest.mark.parametrize("gain", [0.1, 1.0, 8.0])
def test_gaussian(gain):
    seed = 30
    rng = np.random.default_rng(seed)
    assert_same_bits(*random_case(rng, rng.standard_normal, gain=gain), f"seed {seed}, gain {gain}")


def test_heavy_tails_with_thousand_sigma_spikes():
    seed = 31
    rng = np.random.default_rng(seed)

    def draw(shape):
        values = rng.standard_t(2, shape)
        return np.where(rng.random(shape) < 0.01, 1000.0 * rng.choice([-1, 1], shape), values)

    assert_same_bits(*random_case(rng, draw, gain=0.01), f"seed {seed}")
    assert_same_bits(*random_case(rng, draw), f"seed {seed}, saturated gates")


def test_scales_far_apart_inside_one_reduction():
    seed = 32
    rng = np.random.default_rng(seed)
    x, weights = random_case(rng, lambda s: rng.standard_normal(s) * 2.0 ** rng.integers(-30, 1, s))
    for matrix in (x, weights.gate, weights.up, weights.down):  # drops of 0 to more than the accumulator's width
        matrix.scales[:] = np.clip(matrix.scales - rng.integers(0, 40, matrix.scales.shape), 0, 254)
    assert_same_bits(x, weights, f"seed {seed}")


EXTREMES = [(127,), (-127,), (127, -127), (1,), (0,)]


# -128 is never produced, but a flipped bit in memory can make one of a weight.
@pytest.mark.parametrize("pattern", list(itertools.product(EXTREMES, [*EXTREMES, (-128,)])))
def test_extreme_codes(pattern):
    x_codes, w_codes = pattern
    for scale in (100, 122, 127):
        weights = MlpWeights(constant(32, 64, w_codes, scale), constant(32, 64, w_codes, scale),
                             constant(64, 32, w_codes, scale))
        assert_same_bits(constant(1, 64, x_codes, scale), weights, f"{pattern}, scale {scale}")


@pytest.mark.parametrize("x_scale, w_scale", [(0, 0), (254, 254), (254, 0), (0, 254), (64, 127), (190, 130)])
def test_ends_of_the_scale_range(x_scale, w_scale):
    seed = 33
    rng = np.random.default_rng(seed)

    def matrix(rows, width, scale):
        return MxMatrix(rng.integers(-127, 128, (rows, width)).astype(np.int8),
                        np.full((rows, width // BLOCK), scale, np.uint8))

    weights = MlpWeights(matrix(32, 64, w_scale), matrix(32, 64, w_scale), matrix(64, 32, w_scale))
    assert_same_bits(matrix(1, 64, x_scale), weights, f"seed {seed}, scales {x_scale}, {w_scale}")


def test_zero_rows_zero_weights_and_no_rows():
    zero = constant(1, 64, [0], 0)
    rng = np.random.default_rng(34)
    x, weights = random_case(rng, rng.standard_normal)
    assert_same_bits(zero, weights, "zero x")
    nothing = MlpWeights(constant(64, 64, [0], 0), constant(64, 64, [0], 0), constant(64, 64, [0], 0))
    assert_same_bits(x, nothing, "zero weights")
    empty = mlp(MxMatrix(np.zeros((0, 64), np.int8), np.zeros((0, 2), np.uint8)), weights)
    assert empty.y.shape == (0, 64) and empty.nan.shape == (0,)


def test_float32_subnormal_and_huge_operands():
    seed = 35
    rng = np.random.default_rng(seed)
    for size in (2.0**-149, 2.0**-130, 2.0**127):
        x, weights = random_case(rng, rng.standard_normal)
        values = np.clip(rng.standard_normal((2, 64)), -1.9, 1.9).astype(np.float32) * np.float32(size)
        assert_same_bits(MxMatrix.from_float(values), weights, f"seed {seed}, size {size}")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_activation_reaches_its_row_only(bad):
    seed = 36
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((3, 64))
    _, weights = random_case(rng, rng.standard_normal)
    clean = mlp(MxMatrix.from_float(values), weights)
    values[1, 5] = bad
    x = MxMatrix.from_float(values)
    result = mlp(x, weights)
    assert result.nan.tolist() == [False, True, False]
    assert (result.y[1] == BF16_NAN).all() and np.isnan(bf16_to_float(result.y[1])).all()
    assert (result.y[[0, 2]] == clean.y[[0, 2]]).all()
    assert_same_bits(x, weights, f"seed {seed}")


@pytest.mark.parametrize("name", ["gate", "up", "down"])
def test_one_bad_weight_reaches_every_row(name):
    seed = 37
    rng = np.random.default_rng(seed)
    x, weights = random_case(rng, rng.standard_normal)
    getattr(weights, name).scales[3, 1] = SCALE_NAN
    assert mlp(x, weights).nan.all() and (mlp(x, weights).y == BF16_NAN).all()
    assert_same_bits(x, weights, f"seed {seed}, {name}")


codes = st.one_of(st.integers(-127, 127), st.sampled_from([-127, 127, 0, 1, -1, 64, -64]))


@st.composite
def matrices(draw, rows: int, width: int):
    low = draw(st.integers(0, 254))
    high = draw(st.integers(low, min(254, low + 45)))
    pool = draw(st.lists(codes, min_size=64, max_size=64))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return MxMatrix(rng.choice(np.array(pool, np.int8), (rows, width)),
                    rng.integers(low, high + 1, (rows, width // BLOCK)).astype(np.uint8))


@given(x=matrices(1, 64), gate=matrices(32, 64), up=matrices(32, 64), down=matrices(64, 32))
@settings(max_examples=40)
def test_any_operands_equal_the_slow_definition(x, gate, up, down):
    assert_same_bits(x, MlpWeights(gate, up, down), "hypothesis")


# Accumulation

def aligned_by_rule(product: int, drop: int) -> int:
    return (2 * (product << GUARD_BITS) + (1 << drop)) // (2 << drop)


@pytest.mark.parametrize("product", [1, -1, 3, -3, 127 * 127 * 32, -127 * 127 * 32, 4096, -4096, 12345, -12345])
def test_alignment_rounds_halves_upwards_at_every_shift(product):
    shifts = np.arange(0, 70)
    got = integer._align(np.full(70, product << GUARD_BITS, np.int32), shifts)
    assert got.tolist() == [aligned_by_rule(product, int(shift)) for shift in shifts]


@pytest.mark.parametrize("sign", [1, -1])
def test_longest_reduction_fills_the_accumulator_without_overflow(sign):
    width = MAX_BLOCKS * BLOCK
    x, w = constant(1, width, [127], 254), constant(2, width, [127 * sign], 254)
    acc, exponent = integer.accumulate(x, w)
    assert acc[0, 0] == sign * MAX_BLOCKS * BLOCK * 127 * 127 << GUARD_BITS
    assert 1 << (ACCUMULATOR_BITS - 2) < abs(int(acc[0, 0])) < 1 << (ACCUMULATOR_BITS - 1)
    slow, top = slow_mlp.dot(as_rows(x)[0], as_rows(w)[0], 254)
    assert (acc[0, 0], exponent[0]) == (slow, top)


def test_longest_reduction_equals_the_slow_definition():
    seed = 38
    rng = np.random.default_rng(seed)
    width = MAX_BLOCKS * BLOCK
    x, w = MxMatrix.from_float(rng.standard_t(2, (1, width))), MxMatrix.from_float(rng.standard_normal((8, width)))
    acc, exponent = integer.accumulate(x, w)
    for output, row in enumerate(as_rows(w)):
        slow, top = slow_mlp.dot(as_rows(x)[0], row, w.largest_scale)
        assert (int(acc[0, output]), int(exponent[0])) == (slow, top), f"seed {seed}, output {output}"


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)
def test_permuted_blocks_give_the_same_bits(seed):
    rng = np.random.default_rng(seed)
    x, w = (MxMatrix.from_float(rng.standard_t(2, s) * 2.0 ** rng.integers(-12, 12, s)) for s in ((3, 512), (40, 512)))
    order = rng.permutation(16)

    def permuted(matrix):
        blocks = matrix.codes.reshape(len(matrix.codes), 16, BLOCK)[:, order]
        return MxMatrix(blocks.reshape(matrix.codes.shape), matrix.scales[:, order])

    acc, exponent = integer.accumulate(x, w)
    again, same_exponent = integer.accumulate(permuted(x), permuted(w))
    assert (acc == again).all() and (exponent == same_exponent).all(), f"seed {seed}"


def test_rows_do_not_depend_on_their_neighbours():
    seed = 39
    rng = np.random.default_rng(seed)
    x, weights = random_case(rng, rng.standard_normal, rows=5)
    together = mlp(x, weights)
    for row in range(5):
        alone = mlp(MxMatrix(x.codes[row:row + 1], x.scales[row:row + 1]), weights)
        assert (alone.y[0] == together.y[row]).all(), f"seed {seed}, row {row}"


def test_dropped_bits_stay_within_the_stated_bound():
    """Each block adds at most half an accumulator LSB: |error| <= blocks / 2 LSB against the exact dot product."""
    seed = 40
    rng = np.random.default_rng(seed)
    x, w = (MxMatrix.from_float(rng.standard_normal((rows, 2048)) * 2.0 ** rng.integers(-20, 1, (rows, 1)))
            for rows in (4, 16))
    acc, exponent = integer.accumulate(x, w)
    exact = dequantize(x.codes, x.scales) @ dequantize(w.codes, w.scales).T
    unit = 2.0 ** (exponent[:, None] + integer.ACCUMULATOR_EXPONENT)
    assert (np.abs(acc * unit - exact) <= unit * 2048 / BLOCK / 2).all(), f"seed {seed}"


# Epilogue

def test_shift_round_even():
    magnitudes = np.arange(0, 200)
    for shift in (0, 1, 2, 5, 62):
        got = integer.shift_round_even(magnitudes, np.full(200, shift))
        assert got.tolist() == [round(slow_mlp.Fraction(m, 1 << shift)) for m in range(200)], shift


def test_sigmoid_table_equals_the_slow_knots():
    for whole in range(16):
        assert integer.SIGMOID_SHIFT[whole] == slow_mlp.segment_shift(whole)
        for index in range(32):
            at = 32 * whole + index
            left, right = slow_mlp.knot(whole, index), slow_mlp.knot(whole, index + 1)
            assert (integer.SIGMOID_BASE[at], integer.SIGMOID_DELTA[at]) == (left, left - right), at
            assert right >= 1 << 13
    # Widths the hardware relies on.
    assert integer.SIGMOID_BASE.max() == 1 << 16 and integer.SIGMOID_DELTA.max() < 1 << 11
    assert integer.SIGMOID_DELTA.min() >= 0


def every_gate() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All 2**15 mantissas at every power of two from 2**-20 to 8, positive and negative: every |gate| below 16."""
    mantissa, power = np.meshgrid(np.arange(1 << 15, 1 << 16), np.arange(-20, 4))
    sign = np.repeat([False, True], mantissa.size)
    return sign, np.tile(mantissa.ravel(), 2), np.tile(power.ravel(), 2)


def test_sigmoid_error_over_the_whole_range():
    negative, mantissa, power = every_gate()
    factor, shift = integer.sigmoid(negative, mantissa, power)
    assert (factor >= 0).all() and (factor <= 1 << 16).all()
    gate = np.where(negative, -1, 1) * np.ldexp(mantissa.astype(np.float64), power - 15)
    error = np.abs(np.ldexp(factor.astype(np.float64), -16 - shift) * (1 + np.exp(-gate)) - 1)
    worst = int(error.argmax())
    assert error[worst] <= SIGMOID_RELATIVE_ERROR, f"{error[worst]:.3e} at {gate[worst]}"
    assert error[worst] > SIGMOID_RELATIVE_ERROR / 2, "the stated bound is needlessly wide"


@pytest.mark.parametrize("power", [4, 5, 20, 300])
def test_sigmoid_beyond_its_range_is_zero_or_one(power):
    mantissa = np.array([1 << 15, (1 << 16) - 1])
    powers = np.full(2, power)
    assert [v.tolist() for v in integer.sigmoid(np.array([True, True]), mantissa, powers)][0] == [0, 0]
    assert [v.tolist() for v in integer.sigmoid(np.array([False, False]), mantissa, powers)] == [[65536] * 2, [0, 0]]
    assert 1 / (1 + np.exp(16)) <= SIGMOID_ABSOLUTE_ERROR


def test_normalise_truncates_to_sixteen_bits():
    acc = np.array([[0, 1, -1, 0xFFFF, 0x1FFFF, -0x1FFFF, (1 << 41) - 1]])
    negative, mantissa, power = integer.normalise(acc, np.array([[266]]))
    assert negative.tolist() == [[False, False, True, False, False, True, False]]
    assert mantissa.tolist() == [[0, 1 << 15, 1 << 15, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF]]
    assert power[0, 1:].tolist() == [-12, -12, 3, 4, 4, 28]


def bf16_at(acc: int, exponent: int) -> int:
    return int(integer.to_bf16(np.array([[acc]]), np.array([exponent]))[0, 0])


def test_bf16_rules():
    one = 278  # an accumulator LSB is worth 1 at this exponent
    assert bf16_at(0, one) == 0x0000
    assert bf16_at(1, one) == 0x3F80 and bf16_at(-1, one) == 0xBF80
    assert bf16_at(0x101, one) == 0x4380 and bf16_at(0x103, one) == 0x4382  # ties to even
    assert bf16_at(0x1FF, one) == 0x4400  # rounds up into the next power of two
    assert bf16_at(1, one - 126) == 0x0080 and bf16_at(-1, one - 127) == 0x8000  # smallest normal; flushed
    assert bf16_at((1 << 41) - 1, one - 127 - 40) == 0  # would round up to 2**-126, flushed
    assert bf16_at(0xFF, one + 120) == 0x7F7F and bf16_at(0x1FF, one + 119) == 0x7F80  # largest finite; overflow
    assert bf16_at(-1, one + 200) == 0xFF80


@given(acc=st.integers(-(2**41), 2**41 - 1), exponent=st.integers(0, 508))
def test_bf16_equals_the_slow_definition(acc, exponent):
    assert bf16_at(acc, exponent) == slow_mlp.bf16_word(slow_mlp.value_of(acc, exponent))


@given(gate=st.integers(-(2**41), 2**41 - 1), up=st.integers(-(2**41), 2**41 - 1),
       gate_exponent=st.integers(0, 508), up_exponent=st.integers(0, 508))
def test_swiglu_of_any_accumulators_equals_the_slow_definition(gate, up, gate_exponent, up_exponent):
    rng = np.random.default_rng(41)
    gates = np.concatenate([[gate, -gate], gate // rng.integers(1, 1 << 20, 30)])
    ups = np.concatenate([[up, up], up // rng.integers(1, 1 << 20, 30)])
    result = integer.swiglu(gates[None], np.array([gate_exponent]), ups[None], np.array([up_exponent]))
    values = [slow_mlp.swiglu(slow_mlp.value_of(int(g), gate_exponent), slow_mlp.value_of(int(u), up_exponent))
              for g, u in zip(gates, ups)]
    assert as_rows(result)[0] == [slow_mlp.requantize(values)]


@pytest.mark.parametrize("up_power, blocks", [(0, 150), (130, 20), (145, 20), (-150, 20)])
def test_swiglu_around_the_sigmoid_range_equals_the_slow_definition(up_power, blocks):
    """Enough elements to see each truncated bit; up so large or small that the hidden scale is clamped, too."""
    seed = 42
    rng = np.random.default_rng(seed)
    # Gates of like size in a block, so that small sigmoids, too, meet full-scale codes.
    gates = (rng.uniform(-18, 18, (blocks, 1)) * rng.uniform(0.8, 1, (blocks, 32)) * 2.0**30).astype(np.int64)
    ups = rng.integers(2**39, 2**41, (blocks, 32)) * rng.choice([-1, 1], (blocks, 32))
    gate_exponent, up_exponent = 278 - 30, min(278 + up_power - 30, 508)
    result = integer.swiglu(gates, np.full(blocks, gate_exponent), ups, np.full(blocks, up_exponent))
    for row, got in enumerate(as_rows(result)):
        values = [slow_mlp.swiglu(slow_mlp.value_of(int(g), gate_exponent), slow_mlp.value_of(int(u), up_exponent))
                  for g, u in zip(gates[row], ups[row])]
        assert got == [slow_mlp.requantize(values)], f"seed {seed}, block {row}"


def test_hidden_ties_go_to_even_and_clamp():
    magnitude = np.array([[1 << 32, 0b1000001 << 26, 0b10000001 << 25, 0b10000011 << 25, (1 << 33) - 1, 0] + [0] * 26])
    # The peak (bit 32) sets the scale, codes are in units of 2**26.
    result = integer._requantise(np.zeros((1, 32), bool), magnitude, np.full((1, 32), -32))
    assert result.codes[0, :6].tolist() == [64, 65, 64, 66, 127, 0] and result.scales.tolist() == [[127]]


# Errors

def test_errors_name_the_value_and_what_is_allowed():
    codes_array, scales = np.zeros((2, 64), np.int8), np.zeros((2, 2), np.uint8)
    with pytest.raises(ValueError, match="must be int8 and scales uint8, not float64 and uint8"):
        MxMatrix(codes_array.astype(np.float64), scales)
    with pytest.raises(ValueError, match=r"\[rows, n/32\], not \(2, 64\) with \(2, 1\)"):
        MxMatrix(codes_array, scales[:, :1])
    with pytest.raises(ValueError, match=r"not \(64,\)"):
        MxMatrix(codes_array[0], scales[0])
    matrix = MxMatrix(codes_array, scales)
    with pytest.raises(ValueError, match=r"not \(2, 64\), \(2, 64\) and \(2, 64\)"):
        MlpWeights(matrix, matrix, matrix)
    with pytest.raises(ValueError, match=r"2 blocks against 1; they must agree and be 1\.\.1024"):
        integer.accumulate(matrix, constant(2, 32, [1]))
    with pytest.raises(ValueError, match=r"1025 blocks against 1025"):
        integer.accumulate(constant(1, 1025 * 32, [1]), constant(1, 1025 * 32, [1]))

import numpy as np

from hw.normalise import Normalise
from model.integer import ACCUMULATOR_BITS, MANTISSA_BITS, normalise
from tests.hw.stimulus import assert_same, pack, through

ROWS = 2


def accumulators(rng: np.random.Generator, count: int) -> np.ndarray:
    """Accumulators of every length and both signs, with the ends and the powers of two, int64 ``[count, ROWS]``."""
    low, high = -(1 << (ACCUMULATOR_BITS - 1)), (1 << (ACCUMULATOR_BITS - 1)) - 1
    acc = rng.integers(low, high, (count, ROWS)) >> rng.integers(0, ACCUMULATOR_BITS, (count, ROWS))
    powers = 1 << np.arange(ACCUMULATOR_BITS - 1)
    special = np.concatenate([powers, -powers, powers - 1, 1 - powers, [low, high]])
    acc.ravel()[:len(special)] = special
    return acc


def test_sign_mantissa_power_equal_the_integer_model():
    seed, count = 14, 1000
    rng = np.random.default_rng(seed)
    acc = accumulators(rng, count)
    exponents = rng.integers(0, 509, (count, 2))
    dut = Normalise(ROWS)

    def drive(ctx, item):
        ctx.set(dut.sums.as_value(), pack(acc[item], ACCUMULATOR_BITS))
        ctx.set(dut.exponents.as_value(), pack(exponents[item], 9))

    def sample(ctx):
        return [[ctx.get(field) for field in (o.negative, o.mantissa, o.power, o.sticky)] for o in dut.o]

    got = np.array(through(dut, Normalise.LATENCY, range(count), drive, sample))
    negative, mantissa, power = normalise(acc, exponents)
    assert_same(seed, "signs", got[..., 0], negative)
    assert_same(seed, "mantissas", got[..., 1], mantissa)
    zero = acc == 0
    assert_same(seed, "powers", np.where(zero, 0, got[..., 2]), np.where(zero, 0, power))
    length = np.array([[int(a).bit_length() for a in row] for row in abs(acc)])
    lost = abs(acc) & ((1 << np.maximum(length - MANTISSA_BITS, 0)) - 1)
    assert_same(seed, "sticky bits", got[..., 3], lost != 0)

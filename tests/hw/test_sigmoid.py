import numpy as np

from hw.normalise import Normalised
from hw.sigmoid import Factor, Sigmoid
from model.integer import MANTISSA_BITS, sigmoid
from tests.hw.stimulus import assert_same, normalised_int, pack, through, unpack

LANES = 16


def test_every_table_argument_and_both_ends():
    seed = 15
    rng = np.random.default_rng(seed)
    argument = np.arange(1, 1 << MANTISSA_BITS)
    length = np.array([int(a).bit_length() for a in argument])
    mantissa = argument << (MANTISSA_BITS - length)
    power = length - 1 - 12
    # Below one table unit, above the table, and zeros (whose power means nothing).
    extra = 1 + LANES * 40
    mantissa = np.concatenate([mantissa, rng.integers(1 << 15, 1 << 16, extra)])
    power = np.concatenate([power, rng.choice([-278, -100, -17, -16, -14, -13, 4, 5, 17, 100, 271], extra)])
    mantissa[-100:] = 0
    negative = rng.random(len(mantissa)) < 0.5
    shape = (-1, LANES)
    items = list(zip(negative.reshape(shape), mantissa.reshape(shape), power.reshape(shape)))
    dut = Sigmoid(LANES)
    words = [pack(map(normalised_int, *item), Normalised.size) for item in items]
    got = through(dut, Sigmoid.LATENCY, words, lambda ctx, word: ctx.set(dut.gates.as_value(), word),
                  lambda ctx: unpack(ctx.get(dut.o.as_value()), Factor.size, LANES, signed=False))
    got = np.array(got).ravel()
    factor, shift = sigmoid(negative, mantissa, power)
    factor_bits = Factor.size - 5
    assert_same(seed, "factors", got & ((1 << factor_bits) - 1), factor)
    # The shift of a zero factor scales nothing.
    assert_same(seed, "shifts", np.where(factor == 0, 0, got >> factor_bits), np.where(factor == 0, 0, shift))

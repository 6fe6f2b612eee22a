"""Accumulators to BF16 words: Normalise and ToBf16 in a row against model.integer.to_bf16."""

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.accumulator import sums_layout
from hw.bf16 import ToBf16
from hw.normalise import Normalise
from model.integer import ACCUMULATOR_BITS, BF16_INF, BF16_NAN, to_bf16
from tests.hw.stimulus import assert_same, pack, through, unpack
from tests.hw.test_normalise import ROWS, accumulators


class Epilogue(wiring.Component):
    sums: In(sums_layout(ROWS))
    exponent: In(9)
    nan: In(1)
    words: Out(16 * ROWS)

    def elaborate(self, platform):
        m = Module()
        m.submodules.normalise = normalise = Normalise(ROWS)
        m.submodules.to_bf16 = to_bf16 = ToBf16(ROWS)
        m.d.comb += [
            normalise.sums.eq(self.sums), normalise.exponents.as_value().eq(self.exponent.replicate(2)),
            to_bf16.i.eq(normalise.o), to_bf16.nan.eq(self.nan), self.words.eq(to_bf16.words),
        ]
        return m


def convert(acc, exponent, nan=0):
    dut = Epilogue()

    def drive(ctx, item):
        ctx.set(dut.sums.as_value(), pack(acc[item], ACCUMULATOR_BITS))
        ctx.set(dut.exponent, int(exponent[item]))
        ctx.set(dut.nan, nan)

    return np.array(through(dut, Normalise.LATENCY + ToBf16.LATENCY, range(len(acc)), drive,
                            lambda ctx: unpack(ctx.get(dut.words), 16, ROWS, signed=False)))


def test_words_equal_the_integer_model():
    seed, count = 18, 1500
    rng = np.random.default_rng(seed)
    acc = accumulators(rng, count)
    exponent = rng.integers(0, 509, count)
    # Ties: nine significant bits with the last one set, at every length. Then the neighbourhood of both range ends.
    ties = slice(500, 1000)
    acc[ties] = (2 * rng.integers(128, 256, (500, ROWS)) + 1) << rng.integers(0, 30, (500, ROWS))
    # The last bit of half of them breaks the tie, at long lengths from below the normalised mantissa.
    acc[750:1000] |= 1
    acc[1000:1010], exponent[1000:1010] = (1 << 41) - 1, np.arange(360, 370)
    acc[1010:1020], exponent[1010:1020] = [-(511 << 20), 255 << 20], np.arange(372, 382)
    acc[1020:1030], exponent[1020:1030] = 1 << 20, np.arange(127, 137)
    expected = to_bf16(acc, exponent)
    assert_same(seed, "words", convert(acc, exponent), expected)
    magnitude = expected & 0x7FFF
    assert (magnitude == BF16_INF).any() and (magnitude == BF16_INF - 1).any()
    assert (magnitude[acc != 0] == 0).any() and (magnitude == 0x0080).any()


def test_nan_overrides_every_word():
    acc = accumulators(np.random.default_rng(19), 100)
    assert (convert(acc, np.full(100, 300), nan=1) == BF16_NAN).all()

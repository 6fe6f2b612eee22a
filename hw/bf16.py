"""BF16 conversion of normalised accumulators.

Source: docs/numerics.md, layer output; model.integer.to_bf16 is the reference.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from hw.normalise import POWER_BITS, Normalised
from hw.pipeline import delay
from model.integer import BF16_INF, BF16_NAN

SIGNIFICANT_BITS = 8
FRACTION_BITS = SIGNIFICANT_BITS - 1
LOWEST_NORMAL_POWER = -126


class ToBf16(wiring.Component):
    """Round to nearest, ties to even; overflow to infinity, below 2**-126 to a zero that keeps the sign.

    One row group a cycle, latency :attr:`LATENCY` cycles.

    Members
    -------
    i : :py:`In(ArrayLayout(Normalised, rows))`
    nan : :py:`In(1)`
        Every word becomes NaN.
    words : :py:`Out(ArrayLayout(16, rows))`
    """

    LATENCY = 2

    def __init__(self, rows: int):
        self.rows = rows
        super().__init__({
            "i": In(ArrayLayout(Normalised, rows)), "nan": In(1), "words": Out(ArrayLayout(16, rows)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        nan = delay(m, self.nan, 1, "nan")
        for row in range(self.rows):
            value = self.i[row]
            kept, dropped = value.mantissa[-SIGNIFICANT_BITS:], value.mantissa[:-SIGNIFICANT_BITS]
            up = dropped[-1] & (dropped[:-1].any() | value.sticky | kept[0])
            rounded = Signal(SIGNIFICANT_BITS + 1, name=f"rounded_{row}", reset_less=True)
            field = Signal(POWER_BITS, name=f"field_{row}", reset_less=True)
            zero = Signal(name=f"zero_{row}", reset_less=True)
            m.d.sync += [
                rounded.eq(kept + up),
                # One less than the exponent field: the hidden bit of the mantissa adds the one.
                field.eq(value.power - LOWEST_NORMAL_POWER),
                zero.eq(~value.mantissa[-1] | (value.power < LOWEST_NORMAL_POWER)),
            ]
            negative = delay(m, value.negative, 1, f"negative_{row}")
            magnitude = Signal(POWER_BITS + FRACTION_BITS + 1, name=f"magnitude_{row}")
            word = Signal(16, name=f"word_{row}", reset_less=True)
            m.d.comb += magnitude.eq((field << FRACTION_BITS) + rounded)
            finite = Mux(magnitude > BF16_INF, BF16_INF, magnitude)[:15]
            m.d.sync += word.eq(Mux(nan, BF16_NAN, Cat(Mux(zero, 0, finite), negative)))
            m.d.comb += self.words[row].eq(word)
        return m

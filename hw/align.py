"""Alignment of block sums to the common exponent of their token and matrix.

Source: docs/numerics.md, accumulation; model.integer.accumulate is the reference.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from model.integer import GUARD_BITS, PRODUCT_BITS, SHIFT_LIMIT

SHIFTED_BITS = PRODUCT_BITS + GUARD_BITS
DROP_BITS = 9
"""Sum of two differences of scale bytes."""

Term = StructLayout({"value": signed(SHIFTED_BITS), "carry": 1})
"""An aligned block sum is ``value + carry``; the accumulator's adder takes the carry for free."""


class Align(wiring.Component):
    """``terms[r]`` is ``floor(sums[r] * 2**GUARD_BITS / 2**drop + 1/2)``, drop = x_drop + largest[r % 2] - scales[r].

    One operation a cycle, latency :attr:`LATENCY` cycles from ``sums``. The scales come :attr:`EARLY` cycles before the
    sums they belong to.

    Members
    -------
    x_drop : :py:`In(8)`
        Largest activation scale byte of the row minus that of this block.
    largest : :py:`In(ArrayLayout(8, 2))`
        Largest weight scale byte of the matrix that even, odd rows belong to.
    scales : :py:`In(ArrayLayout(8, rows))`
        Weight scale bytes. Every scale is at most the largest; anything else gives a meaningless sum.
    sums : :py:`In(ArrayLayout(signed(PRODUCT_BITS), rows))`
    terms : :py:`Out(ArrayLayout(Term, rows))`
    """

    EARLY = 2
    LATENCY = 1

    def __init__(self, rows: int):
        self.rows = rows
        super().__init__({
            "x_drop": In(8),
            "largest": In(ArrayLayout(8, 2)),
            "scales": In(ArrayLayout(8, rows)),
            "sums": In(ArrayLayout(signed(PRODUCT_BITS), rows)),
            "terms": Out(ArrayLayout(Term, rows)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        x_drop = Signal(8, reset_less=True)
        m.d.sync += x_drop.eq(self.x_drop)
        for row in range(self.rows):
            w_drop = Signal(8, name=f"w_drop_{row}", reset_less=True)
            drop = Signal(DROP_BITS, name=f"drop_{row}")
            shift = Signal(range(SHIFT_LIMIT + 1), name=f"shift_{row}", reset_less=True)
            m.d.sync += w_drop.eq(self.largest[row % 2] - self.scales[row])
            m.d.comb += drop.eq(x_drop + w_drop)
            m.d.sync += shift.eq(Mux(drop > SHIFT_LIMIT, SHIFT_LIMIT, drop))
            # One bit more than the term: the last bit shifted out is the carry that rounds halves upwards.
            shifted = Signal(signed(SHIFTED_BITS + 1), name=f"shifted_{row}", reset_less=True)
            m.d.sync += shifted.eq(self.sums[row].shift_left(GUARD_BITS + 1) >> shift)
            m.d.comb += [self.terms[row].carry.eq(shifted[0]), self.terms[row].value.eq(shifted[1:].as_signed())]
        return m

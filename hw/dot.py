"""MAC array: every weight row of a beat times one block of activations, an exact sum of 32 products per row.

Source: OCP Microscaling v1.0, section 6.3 (dot product of two MX blocks, before the scales).
"""

from operator import add

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out

from hw.ops import codes_layout
from hw.pipeline import tree
from model.integer import PRODUCT_BITS
from model.mx import BLOCK

SUMMANDS = 8
"""Products added between two registers: three adder levels, short enough for 300 MHz."""
CODE_PRODUCT_BITS = 15
"""Signed width of a product of two codes in -127..127."""
PARTIAL_BITS = CODE_PRODUCT_BITS + 3
"""Signed width of SUMMANDS products."""


class Dot(wiring.Component):
    """``sums[r] = sum over k of codes[k] * weights[r][k]``, exact for codes in -127..127.

    One operation a cycle, latency :attr:`LATENCY` cycles, free running.

    Members
    -------
    codes : :py:`In(codes_layout())`
        Activation codes.
    weights : :py:`In(ArrayLayout(codes_layout(), rows))`
        Weight codes of the same block, one row each.
    sums : :py:`Out(ArrayLayout(signed(PRODUCT_BITS), rows))`
    """

    LATENCY = 3

    def __init__(self, rows: int):
        self.rows = rows
        super().__init__({
            "codes": In(codes_layout()),
            "weights": In(ArrayLayout(codes_layout(), rows)),
            "sums": Out(ArrayLayout(signed(PRODUCT_BITS), rows)),
        })

    def elaborate(self, platform):
        m = Module()
        for row in range(self.rows):
            # One signal a product: the Verilated model keeps each in its own word instead of masking a wide vector.
            products = [Signal(signed(CODE_PRODUCT_BITS), name=f"product_{row}_{k}", reset_less=True)
                        for k in range(BLOCK)]
            partials = [Signal(signed(PARTIAL_BITS), name=f"partial_{row}_{k}", reset_less=True)
                        for k in range(BLOCK // SUMMANDS)]
            m.d.sync += [p.eq(self.codes[k] * self.weights[row][k]) for k, p in enumerate(products)]
            m.d.sync += [p.eq(tree(products[k * SUMMANDS:(k + 1) * SUMMANDS], add)) for k, p in enumerate(partials)]
            total = Signal(signed(PRODUCT_BITS), name=f"sum_{row}", reset_less=True)
            m.d.sync += total.eq(tree(partials, add))
            m.d.comb += self.sums[row].eq(total)
        return m

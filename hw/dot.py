"""MAC array: every weight row of a beat times one block of activations, an exact sum of 32 products per row.

Two rows share a multiplier: ``(odd * 2**18 + even) * code`` holds both products, and so does a sum of eight of them,
whose halves fit 18 signed bits (8 * 127 * 127 < 2**17). A DSP48E2 slice multiplies 27 x 18 bits.

Sources: OCP Microscaling v1.0, section 6.3 (dot product of two MX blocks, before the scales); AMD/Xilinx WP486 (two
INT8 products in a DSP slice).
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
"""Products added between two registers: three adder levels, short enough for 300 MHz, and no overflow of a half."""
HALF_BITS = 18
PAIR_BITS = 2 * HALF_BITS
PACKED_BITS = HALF_BITS + 9
"""Signed width of ``odd * 2**18 + even`` for codes in -127..127."""


class Dot(wiring.Component):
    """``sums[r] = sum over k of codes[k] * weights[r][k]``, exact for codes in -127..127.

    One operation a cycle, free running. ``codes`` come one cycle after the ``weights`` they meet, ``sums``
    :attr:`LATENCY` cycles after ``codes``. ``rows`` is even.

    Members
    -------
    weights : :py:`In(ArrayLayout(codes_layout(), rows))`
        Weight codes of a block, one row each.
    codes : :py:`In(codes_layout())`
        Activation codes of the same block.
    sums : :py:`Out(ArrayLayout(signed(PRODUCT_BITS), rows))`
    """

    LATENCY = 3

    def __init__(self, rows: int):
        self.rows = rows
        super().__init__({
            "weights": In(ArrayLayout(codes_layout(), rows)),
            "codes": In(codes_layout()),
            "sums": Out(ArrayLayout(signed(PRODUCT_BITS), rows)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        codes = [Signal(signed(PAIR_BITS - PACKED_BITS), name=f"code_{k}") for k in range(BLOCK)]
        m.d.comb += [code.eq(self.codes[k]) for k, code in enumerate(codes)]
        # One signal a product: the Verilated model keeps each in its own word instead of masking a wide vector.
        # Sums are taken modulo 2**36 on unsigned signals, which spares it the sign extensions too.
        for row in range(0, self.rows, 2):
            products = []
            for k in range(BLOCK):
                packed = Signal(signed(PACKED_BITS), name=f"packed_{row}_{k}", reset_less=True)
                product = Signal(PAIR_BITS, name=f"product_{row}_{k}", reset_less=True)
                m.d.sync += [
                    packed.eq(self.weights[row + 1][k].shift_left(HALF_BITS) + self.weights[row][k]),
                    product.eq(packed * codes[k]),
                ]
                products.append(product)
            even, odd = [], []
            for k in range(0, BLOCK, SUMMANDS):
                partial = Signal(PAIR_BITS, name=f"partial_{row}_{k}", reset_less=True)
                m.d.sync += partial.eq(tree(products[k:k + SUMMANDS], add))
                even.append(partial[:HALF_BITS].as_signed())
                # A negative even half has borrowed one from the odd half.
                odd.append(partial[HALF_BITS:].as_signed() + partial[HALF_BITS - 1])
            for index, halves in ((row, even), (row + 1, odd)):
                total = Signal(signed(PRODUCT_BITS), name=f"sum_{index}", reset_less=True)
                m.d.sync += total.eq(tree(halves, add))
                m.d.comb += self.sums[index].eq(total)
        return m

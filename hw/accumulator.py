"""Accumulators of every (bank, group, local row): added to by MAC operations, read by drain operations.

Source: docs/numerics.md, accumulation; model.integer.accumulate is the reference.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.align import Term
from hw.config import AcceleratorConfig
from model.integer import ACCUMULATOR_BITS


def sums_layout(rows: int) -> ArrayLayout:
    """Accumulators of one row group."""
    return ArrayLayout(signed(ACCUMULATOR_BITS), rows)


class Accumulator(wiring.Component):
    """Read, add and write back within one cycle, so that operations on the same index may follow each other at once.

    A drain may read an index from the cycle after ``valid``; ``sums`` belongs to the ``read_index`` of the same cycle.

    Members
    -------
    valid : :py:`In(1)`
        Add ``terms`` to the accumulators ``index``, or overwrite them when ``first``.
    index, read_index : :py:`In(range(depth))`
        From :meth:`index_of`.
    terms : :py:`In(ArrayLayout(Term, rows))`
    sums : :py:`Out(sums_layout(rows))`
    """

    def __init__(self, config: AcceleratorConfig):
        self.rows = config.rows
        self.depth = 2 << (ceil_log2(config.groups) + ceil_log2(config.locals))
        super().__init__({
            "valid": In(1),
            "first": In(1),
            "index": In(range(self.depth)),
            "terms": In(ArrayLayout(Term, self.rows)),
            "read_index": In(range(self.depth)),
            "sums": Out(sums_layout(self.rows)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        # Asynchronous reads: distributed RAM, where block RAM would need an interlock for back-to-back operations.
        m.submodules.memory = memory = Memory(shape=sums_layout(self.rows), depth=self.depth, init=[],
                                              attrs={"ram_style": "distributed"})
        write = memory.write_port()
        modify = memory.read_port(domain="comb")
        read = memory.read_port(domain="comb")
        m.d.comb += [
            modify.addr.eq(self.index), write.addr.eq(self.index), write.en.eq(self.valid),
            read.addr.eq(self.read_index), self.sums.eq(read.data),
        ]
        for row in range(self.rows):
            old = Signal(signed(ACCUMULATOR_BITS), name=f"old_{row}")
            m.d.comb += old.eq(Mux(self.first, 0, modify.data[row]))
            m.d.comb += write.data[row].eq(old + self.terms[row].value + self.terms[row].carry)
        return m

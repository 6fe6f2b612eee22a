"""Dynamic Resource Scheduling: maps the slots that compute to cores.

Source: FastCar (arXiv:2505.14709), DRS: a 32-bit Index Register (bit s: 1 = slot s computes) and 32 Mapping Registers.
"""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw import ops
from hw.config import SLOTS, AcceleratorConfig


class Drs(wiring.Component):
    """Rank of every computing slot by prefix sum: core = rank mod cores, local row = rank div cores.

    So cores fill evenly: the busiest has ceil(rows / cores). Fixed latency: with ``decide`` in cycle t the Index
    Register changes in t + 1, everything else in t + 2, announced by ``done``. Outputs hold until the next ``decide``.

    Members
    -------
    decide, compute : index bits to take (bit s: slot s computes).
    done : pulse, the outputs are those of the last ``decide``.
    index : the Index Register.
    placements : the Mapping Registers, with the local row inside the core.
    total : rows that compute. core_rows : rows mapped to each core. busiest : rows of the busiest core (core 0).
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        rows = range(config.locals + 1)
        super().__init__({
            "decide": In(1), "compute": In(SLOTS), "done": Out(1),
            "index": Out(SLOTS), "placements": Out(ops.placements(config)), "total": Out(range(SLOTS + 1)),
            "core_rows": Out(ArrayLayout(rows, config.cores)), "busiest": Out(rows),
        })

    def elaborate(self, platform):
        m = Module()
        cores = self.config.cores
        core_bits = exact_log2(cores)
        indexed = Signal()
        m.d.sync += [indexed.eq(self.decide), self.done.eq(indexed)]
        with m.If(self.decide):
            m.d.sync += self.index.eq(self.compute)

        # Kogge-Stone prefix sums: before[s] = computing slots in 0..s.
        sums = [self.index[slot] for slot in range(SLOTS)]
        distance = 1
        while distance < SLOTS:
            sums = [sums[s] + sums[s - distance] if s >= distance else sums[s] for s in range(SLOTS)]
            distance *= 2
        with m.If(indexed):
            for slot in range(SLOTS):
                rank = Signal(range(SLOTS + 1), name=f"rank_{slot}")
                m.d.comb += rank.eq(sums[slot - 1] if slot else 0)
                m.d.sync += [
                    self.placements[slot].compute.eq(self.index[slot]),
                    self.placements[slot].core.eq(rank[:core_bits]),
                    self.placements[slot].local.eq(rank[core_bits:]),
                ]
            total = Signal.like(self.total, name="row_count")
            m.d.comb += total.eq(sums[-1])
            m.d.sync += self.total.eq(total)
            for core in range(cores):
                m.d.sync += self.core_rows[core].eq((total + (cores - 1 - core)) >> core_bits)
        m.d.comb += self.busiest.eq(self.core_rows[0])
        return m

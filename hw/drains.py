"""Drain side of the schedule: empties the accumulator bank of a finished pass while the next pass fills the other."""

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.config import AcceleratorConfig
from hw.ops import BLOCK_BITS, Phase, drain_op
from model.mx import BLOCK


def pass_info(config: AcceleratorConfig) -> StructLayout:
    """One pass: ``last_group`` index of its last row group, ``block`` of 32 values that its first row falls into.

    ``final``: it is the last pass of the layer.
    """
    return StructLayout({
        "phase": Phase, "bank": 1, "last_group": range(config.groups), "block": BLOCK_BITS, "final": 1,
    })


class Drains(wiring.Component):
    """Issue the drain operations of each pass: local row outer, row group inner, so a block's groups are neighbours.

    The first operation of a pass shows ``mac_latency`` cycles after its last MAC operation or right behind the previous
    pass's drain, whichever is later; then one a cycle. Operations of the down phase wait for ``drain_ready``.

    Members
    -------
    open_valid, open : :py:`In(1)`, :py:`In(pass_info(config))`
        A pass starts to fill its bank. Banks alternate, beginning with 0 after ``start``.
    close : :py:`In(2)`
        Bit b: the last MAC operation of the pass in bank b shows in this cycle.
    occupied : :py:`Out(2)`
        Bit b: bank b is being filled or drained; falls in the cycle that issues its last drain operation (one cycle
        before the operation shows), so that a MAC operation may follow it at once.
    start, flush : :py:`In(1)`
        Forget everything.
    rows : :py:`In(range(config.locals + 1))`
        Local rows to drain, at least 1. Quasi-static.
    drain_ready : :py:`In(1)`
        A drain operation of the down phase may show in the next cycle.
    drain_valid, drain : :py:`Out(1)`, :py:`Out(drain_op(config))`
        Registered.
    done : :py:`Out(1)`
        Pulse in the cycle after the last operation of the final pass.
    """

    def __init__(self, config: AcceleratorConfig, mac_latency: int):
        self.config = config
        self.mac_latency = mac_latency
        super().__init__({
            "start": In(1),
            "flush": In(1),
            "rows": In(range(config.locals + 1)),
            "open_valid": In(1),
            "open": In(pass_info(config)),
            "close": In(2),
            "occupied": Out(2),
            "drain_ready": In(1),
            "drain_valid": Out(1),
            "drain": Out(drain_op(config)),
            "done": Out(1),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        passes = [Signal(pass_info(self.config), name=f"pass_{bank}") for bank in range(2)]
        filling_or_draining = Signal(2)
        ripe = Signal(2)  # every MAC of the pass will be visible to a drain operation issued now
        for bank in range(2):
            with m.If(self.open_valid & (self.open.bank == bank)):
                m.d.sync += passes[bank].eq(self.open)
            settled = self.close[bank]
            # Two of the cycles are the ripe bit and the registered operation itself.
            for stage in range(self.mac_latency - 2):
                delayed = Signal(name=f"closed_{bank}_{stage}")
                m.d.sync += delayed.eq(settled & ~self.flush & ~self.start)
                settled = delayed
            with m.If(settled):
                m.d.sync += ripe[bank].eq(1)

        bank = Signal()
        group = Signal(range(self.config.groups))
        local = Signal(range(self.config.locals))
        info = Signal(pass_info(self.config))
        go = Signal()
        last_group = Signal()
        last = Signal()
        m.d.comb += [
            info.eq(Array(p.as_value() for p in passes)[bank]),
            go.eq(ripe.bit_select(bank, 1) & ((info.phase == Phase.GATE_UP) | self.drain_ready)),
            last_group.eq(group == info.last_group),
            last.eq(last_group & (local + 1 == self.rows)),
            self.occupied.eq(filling_or_draining & ~((go & last) << bank)),
        ]
        final = Signal()
        m.d.sync += [self.drain_valid.eq(go), final.eq(go & last & info.final), self.done.eq(final)]
        with m.If(go):
            m.d.sync += [
                self.drain.phase.eq(info.phase),
                self.drain.bank.eq(bank),
                self.drain.group.eq(group),
                self.drain.local.eq(local),
            ]
            rows = self.config.rows
            with m.If(info.phase == Phase.GATE_UP):
                self._place(m, info, group, values=rows // 2)
            with m.Else():
                self._place(m, info, group, values=rows)
            m.d.sync += group.eq(Mux(last_group, 0, group + 1))
            with m.If(last_group):
                m.d.sync += local.eq(Mux(last, 0, local + 1))
            with m.If(last):
                m.d.sync += [
                    bank.eq(~bank),
                    filling_or_draining.bit_select(bank, 1).eq(0),
                    ripe.bit_select(bank, 1).eq(0),
                ]
        # After everything else, so that a bank opened in the cycle of its release stays occupied.
        for b in range(2):
            with m.If(self.open_valid & (self.open.bank == b)):
                m.d.sync += filling_or_draining[b].eq(1)
        with m.If(self.flush | self.start):
            m.d.sync += [
                self.drain_valid.eq(0), final.eq(0), self.done.eq(0), filling_or_draining.eq(0), ripe.eq(0),
                bank.eq(0), group.eq(0), local.eq(0),
            ]
        return m

    def _place(self, m: Module, info: Value, group: Value, values: int) -> None:
        """Block, first and last of a group that brings ``values`` consecutive values of its phase."""
        if values >= BLOCK:
            m.d.sync += [
                self.drain.block.eq(info.block + group * (values // BLOCK)),
                self.drain.first.eq(1),
                self.drain.last.eq(1),
            ]
        else:
            inside = group[:exact_log2(BLOCK // values)]
            m.d.sync += [
                self.drain.block.eq(info.block + (group >> len(inside))),
                self.drain.first.eq(inside == 0),
                self.drain.last.eq(inside.all()),
            ]

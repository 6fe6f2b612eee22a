"""Output writer: 64-byte beats of all cores, written one by one over the data port.

Source: Arm AMBA AXI protocol specification (IHI 0022), write channel dependencies.
"""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw import axi
from hw.config import PORT_BYTES, AcceleratorConfig
from hw.ops import WriteRequest

OUTSTANDING_WRITES = 255
"""Writes without an answer at most."""
BURST_INCR = 1


class Writer(wiring.Component):
    """Write every request as a single-beat burst; cores take turns.

    AW and W of a write are offered in the same cycle and accepted in any order. One write a cycle while both channels
    take one; 1 cycle from ``i`` to ``awvalid``.

    Members
    -------
    bus : :py:`Out(axi.WriteMaster)`
    i : :py:`In(stream.Signature(WriteRequest)).array(config.cores)`
    busy : :py:`Out(1)`
        A write is offered at ``i`` or not acknowledged yet.
    error : :py:`Out(1)`
        A write was answered with something other than OKAY; ``flush`` clears it.
    flush : :py:`In(1)`
        Drops what is offered at ``i`` while it is 1 and until the writes already taken are acknowledged. Then
        ``busy`` falls. As a pulse it is enough once the cores offer nothing more.
    beats : :py:`Out(1)`
        A beat was handed to the memory in this cycle.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        self.outstanding = Signal(range(OUTSTANDING_WRITES + 1))  # writes not acknowledged yet
        super().__init__({
            "bus": Out(axi.WriteMaster),
            "i": In(stream.Signature(WriteRequest)).array(config.cores),
            "busy": Out(1),
            "error": Out(1),
            "flush": In(1),
            "beats": Out(1),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        bus = self.bus
        cores = range(self.config.cores)

        flushing = Signal()
        stop = Signal()
        m.d.comb += stop.eq(self.flush | flushing)

        # Round robin: the core after the one served last comes first.
        offered = Signal(self.config.cores)
        served = Signal(self.config.cores, init=1)  # one-hot: the core served last
        grant = Signal(self.config.cores)           # one-hot or nothing
        m.d.comb += offered.eq(Cat(self.i[c].valid for c in cores))
        for last in cores:
            with m.If(served[last]):
                for distance in reversed(range(1, self.config.cores + 1)):
                    candidate = (last + distance) % self.config.cores
                    with m.If(offered[candidate]):
                        m.d.comb += grant.eq(1 << candidate)

        accept = Signal()
        free = Signal()
        m.d.comb += [
            free.eq((~bus.awvalid | bus.awready) & (~bus.wvalid | bus.wready)
                    & (self.outstanding != OUTSTANDING_WRITES)),
            accept.eq(free & ~stop & offered.any()),
            bus.awlen.eq(0),
            bus.awsize.eq(exact_log2(PORT_BYTES)),
            bus.awburst.eq(BURST_INCR),
            bus.wstrb.eq(-1),
            bus.wlast.eq(1),
            bus.bready.eq(1),
            self.beats.eq(bus.wvalid & bus.wready),
            self.busy.eq((self.outstanding != 0) | (offered.any() & ~stop)),
        ]
        m.d.comb += [self.i[c].ready.eq(stop | (free & grant[c])) for c in cores]
        with m.If(bus.awready):
            m.d.sync += bus.awvalid.eq(0)
        with m.If(bus.wready):
            m.d.sync += bus.wvalid.eq(0)
        with m.If(accept):
            m.d.sync += [bus.awvalid.eq(1), bus.wvalid.eq(1), served.eq(grant)]
            for c in cores:
                with m.If(grant[c]):
                    m.d.sync += [bus.awaddr.eq(self.i[c].p.address), bus.wdata.eq(self.i[c].p.data)]

        answered = Signal()
        m.d.comb += answered.eq(bus.bvalid & (self.outstanding != 0))
        m.d.sync += [
            self.outstanding.eq(self.outstanding + accept - answered),
            flushing.eq(self.flush | (flushing & (self.outstanding != 0))),
        ]
        with m.If(stop):
            m.d.sync += self.error.eq(0)
        with m.Elif(answered & (bus.bresp != axi.RESPONSE_OKAY)):
            m.d.sync += self.error.eq(1)
        return m

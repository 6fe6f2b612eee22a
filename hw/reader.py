"""Read engine of one AXI4 port: contiguous requests in, 64-byte beats out in order.

Source: Arm AMBA AXI protocol specification (IHI 0022), handshake and burst rules (a burst must not cross 4 KiB).
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw import axi
from hw.config import BURST_BEATS, PORT_BYTES
from hw.ops import ReadRequest

OUTSTANDING_BURSTS = 32
"""Bursts in flight at most: enough that single-beat requests keep a memory of 32 cycles latency busy."""
BEAT_BITS = exact_log2(PORT_BYTES)
BURST_INCR = 1

ReadBeat = StructLayout({"data": axi.DATA_BITS, "last": 1})
"""One beat; ``last``: it is the last one of its request."""


class Reader(wiring.Component):
    """Turn requests into AXI4 read bursts and buffer what comes back.

    Bursts hold at most ``BURST_BEATS`` beats, never cross 4 KiB, and are issued only while the FIFO has room for all
    their beats, so ``rready`` is constantly 1. Bursts of consecutive requests follow each other without a gap, one a
    cycle; up to ``OUTSTANDING_BURSTS`` are in flight. One beat a cycle; 2 cycles from R channel to ``o``, 2 cycles from
    ``requests`` to ``arvalid``. A request of 0 beats is accepted and yields nothing.

    A memory that stops answering leaves the reader busy for ever; only resetting it (``ResetInserter``) forgets the
    beats it waits for.

    Parameters
    ----------
    fifo_beats : :class:`int`
        Depth of the FIFO, at least one longest burst. Two bursts or more sustain one beat a cycle if the memory's
        latency is below ``fifo_beats - BURST_BEATS`` cycles.

    Members
    -------
    bus : :py:`Out(axi.ReadMaster)`
    requests : :py:`In(stream.Signature(ReadRequest))`
        The low 6 address bits are ignored.
    o : :py:`Out(stream.Signature(ReadBeat))`
    busy : :py:`Out(1)`
        An accepted request, a burst or a beat in the FIFO is outstanding.
    error : :py:`Out(1)`
        A beat came with a response other than OKAY. Rises before that beat shows at ``o``; ``flush`` clears it.
    flush : :py:`In(1)`
        Pulse or level. Drops the current request, everything outstanding and the FIFO; ``o`` and ``requests`` stay
        silent meanwhile. From the next cycle on ``busy`` says whether traffic is still outstanding.
    """

    def __init__(self, fifo_beats: int):
        if fifo_beats < BURST_BEATS:
            raise ValueError(f"fifo_beats must hold a burst ({BURST_BEATS} beats), not {fifo_beats!r}")
        self.fifo_beats = fifo_beats
        self.claimed = Signal(range(fifo_beats + 1))  # beats requested and not yet taken from the FIFO
        self.stored = Signal(range(fifo_beats + 2))   # beats in the FIFO, counted in claimed too
        super().__init__({
            "bus": Out(axi.ReadMaster),
            "requests": In(stream.Signature(ReadRequest)),
            "o": Out(stream.Signature(ReadBeat)),
            "busy": Out(1),
            "error": Out(1),
            "flush": In(1),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        bus = self.bus
        # One entry more than the credit: the output register is not part of the memory, which stays a power of two.
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=ReadBeat.size, depth=self.fifo_beats + 1)
        # Whether each burst in flight is the last of its request.
        m.submodules.bursts = bursts = SyncFIFO(width=1, depth=OUTSTANDING_BURSTS)

        flushing = Signal()
        stop = Signal()
        m.d.comb += stop.eq(self.flush | flushing)

        # Cut the request into bursts.
        active = Signal()
        beat_address = Signal(axi.ADDRESS_BITS - BEAT_BITS)
        remaining = Signal(ReadRequest["beats"].shape)
        to_boundary = Signal(range(BURST_BEATS + 1))
        length = Signal(range(BURST_BEATS + 1))
        final = Signal()
        issue = Signal()
        m.d.comb += [
            to_boundary.eq(BURST_BEATS - beat_address[:exact_log2(BURST_BEATS)]),
            final.eq(remaining <= to_boundary),
            length.eq(Mux(final, remaining, to_boundary)),
            issue.eq(active & ~stop & (~bus.arvalid | bus.arready)
                     & bursts.w_rdy & (self.claimed + length <= self.fifo_beats)),
            self.requests.ready.eq(~stop & (~active | (issue & final))),
        ]
        m.d.comb += [bus.arsize.eq(BEAT_BITS), bus.arburst.eq(BURST_INCR)]
        with m.If(bus.arready):
            m.d.sync += bus.arvalid.eq(0)
        with m.If(issue):
            m.d.sync += [
                bus.arvalid.eq(1),
                bus.araddr.eq(beat_address << BEAT_BITS),
                bus.arlen.eq(length - 1),
                beat_address.eq(beat_address + length),
                remaining.eq(remaining - length),
                active.eq(~final),
            ]
        with m.If(self.requests.valid & self.requests.ready):
            m.d.sync += [
                beat_address.eq(self.requests.p.address >> BEAT_BITS),
                remaining.eq(self.requests.p.beats),
                active.eq(self.requests.p.beats != 0),
            ]
        with m.If(stop):
            m.d.sync += active.eq(0)

        # Collect the beats. One that no burst in flight asked for is ignored: only a reset in mid-traffic leaves some.
        push = Signal()
        pop = Signal()
        m.d.comb += [
            bus.rready.eq(1),
            push.eq(bus.rvalid & bursts.r_rdy),
            bursts.w_data.eq(final),
            bursts.w_en.eq(issue),
            bursts.r_en.eq(push & bus.rlast),
            fifo.w_data[:axi.DATA_BITS].eq(bus.rdata),
            fifo.w_data[-1].eq(bus.rlast & bursts.r_data),
            fifo.w_en.eq(push),
            self.o.p.eq(fifo.r_data),
            self.o.valid.eq(fifo.r_rdy & ~stop),
            fifo.r_en.eq(self.o.ready | stop),
            pop.eq(fifo.r_rdy & fifo.r_en),
            self.stored.eq(fifo.level),
            self.busy.eq(active | bus.arvalid | (self.claimed != 0)),
        ]
        m.d.sync += [
            self.claimed.eq(self.claimed + Mux(issue, length, 0) - pop),
            flushing.eq(self.flush | (flushing & self.busy)),
        ]
        with m.If(stop):
            m.d.sync += self.error.eq(0)
        with m.Elif(push & (bus.rresp != axi.RESPONSE_OKAY)):
            m.d.sync += self.error.eq(1)
        return m

import pytest
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal

from hw.config import BURST_BEATS, PORT_BYTES
from hw.reader import Reader
from tests.formal.prove import assert_stable, bench, prove

FIFO_BEATS = 64


def reader_bench() -> tuple[Module, list]:
    """Any requests, consumer, flushes and memory; the memory only never sends beats that were not asked for."""
    m = bench()
    m.submodules.dut = dut = Reader(FIFO_BEATS)
    bus = dut.bus

    owed = Signal(range(4 * FIFO_BEATS))  # beats of accepted bursts that did not come yet
    taken = bus.rvalid & bus.rready
    m.d.comb += Assume(~bus.rvalid | (owed != 0))
    m.d.sync += owed.eq(owed + Mux(bus.arvalid & bus.arready, bus.arlen + 1, 0) - taken)

    # Credit: everything under way and everything stored was claimed, and no more than the FIFO holds was.
    offered = Mux(bus.arvalid, bus.arlen + 1, 0)
    m.d.comb += [
        Assert(dut.claimed <= FIFO_BEATS),
        Assert(dut.claimed >= owed + offered + dut.stored),
        Assert(bus.rready),
        Assert(~bus.rvalid | (dut.stored < FIFO_BEATS)),
        Assert(dut.busy | ((owed == 0) & ~bus.arvalid & (dut.stored == 0))),
    ]

    with m.If(bus.arvalid):
        m.d.comb += [
            Assert(bus.araddr % PORT_BYTES == 0),
            Assert((bus.araddr % 4096) + (bus.arlen + 1) * PORT_BYTES <= 4096),
            Assert(bus.arlen < BURST_BEATS),
        ]
    assert_stable(m, bus.arvalid, bus.arready, Cat(bus.araddr, bus.arlen, bus.arsize, bus.arburst), Const(0), "ar")
    assert_stable(m, dut.o.valid, dut.o.ready, dut.o.payload.as_value(), dut.flush, "o")
    return m, [
        bus.arready, bus.rdata, bus.rresp, bus.rlast, bus.rvalid, dut.flush, dut.o.ready,
        dut.requests.valid, dut.requests.payload.as_value(),
    ]


@pytest.mark.slow
def test_reader_follows_axi_and_never_overruns(tmp_path):
    m, ports = reader_bench()
    prove(m, ports, tmp_path, depth=2)

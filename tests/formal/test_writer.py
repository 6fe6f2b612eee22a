import pytest
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Signal

from hw.config import AcceleratorConfig
from hw.writer import OUTSTANDING_WRITES, Writer
from tests.formal.prove import assert_stable, bench, prove


def writer_bench() -> tuple[Module, list]:
    """Any cores, stalls and flushes; the memory never answers a write before it has both address and data."""
    m = bench()
    config = AcceleratorConfig(name="formal", cores=4, ports=1, max_hidden_blocks=1, max_intermediate_blocks=1,
                               clock_hz=1, channel_bytes=1 << 20, fifo_beats=128)
    m.submodules.dut = dut = Writer(config)
    bus = dut.bus
    address = Cat(bus.awaddr, bus.awlen, bus.awsize, bus.awburst)
    assert_stable(m, bus.awvalid, bus.awready, address, Const(0), "aw")
    assert_stable(m, bus.wvalid, bus.wready, Cat(bus.wdata, bus.wstrb, bus.wlast), Const(0), "w")

    # Every write is counted until its answer, whichever of its two channels was taken first.
    addresses = Signal(range(OUTSTANDING_WRITES + 2))  # taken and not answered
    data = Signal(range(OUTSTANDING_WRITES + 2))
    answered = bus.bvalid & bus.bready
    m.d.sync += [
        addresses.eq(addresses + (bus.awvalid & bus.awready) - answered),
        data.eq(data + (bus.wvalid & bus.wready) - answered),
    ]
    m.d.comb += [
        Assume(~bus.bvalid | ((addresses != 0) & (data != 0))),
        Assert(addresses + bus.awvalid == dut.outstanding),
        Assert(data + bus.wvalid == dut.outstanding),
        Assert(bus.bready),
        Assert(dut.busy | ~(bus.awvalid | bus.wvalid)),
    ]

    # At most one core is served a cycle, except that a flush drops the offers of all.
    taken = [core.valid & core.ready & ~dut.flush for core in dut.i]
    flushing = Signal()
    m.d.sync += flushing.eq(dut.flush | (flushing & (dut.outstanding != 0)))
    with m.If(~flushing):
        m.d.comb += Assert(sum(taken) <= 1)
    cores = [value for core in dut.i for value in (core.valid, core.payload.as_value())]
    return m, [bus.awready, bus.wready, bus.bvalid, bus.bresp, dut.flush, *cores]


@pytest.mark.slow
def test_writer_follows_axi_and_counts_every_write(tmp_path):
    m, ports = writer_bench()
    prove(m, ports, tmp_path, depth=2)

import gc
import random

import pytest
from amaranth.sim import Simulator

from hw.reader import Reader
from tests.hw.axi_model import FAST, AxiMemory, Timing, cycle_limit

FIFO_BEATS = 128


def simulator(dut: Reader, memory: AxiMemory) -> Simulator:
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(memory.read_slave(dut.bus), background=True)
    sim.add_testbench(cycle_limit(20_000), background=True)
    return sim


def fill(memory: AxiMemory, address: int, beats: int) -> list[int]:
    """Store ``beats`` values that are unique in the memory; returns them."""
    values = [(at << 300) | at | 1 for at in range(address, address + 64 * beats, 64)]
    memory.beats |= dict(zip(range(address, address + 64 * beats, 64), values))
    return values


async def request(ctx, dut: Reader, address: int, beats: int) -> None:
    ctx.set(dut.requests.payload, {"address": address, "beats": beats})
    ctx.set(dut.requests.valid, 1)
    await ctx.tick().until(dut.requests.ready)
    ctx.set(dut.requests.valid, 0)


@pytest.mark.parametrize("seed", range(4))
def test_random_requests(seed):
    """Addresses around 4 KiB boundaries, random memory and consumer: every beat in order, ``last`` where it belongs."""
    rng = random.Random(seed)
    memory = AxiMemory(seed, Timing(latency=(1, rng.choice([5, 100])), stall=rng.choice([0.0, 0.2, 0.7])))
    dut = Reader(FIFO_BEATS)
    stall = rng.choice([0.0, 0.3, 0.8])
    requests = []
    for _ in range(12):
        beats = rng.choice([0, 1, 1, 2, 3, rng.randint(60, 70), rng.randint(1, 150)])
        requests.append((4096 * rng.randint(1, 1 << 27) + 64 * rng.randint(-3, 70), beats))
    expected = []
    for address, beats in requests:
        expected += [(value, i == beats - 1) for i, value in enumerate(fill(memory, address, beats))]
    got = []

    async def producer(ctx):
        for address, beats in requests:
            while rng.random() < 0.2:
                await ctx.tick()
            await request(ctx, dut, address, beats)

    async def consumer(ctx):
        while len(got) < len(expected):
            ctx.set(dut.o.ready, rng.random() >= stall)
            _, _, valid, ready, beat = await ctx.tick().sample(dut.o.valid, dut.o.ready, dut.o.payload)
            if valid and ready:
                got.append((beat.data, bool(beat.last)))
        ctx.set(dut.o.ready, 0)
        for _ in range(2):
            await ctx.tick()
        assert not ctx.get(dut.busy) and not ctx.get(dut.o.valid), f"seed {seed}: busy after the last beat"
        assert not ctx.get(dut.error), f"seed {seed}: error without one"

    sim = simulator(dut, memory)
    sim.add_testbench(producer)
    sim.add_testbench(consumer)
    sim.run()
    wrong = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), None)
    assert wrong is None, f"seed {seed}: beat {wrong} is {got[wrong]}, expected {expected[wrong]}"
    assert sum(beats for _, beats in memory.reads) == len(expected), f"seed {seed}"


def test_one_beat_a_cycle_across_requests():
    memory = AxiMemory(0, Timing(latency=(40, 40), stall=0.0))
    dut = Reader(FIFO_BEATS)
    singles = [(0x10000 * i, 1) for i in range(1, 31)]
    requests = [*singles, (0x1F40, 100), (0x500000, 1), (0x30000, 198)]
    total = sum(beats for _, beats in requests)
    valid_cycles = []

    async def producer(ctx):
        for address, beats in requests:
            await request(ctx, dut, address, beats)

    async def consumer(ctx):
        ctx.set(dut.o.ready, 1)
        cycle = 0
        while len(valid_cycles) < total:
            _, _, valid = await ctx.tick().sample(dut.o.valid)
            cycle += 1
            if valid:
                valid_cycles.append(cycle)

    sim = simulator(dut, memory)
    sim.add_testbench(producer)
    sim.add_testbench(consumer)
    sim.run()
    assert valid_cycles[-1] - valid_cycles[0] == total - 1
    assert memory.reads[30:34] == [(0x1F40, 3), (0x2000, 64), (0x3000, 33), (0x500000, 1)]


def test_latency_and_credit():
    """Two cycles to ARVALID; without a consumer the reader asks for no more than the FIFO holds."""
    memory = AxiMemory(0, FAST)
    dut = Reader(FIFO_BEATS)

    async def testbench(ctx):
        await request(ctx, dut, 0x8040, FIFO_BEATS - 1)
        ctx.set(dut.requests.payload, {"address": 0x40000, "beats": 1})
        ctx.set(dut.requests.valid, 1)
        assert not ctx.get(dut.bus.arvalid)
        await ctx.tick()
        assert ctx.get(dut.bus.arvalid)
        for _ in range(3 * FIFO_BEATS):
            await ctx.tick()
        assert sum(beats for _, beats in memory.reads) == FIFO_BEATS
        assert memory.reads == [(0x8040, 63), (0x9000, 64), (0x40000, 1)]
        assert ctx.get(dut.bus.rready)

    sim = simulator(dut, memory)
    sim.add_testbench(testbench)
    sim.run()


@pytest.mark.parametrize("seed", range(6))
def test_error_then_flush_then_good_request(seed):
    """``flush`` (pulse or level) ends all traffic by the rules, drops every beat and leaves a working reader."""
    rng = random.Random(seed)
    memory = AxiMemory(seed, Timing(latency=(1, 30), stall=0.4))
    dut = Reader(FIFO_BEATS)
    bad = rng.randrange(100)
    memory.errors = {0x4000 + 64 * bad}
    fill(memory, 0x4000, 300)
    good = fill(memory, 0x100FC0, 5)

    async def testbench(ctx):
        await request(ctx, dut, 0x4000, 300)
        taken = 0
        while not ctx.get(dut.error):
            ctx.set(dut.o.ready, rng.random() < 0.5)
            _, _, valid, ready = await ctx.tick().sample(dut.o.valid, dut.o.ready)
            taken += valid & ready
        assert taken <= bad, f"seed {seed}: beat {bad} failed, but {taken} beats came out before the error"
        ctx.set(dut.o.ready, 0)
        for _ in range(rng.randrange(40)):
            await ctx.tick()
        assert ctx.get(dut.error), f"seed {seed}: error did not stay"
        ctx.set(dut.flush, 1)
        await ctx.tick()
        if seed % 2:
            ctx.set(dut.flush, 0)
        while ctx.get(dut.busy):
            assert not ctx.get(dut.o.valid), f"seed {seed}: a beat came out during the flush"
            await ctx.tick()
        ctx.set(dut.flush, 0)
        assert not ctx.get(dut.error), f"seed {seed}: error after the flush"
        before = len(memory.reads)
        await request(ctx, dut, 0x100FC0, 5)
        ctx.set(dut.o.ready, 1)
        got = []
        while len(got) < 5:
            _, _, valid, beat = await ctx.tick().sample(dut.o.valid, dut.o.payload)
            if valid:
                got.append(beat.data)
        assert got == good, f"seed {seed}"
        assert memory.reads[before:] == [(0x100FC0, 1), (0x101000, 4)], f"seed {seed}"

    sim = simulator(dut, memory)
    sim.add_testbench(testbench)
    sim.run()


def test_late_beat_after_a_reset_is_ignored():
    dut = Reader(FIFO_BEATS)

    async def testbench(ctx):
        ctx.set(dut.bus.rvalid, 1)
        ctx.set(dut.bus.rlast, 1)
        ctx.set(dut.bus.rresp, 2)
        await ctx.tick().repeat(4)
        assert not ctx.get(dut.busy) and not ctx.get(dut.o.valid) and not ctx.get(dut.error)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(testbench)
    sim.run()


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")
def test_fifo_too_small():
    with pytest.raises(ValueError, match=r"fifo_beats must hold a burst \(64 beats\), not 32"):
        Reader(32)
    gc.collect()  # the half-made component warns when it goes: here, where that is ignored

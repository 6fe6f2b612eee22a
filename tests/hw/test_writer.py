import random

import pytest
from amaranth.sim import Simulator

from hw.config import AcceleratorConfig
from hw.writer import OUTSTANDING_WRITES, Writer
from tests.hw.axi_model import FAST, AxiMemory, Timing, cycle_limit


def build(cores: int, memory: AxiMemory) -> tuple[Writer, Simulator]:
    dut = Writer(AcceleratorConfig(name="test", cores=cores, ports=1, max_hidden_blocks=4, max_intermediate_blocks=4,
                                   clock_hz=1, channel_bytes=1 << 20, fifo_beats=128))
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(memory.write_slave(dut.bus), background=True)
    sim.add_testbench(cycle_limit(20_000), background=True)
    return dut, sim


def requests_of(rng: random.Random, core: int, count: int) -> list[tuple[int, int]]:
    """Distinct addresses with random beats."""
    return [((core << 30) + 64 * i, rng.getrandbits(512) | 1) for i in range(count)]


def producer(dut: Writer, core: int, requests: list[tuple[int, int]], rng: random.Random, gap: float):
    async def testbench(ctx):
        i = dut.i[core]
        for address, data in requests:
            while rng.random() < gap:
                await ctx.tick()
            ctx.set(i.payload, {"address": address, "data": data})
            ctx.set(i.valid, 1)
            ready = False
            while not ready:  # not until(): a background testbench may be dropped here at the end of the simulation
                _, _, ready = await ctx.tick().sample(i.ready)
            ctx.set(i.valid, 0)

    return testbench


@pytest.mark.parametrize("seed", range(6))
def test_every_beat_of_every_core_is_written(seed):
    """Random memory, also with AW and W out of step: all beats land, ``busy`` covers the last answer."""
    rng = random.Random(seed)
    cores = rng.choice([1, 2, 4, 8])
    memory = AxiMemory(seed, Timing(latency=(1, rng.choice([4, 60])), stall=rng.choice([0.0, 0.4, 0.8])))
    dut, sim = build(cores, memory)
    requests = {core: requests_of(rng, core, rng.randint(1, 40)) for core in range(cores)}
    total = sum(map(len, requests.values()))
    for core, items in requests.items():
        sim.add_testbench(producer(dut, core, items, random.Random(f"{seed}/{core}"), rng.choice([0.0, 0.5])))

    async def monitor(ctx):
        beats = answers = 0
        while answers < total:
            _, _, beat, bvalid, busy = await ctx.tick().sample(dut.beats, dut.bus.bvalid, dut.busy)
            beats += beat
            answers += bvalid
            assert busy or beats == answers, f"seed {seed}: idle with {beats - answers} writes unanswered"
        assert beats == total, f"seed {seed}: {beats} beats counted, {total} written"
        assert not ctx.get(dut.busy) and not ctx.get(dut.error), f"seed {seed}"

    sim.add_testbench(monitor)
    sim.run()
    assert memory.beats == {address: data for items in requests.values() for address, data in items}, f"seed {seed}"


def test_one_write_a_cycle_in_turns():
    memory = AxiMemory(0, FAST)
    dut, sim = build(4, memory)
    rng = random.Random(0)
    for core in range(4):
        sim.add_testbench(producer(dut, core, requests_of(rng, core, 20), rng, 0.0))
    cycles = []

    async def monitor(ctx):
        cycle = 0
        while len(cycles) < 80:
            _, _, beat = await ctx.tick().sample(dut.beats)
            cycle += 1
            if beat:
                cycles.append(cycle)

    sim.add_testbench(monitor)
    sim.run()
    assert cycles[-1] - cycles[0] == 79
    served = [address >> 30 for address, _ in memory.writes]
    assert served == [1, 2, 3, 0] * 20


def test_unanswered_writes_are_limited():
    """A memory that answers nothing stops the writer before its count overflows; it stays busy, without an error."""
    memory = AxiMemory(0, Timing(latency=(1, 1), stall=0.0, silent=True))
    dut, sim = build(1, memory)
    sim.add_testbench(producer(dut, 0, requests_of(random.Random(0), 0, 300), random.Random(0), 0.0), background=True)

    async def monitor(ctx):
        for _ in range(400):
            await ctx.tick()
        assert len(memory.writes) == OUTSTANDING_WRITES
        assert ctx.get(dut.busy) and not ctx.get(dut.error) and not ctx.get(dut.i[0].ready)

    sim.add_testbench(monitor)
    sim.run()


def test_late_answer_after_a_reset_is_ignored():
    memory = AxiMemory(0, Timing(silent=True))
    dut, sim = build(1, memory)

    async def testbench(ctx):
        ctx.set(dut.bus.bvalid, 1)
        ctx.set(dut.bus.bresp, 2)
        assert not ctx.get(dut.busy)
        await ctx.tick()
        assert not ctx.get(dut.busy) and not ctx.get(dut.error)

    sim.add_testbench(testbench)
    sim.run()


@pytest.mark.parametrize("seed", range(4))
def test_error_then_flush_then_good_write(seed):
    """During ``flush`` offered beats are dropped, writes already on the bus end by the rules."""
    rng = random.Random(seed)
    memory = AxiMemory(seed, Timing(latency=(1, 30), stall=0.4))
    dut, sim = build(2, memory)
    first, second = requests_of(rng, 0, 60), requests_of(rng, 1, 60)
    memory.errors = {first[rng.randrange(20)][0]}
    sim.add_testbench(producer(dut, 0, first, rng, 0.0), background=True)
    sim.add_testbench(producer(dut, 1, second, rng, 0.0), background=True)

    async def testbench(ctx):
        await ctx.tick().until(dut.error)
        for _ in range(rng.randrange(20)):
            await ctx.tick()
        assert ctx.get(dut.error), f"seed {seed}: error did not stay"
        ctx.set(dut.flush, 1)
        for _ in range(150):  # the producers empty themselves, one beat a cycle
            await ctx.tick()
        while ctx.get(dut.busy):
            await ctx.tick()
        ctx.set(dut.flush, 0)
        assert not ctx.get(dut.error), f"seed {seed}: error after the flush"
        assert len(memory.writes) < 120, f"seed {seed}: nothing was dropped"
        await ctx.tick()
        ctx.set(dut.i[1].payload, {"address": 0x7FC0, "data": 7})
        ctx.set(dut.i[1].valid, 1)
        await ctx.tick().until(dut.i[1].ready)
        ctx.set(dut.i[1].valid, 0)
        while ctx.get(dut.busy):
            await ctx.tick()
        assert memory.beats[0x7FC0] == 7 and not ctx.get(dut.error), f"seed {seed}"

    sim.add_testbench(testbench)
    sim.run()

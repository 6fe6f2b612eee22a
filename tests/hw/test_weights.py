import random

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.config import PORT_BYTES, AcceleratorConfig, preset
from hw.weights import WeightStream
from tests.hw.axi_model import AxiMemory, Timing, cycle_limit


def raw_words(config: AcceleratorConfig, stream: np.ndarray) -> list[int]:
    """Weight stream ``[ports, beats * 64]`` as raw beats of all ports."""
    beats = stream.reshape(config.ports, -1, PORT_BYTES).transpose(1, 0, 2)
    return [int.from_bytes(beat.tobytes(), "little") for beat in beats]


def build(ports: int) -> AcceleratorConfig:
    return AcceleratorConfig(name="test", cores=1, ports=ports, max_hidden_blocks=4, max_intermediate_blocks=4,
                             clock_hz=1, channel_bytes=1 << 20, fifo_beats=128)


def setup(
    config: AcceleratorConfig, seed: int, timings: list[Timing],
) -> tuple[WeightStream, list[AxiMemory], Simulator]:
    """A memory for every port, each with its own timing."""
    dut = WeightStream(config)
    memories = [AxiMemory(seed + p, timing) for p, timing in enumerate(timings)]
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    for port, memory in zip(dut.ports, memories):
        sim.add_testbench(memory.read_slave(port), background=True)
    sim.add_testbench(cycle_limit(20_000), background=True)
    return dut, memories, sim


def fill(
    config: AcceleratorConfig, memories: list[AxiMemory], rng: random.Random, offset: int, beats: int,
) -> list[int]:
    """Random weights at ``offset`` of every region; returns the raw beats."""
    data = np.frombuffer(rng.randbytes(config.ports * beats * PORT_BYTES), dtype=np.uint8).reshape(config.ports, -1)
    for p, memory in enumerate(memories):
        memory.store(p * config.channel_bytes + offset, data[p].tobytes())
    return raw_words(config, data)


async def start(ctx, dut: WeightStream, offset: int, beats: int) -> None:
    ctx.set(dut.start.payload, {"offset": offset, "beats": beats})
    ctx.set(dut.start.valid, 1)
    await ctx.tick().until(dut.start.ready)
    ctx.set(dut.start.valid, 0)


@pytest.mark.parametrize("seed", range(4))
def test_ports_of_different_speed(seed):
    """Beats of all ports stay together whatever each port's memory does, over four back-to-back requests."""
    rng = random.Random(seed)
    config = preset("tiny") if seed == 0 else build(4)
    timings = [Timing(latency=(1, rng.choice([3, 80])), stall=rng.choice([0.0, 0.3, 0.6])) for _ in range(config.ports)]
    dut, memories, sim = setup(config, 10 * seed, timings)
    jobs = [(4096 * rng.randrange(20), rng.randint(1, 90)) for _ in range(4)]
    jobs = [(offset + 0x40000 * i, beats) for i, (offset, beats) in enumerate(jobs)]
    expected = [word for offset, beats in jobs for word in fill(config, memories, rng, offset, beats)]
    stall = rng.choice([0.0, 0.5])
    got, received = [], []

    async def producer(ctx):
        for offset, beats in jobs:
            await start(ctx, dut, offset, beats)

    async def consumer(ctx):
        while len(got) < len(expected):
            ctx.set(dut.o.ready, rng.random() >= stall)
            _, _, valid, ready, word, exhausted, beats = await ctx.tick().sample(
                dut.o.valid, dut.o.ready, dut.o.payload.as_value(), dut.exhausted, dut.port_beats)
            received.append(beats)
            if valid and ready:
                got.append(word)
                assert not exhausted, f"seed {seed}: exhausted with a beat at the output"
        assert ctx.get(dut.exhausted) and not ctx.get(dut.busy) and not ctx.get(dut.error), f"seed {seed}"

    sim.add_testbench(producer)
    sim.add_testbench(consumer)
    sim.run()
    wrong = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), None)
    assert wrong is None, f"seed {seed}: raw beat {wrong} differs"
    assert sum(received) == config.ports * len(expected), f"seed {seed}: port_beats"


def test_one_raw_beat_a_cycle():
    config = build(4)
    dut, memories, sim = setup(config, 0, [Timing(latency=(30, 30), stall=0.0)] * 4)
    expected = fill(config, memories, random.Random(0), 0x3000, 300)
    cycles = []

    async def testbench(ctx):
        await start(ctx, dut, 0x3000, 300)
        ctx.set(dut.o.ready, 1)
        cycle = 0
        while len(cycles) < len(expected):
            _, _, valid = await ctx.tick().sample(dut.o.valid)
            cycle += 1
            if valid:
                cycles.append(cycle)

    sim.add_testbench(testbench)
    sim.run()
    assert cycles[-1] - cycles[0] == len(expected) - 1


@pytest.mark.parametrize("seed", range(3))
def test_error_on_one_port_then_flush(seed):
    rng = random.Random(seed)
    config = build(4)
    dut, memories, sim = setup(config, seed, [Timing(latency=(1, 40), stall=0.3)] * 4)
    fill(config, memories, rng, 0, 200)
    bad = rng.randrange(100)
    memories[2].errors = {2 * config.channel_bytes + 64 * bad}
    good = fill(config, memories, rng, 0x8000, 3)

    async def testbench(ctx):
        await start(ctx, dut, 0, 200)
        ctx.set(dut.o.ready, 1)
        taken = 0
        while not ctx.get(dut.error):
            _, _, valid = await ctx.tick().sample(dut.o.valid)
            taken += valid
        assert taken <= bad, f"seed {seed}: {taken} raw beats came out before the error of beat {bad}"
        ctx.set(dut.o.ready, 0)
        ctx.set(dut.flush, 1)
        await ctx.tick()
        ctx.set(dut.flush, 0)
        while ctx.get(dut.busy):
            assert not ctx.get(dut.o.valid), f"seed {seed}: a beat came out during the flush"
            await ctx.tick()
        await start(ctx, dut, 0x8000, 3)
        ctx.set(dut.o.ready, 1)
        got = []
        while len(got) < 3:
            _, _, valid, word = await ctx.tick().sample(dut.o.valid, dut.o.payload.as_value())
            if valid:
                got.append(word)
        assert got == good, f"seed {seed}"
        assert ctx.get(dut.exhausted) and not ctx.get(dut.error), f"seed {seed}"

    sim.add_testbench(testbench)
    sim.run()

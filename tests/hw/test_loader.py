"""Loader against hw.layout.pack_activations: blocks, scales, targets of several slots, with gaps; a block a cycle."""

import random

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.layout import pack_activations
from hw.loader import Loader
from model.integer import MxMatrix

CONFIG = AcceleratorConfig(name="t", cores=4, ports=1, max_hidden_blocks=130, max_intermediate_blocks=1, clock_hz=1,
                           channel_bytes=1 << 20)


@pytest.mark.parametrize("blocks", [1, 2, 3, 63, 64, 65, 130])
@pytest.mark.parametrize("gap", [0.0, 0.4])
def test_blocks_arrive_in_order_at_their_core(blocks, gap):
    seed = 1000 * blocks + int(10 * gap)
    rng = random.Random(seed)
    codes = np.random.default_rng(seed).integers(-128, 128, (3, 32 * blocks)).astype(np.int8)
    scales = np.random.default_rng(seed + 1).integers(0, 256, (3, blocks)).astype(np.uint8)
    beats = pack_activations(MxMatrix(codes, scales)).reshape(-1, PORT_BYTES)
    targets = [(rng.randrange(CONFIG.cores), rng.randrange(CONFIG.locals)) for _ in range(3)]
    dut = Loader(CONFIG)
    got, cycles = [], [0, 0]

    async def announce(ctx):
        for core, local in targets:
            ctx.set(dut.targets.payload, {"core": core, "local": local})
            ctx.set(dut.targets.valid, 1)
            await ctx.tick().until(dut.targets.ready)
            ctx.set(dut.targets.valid, 0)

    async def feed(ctx):
        ctx.set(dut.hidden_blocks, blocks)
        for beat in beats:
            ctx.set(dut.i.payload, int.from_bytes(beat.tobytes(), "little"))
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            ctx.set(dut.i.valid, 0)
            while rng.random() < gap:
                await ctx.tick()
        while ctx.get(dut.busy):
            await ctx.tick()
        assert len(got) == 3 * blocks, f"seed {seed}: {len(got)} blocks when idle, expected {3 * blocks}"

    async def watch(ctx):
        async for _, _, valid, core, load in ctx.tick().sample(dut.load_valid, dut.core, dut.load):
            cycles[0] += 1
            if valid:
                cycles[1] = cycles[1] or cycles[0]
                got.append((core, load.local, load.block, load.scale, list(load.codes)))
                cycles.append(cycles[0])

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(watch, background=True)
    sim.add_testbench(announce)
    sim.add_testbench(feed)
    sim.run()
    expected = [(*targets[row], block, int(scales[row, block]), codes[row, 32 * block:32 * block + 32].tolist())
                for row in range(3) for block in range(blocks)]
    wrong = next((k for k, (a, b) in enumerate(zip(got, expected)) if a != b), None)
    assert wrong is None, f"seed {seed}: block {wrong}: {got[wrong]} instead of {expected[wrong]}"
    if not gap:
        scale_beats = -(-blocks // PORT_BYTES)
        assert cycles[-1] - cycles[1] + 1 == 3 * blocks + 2 * scale_beats, f"seed {seed}: a bubble"


def test_every_slot_can_be_outstanding():
    dut = Loader(CONFIG)

    async def bench(ctx):
        ctx.set(dut.targets.valid, 1)
        for slot in range(SLOTS):
            assert ctx.get(dut.targets.ready), f"target {slot} refused"
            await ctx.tick()
        assert not ctx.get(dut.targets.ready)
        assert ctx.get(dut.busy)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()

"""DRS mapping against its definition, for all masks of interest and every core count."""

import random

import pytest
from amaranth.sim import Simulator

from hw.config import SLOTS, AcceleratorConfig
from hw.drs import Drs

LATENCY = 2


def config(cores):
    return AcceleratorConfig(name="t", cores=cores, ports=1, max_hidden_blocks=1, max_intermediate_blocks=1,
                             clock_hz=1, channel_bytes=1 << 20)


def masks(seed):
    rng = random.Random(seed)
    full = (1 << SLOTS) - 1
    yield from (0, full, 0x55555555, 0xAAAAAAAA, 0xFFFF, 0xFFFF0000)
    for slot in range(SLOTS):
        yield from (1 << slot, full ^ (1 << slot), (1 << slot) - 1)
    for density in (0.1, 0.5, 0.9):
        for _ in range(20):
            yield sum((rng.random() < density) << slot for slot in range(SLOTS))


@pytest.mark.parametrize("cores", [1, 2, 4, 16, 32])
def test_every_mask_is_mapped_evenly(cores):
    seed = 20 + cores
    dut = Drs(config(cores))

    async def bench(ctx):
        for mask in masks(seed):
            where = f"cores {cores}, mask {mask:#010x}, seed {seed}"
            ctx.set(dut.compute, mask)
            ctx.set(dut.decide, 1)
            await ctx.tick()
            ctx.set(dut.decide, 0)
            ctx.set(dut.compute, mask ^ 0xF0F)  # must not matter any more
            for _ in range(LATENCY - 1):
                assert not ctx.get(dut.done), where
                await ctx.tick()
            assert ctx.get(dut.done), where
            computing = [slot for slot in range(SLOTS) if mask >> slot & 1]
            assert ctx.get(dut.index) == mask, where
            assert ctx.get(dut.total) == len(computing), where
            assert ctx.get(dut.busiest) == -(-len(computing) // cores), where
            rows = [ctx.get(dut.core_rows[core]) for core in range(cores)]
            assert rows == [sum(rank % cores == core for rank in range(len(computing))) for core in range(cores)], where
            for slot in range(SLOTS):
                placement = ctx.get(dut.placements[slot])
                assert placement.compute == mask >> slot & 1, where
                if placement.compute:
                    rank = computing.index(slot)
                    assert (placement.core, placement.local) == (rank % cores, rank // cores), f"{where}, slot {slot}"
            await ctx.tick()
            assert not ctx.get(dut.done) and ctx.get(dut.index) == mask, where

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()

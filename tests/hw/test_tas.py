"""TAS comparator against exact Python sums: random slots and gaps, extremes, latency."""

import random

import pytest
from amaranth.sim import Simulator

from hw.config import preset
from hw.tas import LANES, Tas

CONFIG = preset("tiny")
HEADS = CONFIG.max_heads
LOW, HIGH = -(1 << 31), (1 << 31) - 1


def run(jobs, threshold, gap=0.0, seed=0):
    """Feed ``jobs`` (slot, scores); returns verdicts (slot, replay, cycles since the slot's last beat was taken)."""
    rng = random.Random(seed)
    dut = Tas(CONFIG)
    verdicts, last_taken = [], []
    beats = [(slot, scores[k:k + LANES], k + LANES >= len(scores))
             for slot, scores in jobs for k in range(0, len(scores), LANES)]

    async def announce(ctx):
        ctx.set(dut.threshold, threshold)
        for slot, scores in jobs:
            ctx.set(dut.requests.payload, {"slot": slot, "count": len(scores)})
            ctx.set(dut.requests.valid, 1)
            await ctx.tick().until(dut.requests.ready)
            ctx.set(dut.requests.valid, 0)
            while rng.random() < gap:
                await ctx.tick()

    async def feed(ctx):
        for _slot, scores, last in beats:
            filler = [rng.randint(LOW, HIGH) for _ in range(LANES - len(scores))]
            word = sum((value & 0xFFFFFFFF) << 32 * lane for lane, value in enumerate(scores + filler))
            ctx.set(dut.i.payload, word)
            ctx.set(dut.i.valid, 1)
            await ctx.tick().until(dut.i.ready)
            if last:
                last_taken.append(cycle[0])
            ctx.set(dut.i.valid, 0)
            while rng.random() < gap:
                await ctx.tick()

    cycle = [0]

    async def watch(ctx):
        async for _, _, valid, verdict in ctx.tick().sample(dut.verdict_valid, dut.verdict):
            if valid:
                verdicts.append((verdict.slot, verdict.replay, cycle[0]))
            cycle[0] += 1

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(announce)
    sim.add_testbench(feed)
    sim.add_testbench(watch, background=True)

    async def finish(ctx):
        while len(verdicts) < len(jobs):
            await ctx.tick()
            assert cycle[0] < 4000, f"seed {seed}: {len(verdicts)} of {len(jobs)} verdicts after 4000 cycles"

    sim.add_testbench(finish)
    sim.run()
    return verdicts, last_taken, cycle[0]


@pytest.mark.parametrize("seed", range(4))
def test_random_slots_against_exact_sums(seed):
    rng = random.Random(seed)
    threshold = rng.randint(-3, 3) * (1 << 30)
    jobs = [(slot, [rng.randint(LOW, HIGH) for _ in range(rng.randint(1, HEADS))])
            for slot in rng.sample(range(32), 32)]
    verdicts, _, _ = run(jobs, threshold, gap=0.4 if seed % 2 else 0.0, seed=seed)
    for (slot, scores), (got_slot, replay, _) in zip(jobs, verdicts):
        assert (got_slot, replay) == (slot, int(sum(scores) >= threshold)), f"seed {seed}: slot {slot}, scores {scores}"


@pytest.mark.parametrize("value", [LOW, HIGH])
def test_extreme_sums_compare_at_the_last_bit(value):
    total = value * HEADS
    assert [run([(3, [value] * HEADS)], total + d)[0][0][1] for d in (-1, 0, 1)] == [1, 1, 0]


def test_one_beat_a_cycle_and_three_cycles_latency():
    jobs = [(slot, [slot] * HEADS) for slot in range(32)]
    verdicts, taken, cycles = run(jobs, 0)
    beats = len(jobs) * -(-HEADS // LANES)
    assert cycles <= beats + 8, f"{beats} beats took {cycles} cycles"
    assert {verdict[2] - at for verdict, at in zip(verdicts, taken)} == {3}

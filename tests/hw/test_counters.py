"""Counters add their steps exactly; the dispatch timer counts from the last score beat."""

import random

from amaranth.sim import Simulator

from hw.counters import Counters, DispatchTimer
from hw.registers import COUNTERS


def simulate(dut, script):
    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(script)
    sim.run()


def test_sums_and_clear():
    dut, seed = Counters(), 3
    rng = random.Random(seed)

    async def script(ctx):
        for _ in range(2):
            expected = dict.fromkeys(COUNTERS, 0)
            for _ in range(40):
                for name in COUNTERS:
                    step = rng.choice([0, 1, rng.getrandbits(16)])
                    ctx.set(dut.steps[name.lower()], step)
                    expected[name] += step
                await ctx.tick()
            got = {name: ctx.get(dut.values[name.lower()]) for name in COUNTERS}
            assert got == expected, f"seed {seed}"
            ctx.set(dut.clear, 1)
            await ctx.tick()
            ctx.set(dut.clear, 0)
            assert not any(ctx.get(dut.values[name.lower()]) for name in COUNTERS)

    simulate(dut, script)


def test_dispatch_timer():
    dut = DispatchTimer()

    async def pulse(ctx, *signals):
        for signal in signals:
            ctx.set(signal, 1)
        cycles = ctx.get(dut.cycles)
        await ctx.tick()
        for signal in signals:
            ctx.set(signal, 0)
        return cycles

    async def script(ctx):
        for scores, wait in ((3, 4), (0, 2), (1, 7)):
            for _ in range(scores):
                await ctx.tick()
                await pulse(ctx, dut.score_beat)
            await pulse(ctx, dut.decide)
            for _ in range(wait):
                assert ctx.get(dut.cycles) == 0
                await ctx.tick()
            # A score beat starts the measurement, a DECIDE only where there was none.
            assert await pulse(ctx, dut.dispatch) == wait + 1 + (scores > 0)

    simulate(dut, script)

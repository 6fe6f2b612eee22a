"""Life of a job: which error wins, draining, halting, reset, abort, watchdog."""

import pytest
from amaranth.sim import Simulator

from hw.config import preset
from hw.isa import Error
from hw.job import Job


def simulate(script):
    dut = Job(preset("tiny"))
    sim = Simulator(dut)
    sim.add_clock(1e-8)

    async def testbench(ctx):
        await script(ctx, dut)

    sim.add_testbench(testbench)
    sim.run()


async def pulse(ctx, signal):
    ctx.set(signal, 1)
    await ctx.tick()
    ctx.set(signal, 0)


def status(ctx, dut):
    return tuple(ctx.get(dut.status[name]) for name in ("busy", "done", "error", "nan"))


def test_done_and_nan_show_until_the_next_start():
    async def script(ctx, dut):
        await pulse(ctx, dut.start)
        assert ctx.get(dut.running) and status(ctx, dut) == (1, 0, 0, 0)
        ctx.set(dut.nan, 1)
        await ctx.tick()
        assert status(ctx, dut)[3] == 0  # not valid yet
        await pulse(ctx, dut.nan_valid)
        ctx.set(dut.nan, 0)
        await pulse(ctx, dut.finished)
        assert not ctx.get(dut.running) and status(ctx, dut) == (0, 1, 0, 1)
        await pulse(ctx, dut.start)
        assert status(ctx, dut) == (1, 0, 0, 0)

    simulate(script)


@pytest.mark.parametrize("raised, code", [
    (("instruction_error", "read_error"), Error.SLOT), (("read_error", "write_error"), Error.READ),
    (("write_error", "stream_error"), Error.WRITE), (("stream_error", "finished"), Error.STREAM),
])
def test_first_error_wins_drains_and_waits_for_reset(raised, code):
    async def script(ctx, dut):
        await pulse(ctx, dut.start)
        ctx.set(dut.index, 9)
        for name in raised:
            ctx.set(getattr(dut, name), Error.SLOT if name == "instruction_error" else 1)
        ctx.set(dut.traffic, 1)
        await ctx.tick()
        ctx.set(dut.index, 10)
        for name in raised:
            ctx.set(getattr(dut, name), 0)
        for _ in range(5):
            assert ctx.get(dut.flush) and not ctx.get(dut.running) and status(ctx, dut) == (1, 0, 0, 0)
            await ctx.tick()
        ctx.set(dut.traffic, 0)
        await ctx.tick()
        await pulse(ctx, dut.start)  # ignored
        assert status(ctx, dut) == (0, 0, 1, 0)
        assert (ctx.get(dut.error), ctx.get(dut.error_index)) == (code, 9)
        await pulse(ctx, dut.reset)
        assert ctx.get(dut.forget)
        await ctx.tick()
        assert not ctx.get(dut.forget) and status(ctx, dut) == (0, 0, 0, 0)
        assert (ctx.get(dut.error), ctx.get(dut.error_index)) == (Error.NONE, 0)
        await pulse(ctx, dut.start)
        assert ctx.get(dut.running)

    simulate(script)


def test_watchdog_counts_cycles_without_progress_and_bounds_the_draining():
    async def script(ctx, dut):
        ctx.set(dut.watchdog, 20)
        ctx.set(dut.traffic, 1)
        await pulse(ctx, dut.start)
        for _ in range(3):
            for _ in range(15):
                await ctx.tick()
            await pulse(ctx, dut.progress)
        cycles = 0
        while not status(ctx, dut)[2]:
            await ctx.tick()
            cycles += 1
        assert (cycles, ctx.get(dut.error)) == (21, Error.WATCHDOG)
        await pulse(ctx, dut.reset)
        assert ctx.get(dut.forget)
        await ctx.tick()

        await pulse(ctx, dut.start)
        await pulse(ctx, dut.read_error)
        cycles = 0
        while not status(ctx, dut)[2]:
            await ctx.tick()
            cycles += 1
            assert cycles < 30
        assert ctx.get(dut.error) == Error.READ

    simulate(script)


def test_watchdog_off_never_expires():
    async def script(ctx, dut):
        await pulse(ctx, dut.start)
        for _ in range(200):
            await ctx.tick()
        assert status(ctx, dut) == (1, 0, 0, 0)

    simulate(script)

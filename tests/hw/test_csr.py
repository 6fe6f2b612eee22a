"""AXI4-Lite control port against the register map: every address, strobes, protection while a job runs."""

import random

import pytest
from amaranth.sim import Simulator

from hw.config import SLOTS, preset
from hw.csr import SETTINGS, WATCHDOG_INIT, Csr
from hw.identification import identification
from hw.registers import COUNTERS, address

CONFIG = preset("tiny")


def simulate(bench):
    dut = Csr(CONFIG)
    sim = Simulator(dut)
    sim.add_clock(1e-8)

    async def run(ctx):
        await bench(ctx, dut)

    sim.add_testbench(run)
    sim.run()


async def read(ctx, dut, where):
    ctx.set(dut.bus.araddr, where)
    ctx.set(dut.bus.arvalid, 1)
    await ctx.tick().until(dut.bus.arready)
    ctx.set(dut.bus.arvalid, 0)
    ctx.set(dut.bus.rready, 1)
    data, response = await ctx.tick().sample(dut.bus.rdata, dut.bus.rresp).until(dut.bus.rvalid)
    ctx.set(dut.bus.rready, 0)
    assert response == 0
    return data


async def write(ctx, dut, where, value, strobe=0xF):
    """Returns the (start, reset) pulses seen in the cycle after the handshake."""
    ctx.set(dut.bus.awaddr, where)
    ctx.set(dut.bus.wdata, value)
    ctx.set(dut.bus.wstrb, strobe)
    ctx.set(dut.bus.awvalid, 1)
    await ctx.tick()
    assert not ctx.get(dut.bus.awready)  # the address waits for its data
    ctx.set(dut.bus.wvalid, 1)
    await ctx.tick().until(dut.bus.wready)
    start, reset = ctx.get(dut.start), ctx.get(dut.reset)
    ctx.set(dut.bus.awvalid, 0)
    ctx.set(dut.bus.wvalid, 0)
    ctx.set(dut.bus.bready, 1)
    await ctx.tick()
    assert not ctx.get(dut.start) and not ctx.get(dut.reset)
    response, = await ctx.tick().sample(dut.bus.bresp).until(dut.bus.bvalid)
    ctx.set(dut.bus.bready, 0)
    assert response == 0
    return start, reset


def test_constants_and_status_are_where_the_map_says():
    async def bench(ctx, dut):
        ctx.set(dut.status, {"busy": 0, "done": 1, "error": 0, "nan": 1})
        ctx.set(dut.error, 7)
        ctx.set(dut.error_index, 19)
        ctx.set(dut.index, 0x80000001)
        ctx.set(dut.placements[31], {"compute": 1, "core": 1, "local": 3})
        for k, name in enumerate(COUNTERS):
            ctx.set(dut.counters[name.lower()], (k + 1) << 32 | 0xFFFFFF00 + k)
        expected = {address(name): value for name, value in identification(CONFIG).items()}
        expected |= {address("STATUS"): 0b1010, address("ERROR"): 7, address("ERROR_INDEX"): 19,
                     address("INDEX"): 0x80000001, address("WATCHDOG"): WATCHDOG_INIT,
                     address("MAPPING", SLOTS - 1): 1}
        for k, name in enumerate(COUNTERS):
            expected |= {address(name): 0xFFFFFF00 + k, address(name, 1): k + 1}
        for where in [*range(0, 0x400, 4), 0x1000, 0x8000, 0xFFFC]:
            assert await read(ctx, dut, where) == expected.get(where, 0), f"address {where:#x}"

    simulate(bench)


@pytest.mark.parametrize("seed", range(2))
def test_settings_keep_what_was_written(seed):
    async def bench(ctx, dut):
        rng = random.Random(seed)
        expected = {r.name: WATCHDOG_INIT if r.name == "WATCHDOG" else 0 for r in SETTINGS}
        for _ in range(60):
            register = rng.choice(SETTINGS)
            word, value = rng.randrange(register.words), rng.getrandbits(32)
            strobe = rng.choice([0xF, rng.getrandbits(4)])
            await write(ctx, dut, address(register.name, word), value, strobe)
            mask = sum(0xFF << 8 * byte for byte in range(4) if strobe >> byte & 1) << 32 * word
            expected[register.name] = expected[register.name] & ~mask | (value << 32 * word) & mask
        for register in SETTINGS:
            value = expected[register.name]
            words = [await read(ctx, dut, address(register.name, word)) for word in range(register.words)]
            assert sum(w << 32 * k for k, w in enumerate(words)) == value, f"seed {seed}: {register.name}"
            seen = ctx.get(dut.settings[register.name.lower()])
            assert seen & ((1 << 32 * register.words) - 1) == value, f"seed {seed}: {register.name}"
        assert ctx.get(dut.settings.threshold) == expected["THRESHOLD"] - (expected["THRESHOLD"] >> 63 << 64)

    simulate(bench)


def test_control_pulses():
    async def bench(ctx, dut):
        control = address("CONTROL")
        assert await write(ctx, dut, control, 1) == (1, 0)
        assert await write(ctx, dut, control, 2) == (0, 1)
        assert await write(ctx, dut, control, 3) == (0, 1)
        assert await write(ctx, dut, control, 1, strobe=0xE) == (0, 0)
        assert await read(ctx, dut, control) == 0

    simulate(bench)


def test_only_the_watchdog_changes_while_a_job_runs():
    async def bench(ctx, dut):
        await write(ctx, dut, address("ACTIVE"), 5)
        ctx.set(dut.status.busy, 1)
        for name in ("ACTIVE", "WATCHDOG"):
            await write(ctx, dut, address(name), 9)
        await write(ctx, dut, address("MAGIC"), 9)
        assert await read(ctx, dut, address("ACTIVE")) == 5
        assert await read(ctx, dut, address("WATCHDOG")) == 9
        assert await read(ctx, dut, address("MAGIC")) == identification(CONFIG)["MAGIC"]

    simulate(bench)

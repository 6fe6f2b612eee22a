"""Rounding of crafted hidden values: ties, carries over 127, ends of the E8M0 range."""

import numpy as np
from amaranth.sim import Simulator

from hw.requantise import Requantise
from hw.swiglu import KEPT_BITS, LOWEST_POWER, MAGNITUDE_BITS
from model.integer import _requantise
from model.mx import BLOCK
from tests.hw.core_driver import ROWS8
from tests.hw.stimulus import assert_same, unpack


def test_codes_and_scales_equal_the_integer_model():
    seed, count = 17, 60
    rng = np.random.default_rng(seed)
    # Magnitudes with few significant bits, so that many of them tie at every distance from the block maximum.
    significant = rng.integers(16, 32, (count, BLOCK)) << rng.integers(24, MAGNITUDE_BITS - 4, (count, BLOCK))
    magnitude = np.where(rng.random((count, BLOCK)) < 0.2, rng.integers(1 << 28, 1 << 33, (count, BLOCK)), significant)
    magnitude[rng.random((count, BLOCK)) < 0.1] = 0
    magnitude[0] = 0
    magnitude[1] = (1 << MAGNITUDE_BITS) - 1
    negative = rng.random((count, BLOCK)) < 0.5
    weight = rng.integers(-9, 1, (count, BLOCK)) + rng.integers(-150, 100, (count, 1))
    weight[2:5] = [[400], [-500], [90]]
    expected = _requantise(negative, magnitude, weight)

    length = np.vectorize(lambda v: int(v).bit_length())(magnitude)
    aligned = magnitude << (MAGNITUDE_BITS - length)
    low = MAGNITUDE_BITS - KEPT_BITS
    power = np.where(magnitude > 0, length - 1 + weight, LOWEST_POWER)
    dut = Requantise(ROWS8)
    got = []

    async def produce(ctx):
        ctx.set(dut.valid, 1)
        for block in range(count):
            for group in range(dut.groups):
                for lane in range(dut.lanes):
                    at = block, group * dut.lanes + lane
                    ctx.set(dut.values[lane], {
                        "negative": int(negative[at]), "kept": int(aligned[at] >> low),
                        "sticky": int(aligned[at] & ((1 << low) - 1) != 0), "power": int(power[at])})
                ctx.set(dut.tag, {"local": 0, "block": block, "first": group == 0, "last": group == dut.groups - 1})
                await ctx.tick()
        ctx.set(dut.valid, 0)
        for _ in range(dut.latency + 1):
            await ctx.tick()

    async def consume(ctx):
        while True:
            if ctx.get(dut.done):
                got.append([ctx.get(dut.o.scale), *unpack(ctx.get(dut.o.codes.as_value()), 8, BLOCK, signed=True)])
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(produce)
    simulator.add_testbench(consume, background=True)
    simulator.run()
    assert_same(seed, "scale and codes", got, np.concatenate([expected.scales, expected.codes], axis=1))

"""Accumulators to MXINT8 blocks: Normalise, SwiGlu and Requantise in a row against model.integer.swiglu."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from hw.accumulator import sums_layout
from hw.config import preset
from hw.normalise import Normalise
from hw.ops import load_op
from hw.pipeline import delay
from hw.requantise import Requantise, tag_layout
from hw.swiglu import SwiGlu
from model.integer import ACCUMULATOR_BITS, swiglu
from model.mx import BLOCK
from tests.hw.core_driver import ROWS8
from tests.hw.stimulus import assert_same, pack, unpack

LATENCY = Normalise.LATENCY + SwiGlu.LATENCY


class Epilogue(wiring.Component):
    def __init__(self, config):
        self.config = config
        super().__init__({
            "valid": In(1), "tag": In(tag_layout(config)), "sums": In(sums_layout(config.rows)),
            "exponents": In(18), "done": Out(1), "o": Out(load_op(config)),
        })

    def elaborate(self, platform):
        m = Module()
        m.submodules.normalise = normalise = Normalise(self.config.rows)
        m.submodules.swiglu = glu = SwiGlu(self.config.pairs)
        m.submodules.requantise = requantise = Requantise(self.config)
        m.d.comb += [
            normalise.sums.eq(self.sums), normalise.exponents.as_value().eq(self.exponents),
            glu.i.eq(normalise.o), requantise.values.eq(glu.o),
            requantise.valid.eq(delay(m, self.valid, LATENCY, "valid", reset=True)),
            requantise.tag.eq(delay(m, self.tag, LATENCY, "tag")),
            self.done.eq(requantise.done), self.o.eq(requantise.o),
        ]
        return m


def blocks(rng, count):
    """Gate and up accumulators ``[count, BLOCK]`` with exponents ``[count]``, ends and zeros included."""
    def accumulators():
        acc = rng.integers(-(1 << 41), 1 << 41, (count, BLOCK)) >> rng.integers(0, 10, (count, BLOCK))
        acc >>= rng.integers(0, 30, (count, 1))
        acc[rng.random((count, BLOCK)) < 0.05] = 0
        return acc
    gate, up = accumulators(), accumulators()
    # Gates around 1: an accumulator of 30 to 40 bits times 2**(exponent - 278).
    gate_exponent, up_exponent = rng.integers(230, 260, count), rng.integers(200, 280, count)
    gate_exponent[:6], up_exponent[:6] = [0, 508, 508, 240, 130, 240], [0, 508, 0, 508, 0, 100]
    gate[1:3], up[1] = abs(gate[1:3]), abs(up[1])
    gate[6], up[7], gate[8, 1:] = 0, 0, 0
    gate[9], up[9] = -(1 << 41), -(1 << 41)
    return gate, gate_exponent, up, up_exponent


@pytest.mark.parametrize("config, count, gap", [(preset("tiny"), 24, 0.3), (ROWS8, 60, 0.0), (ROWS8, 20, 0.5)])
def test_blocks_equal_the_integer_model(config, count, gap):
    seed = 16
    rng = np.random.default_rng(seed)
    gate, gate_exponent, up, up_exponent = blocks(rng, count)
    expected = swiglu(gate, gate_exponent, up, up_exponent)
    dut = Epilogue(config)
    groups = BLOCK // config.pairs
    latency = LATENCY + 2 + groups
    got, cycle, done, last = [], 0, [], []

    async def produce(ctx):
        for block in range(count):
            for group in range(groups):
                while rng.random() < gap:
                    await ctx.tick()
                pairs = slice(group * config.pairs, (group + 1) * config.pairs)
                sums = np.stack([gate[block, pairs], up[block, pairs]], axis=1).ravel()
                ctx.set(dut.sums.as_value(), pack(sums, ACCUMULATOR_BITS))
                ctx.set(dut.exponents, pack([gate_exponent[block], up_exponent[block]], 9))
                ctx.set(dut.tag, {"local": block % config.locals, "block": block, "first": group == 0,
                                  "last": group == groups - 1})
                ctx.set(dut.valid, 1)
                if group == groups - 1:
                    last.append(cycle)
                await ctx.tick()
                ctx.set(dut.valid, 0)
        for _ in range(latency + 1):
            await ctx.tick()

    async def consume(ctx):
        nonlocal cycle
        while True:
            if ctx.get(dut.done):
                done.append(cycle)
                codes = unpack(ctx.get(dut.o.codes.as_value()), 8, BLOCK, signed=True)
                got.append([ctx.get(dut.o.local), ctx.get(dut.o.block), ctx.get(dut.o.scale), *codes])
            await ctx.tick()
            cycle += 1

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    # In this order, so that ``cycle`` is up to date when ``produce`` notes it.
    simulator.add_testbench(consume, background=True)
    simulator.add_testbench(produce)
    simulator.run()
    index = np.arange(count)[:, None]
    assert_same(seed, "local, block, scale, codes", got,
                np.concatenate([index % config.locals, index, expected.scales, expected.codes], axis=1))
    assert expected.scales.max() == 254 and expected.scales.min() == 0
    assert set(np.subtract(done, last)) == {latency}

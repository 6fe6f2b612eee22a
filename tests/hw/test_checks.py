"""Weight beats that the checks demand, for every kind of build, against hw.layout; the rest is in test_errors.py."""

import random

import pytest
from amaranth.sim import Simulator

from hw.checks import SETTLE_CYCLES, Checks
from hw.config import AcceleratorConfig
from hw.isa import Error, Opcode
from hw.layout import layer_beats


@pytest.mark.parametrize("ports", [1, 2, 16, 32])
def test_weights_must_have_exactly_the_beats_of_their_shape(ports):
    config = AcceleratorConfig(name="t", cores=2, ports=ports, max_hidden_blocks=1024, max_intermediate_blocks=1024,
                               clock_hz=1, channel_bytes=1 << 34)
    seed = 40 + ports
    rng = random.Random(seed)
    shapes = [(1, 1), (1, 2), (2, 1), (3, 5), (128, 344), (1024, 1024), (1023, 1024)]
    shapes += [(rng.randint(1, 1024), rng.randint(1, 1024)) for _ in range(20)]
    dut = Checks(config)

    async def bench(ctx):
        ctx.set(dut.op.word.opcode, Opcode.WEIGHTS)
        ctx.set(dut.state.has_layer, 1)
        for hidden, intermediate in shapes:
            ctx.set(dut.state.layer.hidden_blocks, hidden)
            ctx.set(dut.state.layer.intermediate_blocks, intermediate)
            # The shape is registered in the cycle of ``new_shape``, so it is seen from the next one on.
            ctx.set(dut.new_shape, 1)
            await ctx.tick()
            ctx.set(dut.new_shape, 0)
            waited = 0
            while ctx.get(dut.wait):
                await ctx.tick()
                waited += 1
            assert waited == SETTLE_CYCLES
            beats = layer_beats(config, 32 * hidden, 32 * intermediate)
            for count, error in ((beats - 1, Error.STREAM), (beats, Error.NONE), (beats + 1, Error.STREAM)):
                ctx.set(dut.op.word.count, count)
                got = Error(ctx.get(dut.error))
                where = f"seed {seed}: {ports} ports, {hidden} x {intermediate} blocks, count {count}"
                assert got == error, f"{where}: {got.name} instead of {error.name}"

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()

"""Register slices: nothing lost, repeated or changed while it waits; full rate; every field of a port crosses."""

import random

import pytest
from amaranth.lib.wiring import In
from amaranth.sim import Simulator

from hw import axi
from hw.slice import PortSlice, Skid


@pytest.mark.parametrize("seed, valid_rate, ready_rate", [
    (1, 1, 1), (2, 0.5, 1), (3, 1, 0.5), (4, 0.6, 0.4), (5, 0.2, 0.9),
])
def test_skid_keeps_order_and_holds_its_offer(seed, valid_rate, ready_rate):
    rng = random.Random(seed)
    dut = Skid(8)
    sent, got = [rng.getrandbits(8) for _ in range(120)], []
    cycles = [0]

    async def bench(ctx):
        sending, held = 0, None
        while len(got) < len(sent):
            offer = sending < len(sent) and (ctx.get(dut.i_valid) or rng.random() < valid_rate)
            ctx.set(dut.i_valid, offer)
            ctx.set(dut.i, sent[sending] if offer else 0)
            ctx.set(dut.o_ready, rng.random() < ready_rate)
            taken = offer and ctx.get(dut.i_ready)
            valid, ready, value = ctx.get(dut.o_valid), ctx.get(dut.o_ready), ctx.get(dut.o)
            assert held is None or (valid and value == held), f"seed {seed}: offer {held} changed at item {len(got)}"
            held = value if valid and not ready else None
            if valid and ready:
                got.append(value)
            await ctx.tick()
            if taken:
                sending += 1
                ctx.set(dut.i_valid, 0)
            cycles[0] += 1
            assert cycles[0] < 3000, f"seed {seed}: stuck after {len(got)} items"

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    assert got == sent, f"seed {seed}"
    if valid_rate == ready_rate == 1:
        assert cycles[0] == len(sent) + 1


@pytest.mark.parametrize("signature", [axi.ReadMaster, axi.WriteMaster, axi.Master], ids=["read", "write", "both"])
def test_every_field_crosses_within_a_cycle(signature):
    dut = PortSlice(signature)
    seed = 77
    rng = random.Random(seed)

    async def bench(ctx):
        values = {}
        for name, member in signature.members.items():
            inner, outer = getattr(dut.inner, name), getattr(dut.outer, name)
            source, target = (outer, inner) if member.flow == In else (inner, outer)
            if name.endswith("ready"):
                ctx.set(source, 0)
            else:
                values[name] = (target, 1 if name.endswith("valid") else rng.getrandbits(len(source)))
                ctx.set(source, values[name][1])
        await ctx.tick()
        for name, (target, value) in values.items():
            assert ctx.get(target) == value, f"seed {seed}: {name}"

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()

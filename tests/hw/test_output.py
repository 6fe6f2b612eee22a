"""Output packing: order, addresses, dropped padding, and that ``ready`` keeps its promise under back-pressure."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.config import preset
from hw.output import MARGIN, Output
from model.mx import BLOCK
from tests.hw.core_driver import ROWS8, ROWS64
from tests.hw.stimulus import pack

DELAY = 8
"""Cycles from an operation to its words, as in the epilogue."""


@pytest.mark.parametrize("config, blocks, hidden_blocks", [(preset("tiny"), 6, 6), (ROWS8, 40, 40), (ROWS64, 40, 35)])
@pytest.mark.parametrize("stall", [0.0, 0.9])
def test_beats_in_order_at_their_addresses(config, blocks, hidden_blocks, stall):
    seed = 21
    rng = np.random.default_rng(seed)
    dut = Output(config)
    locals_ = 2
    bases = [(1 << 39) + 4096 * 5, 64 * 7]
    words = rng.integers(0, 1 << 16, (locals_, blocks, BLOCK))
    got, issued = [], []
    expected = [(bases[local] + 64 * block, pack(words[local, block], 16))
                for local in range(locals_) for block in range(hidden_blocks)]

    def operations():
        flat = words.reshape(locals_, -1, config.rows)
        for local in range(locals_):
            for group in range(flat.shape[1]):
                row = group * config.rows
                yield ({"local": local, "block": row // BLOCK, "first": row % BLOCK == 0,
                        "last": (row + config.rows) % BLOCK == 0}, pack(flat[local, group], 16))

    async def produce(ctx):
        ctx.set(dut.hidden_blocks, hidden_blocks)
        for local, address in enumerate(bases):
            ctx.set(dut.bind_valid, 1)
            ctx.set(dut.bind, {"local": local, "address": address})
            await ctx.tick()
        ctx.set(dut.bind_valid, 0)
        pending, pipeline, ready = list(operations()), [None] * DELAY, [False] * (MARGIN - 1)
        deadline = 20000
        while len(got) < len(expected):
            # The source sees ``ready`` as late as the contract allows.
            ready.append(bool(ctx.get(dut.ready)))
            op = pending.pop(0) if ready.pop(0) and pending else None
            ctx.set(dut.reserve, op is not None and op[0]["first"])
            pipeline.append(op)
            words_now = pipeline.pop(0)
            ctx.set(dut.valid, words_now is not None)
            if words_now:
                ctx.set(dut.tag, words_now[0])
                ctx.set(dut.words.as_value(), words_now[1])
            issued.append(op is not None)
            await ctx.tick()
            deadline -= 1
            assert deadline, f"seed {seed}: {len(got)} of {len(expected)} beats came"

    async def consume(ctx):
        while True:
            ctx.set(dut.o.ready, rng.random() >= stall)
            _, _, valid, ready, payload = await ctx.tick().sample(dut.o.valid, dut.o.ready, dut.o.payload)
            if valid and ready:
                got.append((payload.address, payload.data))

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(produce)
    simulator.add_testbench(consume, background=True)
    simulator.run()
    assert got == expected, f"seed {seed}"
    if not stall and config.rows <= BLOCK:
        busy = issued[issued.index(True):len(issued) - issued[::-1].index(True)]
        assert all(busy), f"{busy.count(False)} bubbles without back-pressure"

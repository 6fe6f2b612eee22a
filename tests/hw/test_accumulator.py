import numpy as np
from amaranth.sim import Simulator

from hw.accumulator import Accumulator
from hw.align import SHIFTED_BITS
from hw.config import preset
from model.integer import ACCUMULATOR_BITS
from tests.hw.stimulus import pack, unpack

TINY = preset("tiny")


def test_random_operations_equal_a_dictionary():
    seed = 13
    rng = np.random.default_rng(seed)
    dut = Accumulator(TINY)
    indices = [0, 1, dut.depth - 1]

    async def bench(ctx):
        sums = {}
        for cycle in range(600):
            index = int(rng.choice(indices))
            valid, first = bool(rng.random() < 0.9), index not in sums or bool(rng.random() < 0.1)
            values = rng.integers(-(1 << 31), 1 << 31, TINY.rows)
            carries = rng.integers(0, 2, TINY.rows)
            ctx.set(dut.valid, valid)
            ctx.set(dut.first, first)
            ctx.set(dut.index, index)
            for row in range(TINY.rows):
                ctx.set(dut.terms[row].value, int(values[row]))
                ctx.set(dut.terms[row].carry, int(carries[row]))
            await ctx.tick()
            if valid:
                old = np.zeros(TINY.rows, dtype=np.int64) if first else sums[index]
                sums[index] = old + values + carries
            for at, expected in sums.items():
                ctx.set(dut.read_index, at)
                got = unpack(ctx.get(dut.sums.as_value()), ACCUMULATOR_BITS, TINY.rows, signed=True)
                assert got == list(expected), f"seed {seed}: cycle {cycle}, index {at}: {got}, expected {expected}"

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()


def test_longest_reduction_of_largest_terms_does_not_overflow():
    dut = Accumulator(TINY)
    term = -(1 << (SHIFTED_BITS - 1))

    async def bench(ctx):
        ctx.set(dut.valid, 1)
        for row in range(TINY.rows):
            ctx.set(dut.terms[row].value, term)
        for block in range(1024):
            ctx.set(dut.first, block == 0)
            await ctx.tick()
        assert ctx.get(dut.sums.as_value()) == pack([1024 * term] * TINY.rows, ACCUMULATOR_BITS)

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()

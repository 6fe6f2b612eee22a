"""Feed a fixed-latency unit one item a cycle in Amaranth's simulator, and collect what comes out."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from hw.normalise import Normalised


def through(unit, latency: int, items: Sequence[Any], drive: Callable, sample: Callable) -> list:
    """``sample(ctx)`` ``latency`` cycles after ``drive(ctx, item)``, for every item, one item a cycle."""
    results = []

    async def bench(ctx):
        for cycle in range(len(items) + latency):
            if cycle < len(items):
                drive(ctx, items[cycle])
            if cycle >= latency:
                results.append(sample(ctx))
            await ctx.tick()

    simulator = Simulator(unit)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    return results


def pack(values, bits: int) -> int:
    """Integers as consecutive two's-complement fields of ``bits`` bits, the first one lowest."""
    mask = (1 << bits) - 1
    return sum((int(value) & mask) << (bits * index) for index, value in enumerate(values))


def unpack(word: int, bits: int, count: int, *, signed: bool) -> list[int]:
    """Inverse of :func:`pack`."""
    fields = [(word >> (bits * index)) & ((1 << bits) - 1) for index in range(count)]
    return [f - (1 << bits) if signed and f >> (bits - 1) else f for f in fields]


def normalised_int(negative, mantissa, power, sticky=0) -> int:
    """Bits of one ``Normalised``."""
    return Normalised.const({"negative": int(negative), "mantissa": int(mantissa), "sticky": int(sticky),
                             "power": int(power)}).as_value().value & ((1 << Normalised.size) - 1)


def assert_same(seed: int, what: str, got, expected):
    """Equal arrays, or a message with the seed and the first difference."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"seed {seed}: {what} has shape {got.shape}, expected {expected.shape}"
    wrong = np.argwhere(got != expected)
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        raise AssertionError(f"seed {seed}: {len(wrong)} of {got.size} {what} differ, first at {at}: "
                             f"{got[at]}, expected {expected[at]}")

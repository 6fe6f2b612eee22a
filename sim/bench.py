"""What the cocotb testbenches share: clock and reset, streams with random stalls, payloads as layouts."""

import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from amaranth.lib.data import Layout
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge
from cocotb.utils import get_sim_time

from sim.cocotb_runner import INPUTS_VARIABLE, SEED_VARIABLE

SEED = int(os.environ.get(SEED_VARIABLE, "1"))
"""Seed of the run, set by the runner and printed when a test fails."""


CLOCK_NS = 10


def generator(name: str) -> random.Random:
    """Random numbers of one test: other tests' draws do not move them."""
    return random.Random(f"{SEED}/{name}")


async def start(dut) -> None:
    """Clock and reset with all inputs 0. Only inputs: a constant output that is written stays wrong."""
    for name in os.environ[INPUTS_VARIABLE].split(","):
        if name != "clk":
            signal(dut, name).value = 0
    Clock(dut.clk, CLOCK_NS, unit="ns").start()
    await reset(dut)


async def reset(dut, cycles: int = 3) -> None:
    """Reset of ``cycles`` cycles; bus models that exist already see it too."""
    dut.rst.value = 1
    for _ in range(cycles):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)


def signal(dut, name: str):
    """Handle of port ``name``; the error names the port."""
    try:
        return getattr(dut, name)
    except AttributeError:
        raise AttributeError(f"the design has no port {name!r}") from None


def pack(layout: Layout, fields: Any) -> int:
    """Bit pattern of a payload."""
    return layout.const(fields).as_bits()


def unpack(layout: Layout, bits: int) -> Any:
    """Payload from its bit pattern; fields are attributes."""
    return layout.from_bits(bits)


async def put(dut, name: str, payloads: Iterable[int], rng: random.Random, stall: float = 0.0,
              each: Callable[[int], None] | None = None) -> None:
    """Send payloads over stream ``name``, a random wait before each; ``each`` hears the index of what was taken."""
    valid, ready, payload = (signal(dut, f"{name}__{pin}") for pin in ("valid", "ready", "payload"))
    for index, bits in enumerate(payloads):
        while rng.random() < stall:
            await RisingEdge(dut.clk)
        payload.value = bits
        valid.value = 1
        await RisingEdge(dut.clk)
        while not int(ready.value):
            await RisingEdge(dut.clk)
        if each:
            each(index)
        valid.value = 0


async def get(dut, name: str, count: int, rng: random.Random, stall: float = 0.0, limit: int = 200_000) -> list[int]:
    """Take ``count`` payloads from stream ``name``, ``ready`` low at random. An offer must be held until taken."""
    valid, ready, payload = (signal(dut, f"{name}__{pin}") for pin in ("valid", "ready", "payload"))
    taken: list[int] = []
    held = None
    for _ in range(limit):
        if len(taken) == count:
            ready.value = 0
            return taken
        now_ready = rng.random() >= stall
        ready.value = now_ready
        await RisingEdge(dut.clk)
        bits = int(payload.value) if int(valid.value) else None
        assert held is None or bits == held, f"seed {SEED}: stream {name} changed or withdrew payload {len(taken)}"
        held = None if now_ready else bits
        if now_ready and bits is not None:
            taken.append(bits)
    raise AssertionError(f"seed {SEED}: stream {name} gave {len(taken)} of {count} payloads in {limit} cycles")


def stalls(rng: random.Random, probability: float) -> Iterator[bool]:
    """Pause pattern of a bus model."""
    while True:
        yield rng.random() < probability


def now() -> int:
    """Clock cycles since the start of the simulation: the same number for all that happens at one edge."""
    return int(get_sim_time("ns")) // CLOCK_NS

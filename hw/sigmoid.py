"""Sigmoid of normalised gates: a table of 512 intervals with linear interpolation.

Source: docs/numerics.md, SiLU; model.integer.sigmoid is the reference and holds the table.
"""

import numpy as np
from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.memory import Memory, ReadPort
from amaranth.lib.wiring import In, Out

from hw.normalise import Normalised
from hw.pipeline import delay
from model.integer import (
    MANTISSA_BITS,
    SIGMOID_BASE,
    SIGMOID_BITS,
    SIGMOID_DELTA,
    SIGMOID_FRACTION_BITS,
    SIGMOID_INDEX_BITS,
    SIGMOID_RANGE,
    SIGMOID_SHIFT,
)

ONE = 1 << SIGMOID_BITS
SHIFT_BITS = int(SIGMOID_SHIFT.max()).bit_length()
DELTA_BITS = int(SIGMOID_DELTA.max()).bit_length()
LARGEST_POWER = SIGMOID_RANGE.bit_length() - 2
"""|gate| is below SIGMOID_RANGE, a power of two, when its power is at most this."""

Factor = StructLayout({"factor": SIGMOID_BITS + 1, "shift": SHIFT_BITS})
"""Sigmoid ``factor * 2**-(SIGMOID_BITS + shift)``, factor at most 2**SIGMOID_BITS."""

TableEntry = StructLayout({"base": SIGMOID_BITS + 1, "delta": DELTA_BITS, "shift": SHIFT_BITS})


def table() -> list[dict]:
    """Contents of the ROM: TableEntry constants, one an interval."""
    shift = np.repeat(SIGMOID_SHIFT, 1 << SIGMOID_INDEX_BITS)
    return [{"base": int(b), "delta": int(d), "shift": int(s)} for b, d, s in zip(SIGMOID_BASE, SIGMOID_DELTA, shift)]


class Sigmoid(wiring.Component):
    """Sigmoid of ``lanes`` gates, one set a cycle, latency :attr:`LATENCY` cycles.

    Members
    -------
    gates : :py:`In(ArrayLayout(Normalised, lanes))`
    o : :py:`Out(ArrayLayout(Factor, lanes))`
    """

    LATENCY = 5

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__({"gates": In(ArrayLayout(Normalised, lanes)), "o": Out(ArrayLayout(Factor, lanes))})

    def elaborate(self, platform) -> Module:
        m = Module()
        entries = table()
        m.submodules.table = rom = Memory(shape=TableEntry, depth=len(entries), init=entries)
        for lane in range(self.lanes):
            self._lane(m, lane, self.gates[lane], rom.read_port())
        return m

    def _lane(self, m: Module, lane: int, gate: View, port: ReadPort) -> None:
        # |gate| in units of 2**-(SIGMOID_INDEX_BITS + SIGMOID_FRACTION_BITS), 0 outside the table.
        argument = Signal(MANTISSA_BITS, name=f"argument_{lane}", reset_less=True)
        inside, outside = Signal(name=f"inside_{lane}"), Signal(name=f"outside_{lane}")
        right = Signal(4, name=f"right_{lane}")
        m.d.comb += [
            right.eq(LARGEST_POWER - gate.power),
            inside.eq((gate.power <= LARGEST_POWER) & (gate.power > LARGEST_POWER - MANTISSA_BITS)),
            outside.eq((gate.power > LARGEST_POWER) & gate.mantissa[-1]),
        ]
        m.d.sync += argument.eq(Mux(inside, gate.mantissa >> right, 0))
        m.d.comb += [port.addr.eq(argument[SIGMOID_FRACTION_BITS:]), port.en.eq(1)]

        fraction = delay(m, argument[:SIGMOID_FRACTION_BITS], 1, f"fraction_{lane}")
        drop = Signal(DELTA_BITS + SIGMOID_FRACTION_BITS, name=f"drop_{lane}", reset_less=True)
        m.d.sync += drop.eq(port.data.delta * fraction)

        falling = Signal(SIGMOID_BITS + 1, name=f"falling_{lane}", reset_less=True)
        base = delay(m, port.data.base, 1, f"base_{lane}")
        m.d.sync += falling.eq(base - drop[SIGMOID_FRACTION_BITS:])

        # sigmoid(a) = 1 - sigmoid(-a); the positive side needs no scaling.
        shift = delay(m, port.data.shift, 2, f"shift_{lane}")
        negative = delay(m, gate.negative, self.LATENCY - 1, f"negative_{lane}")
        outside = delay(m, outside, self.LATENCY - 1, f"outside_{lane}")
        factor = Signal(SIGMOID_BITS + 1, name=f"factor_{lane}", reset_less=True)
        positive_shift = Signal(SHIFT_BITS, name=f"positive_shift_{lane}", reset_less=True)
        m.d.sync += [
            factor.eq(Mux(negative, Mux(outside, 0, falling), ONE - Mux(outside, 0, falling >> shift))),
            positive_shift.eq(Mux(negative, shift, 0)),
        ]
        m.d.comb += [self.o[lane].factor.eq(factor), self.o[lane].shift.eq(positive_shift)]

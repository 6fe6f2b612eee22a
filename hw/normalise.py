"""Normalisation of accumulators: sign, leading one, 16-bit truncated mantissa and power of two.

Source: docs/numerics.md, epilogue; model.integer.normalise is the reference.
"""

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.wiring import In, Out

from hw.accumulator import sums_layout
from hw.pipeline import delay
from model.integer import ACCUMULATOR_BITS, ACCUMULATOR_EXPONENT, MANTISSA_BITS

POWER_BITS = 10
"""Signed: ACCUMULATOR_EXPONENT is -278; two scale bytes and the leading one add up to 549 at most."""

Normalised = StructLayout({"negative": 1, "mantissa": MANTISSA_BITS, "sticky": 1, "power": signed(POWER_BITS)})
"""|value| = (mantissa + less than one, more than zero if sticky) * 2**(power - MANTISSA_BITS + 1).

``mantissa`` has its top bit set, or is 0 for a zero, whose ``power`` means nothing.
"""


class Normalise(wiring.Component):
    """Normalise a row group, one a cycle, latency :attr:`LATENCY` cycles.

    Members
    -------
    sums : :py:`In(sums_layout(rows))`
    exponents : :py:`In(ArrayLayout(9, 2))`
        Sum of the largest scale bytes, for even and odd rows.
    o : :py:`Out(ArrayLayout(Normalised, rows))`
    """

    LATENCY = 4

    def __init__(self, rows: int):
        self.rows = rows
        super().__init__({
            "sums": In(sums_layout(rows)),
            "exponents": In(ArrayLayout(9, 2)),
            "o": Out(ArrayLayout(Normalised, rows)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        exponents = delay(m, self.exponents, 3, "exponents")
        for row in range(self.rows):
            negative = delay(m, self.sums[row] < 0, self.LATENCY, f"negative_{row}")
            magnitude = Signal(ACCUMULATOR_BITS, name=f"magnitude_{row}", reset_less=True)
            m.d.sync += magnitude.eq(Mux(self.sums[row] < 0, -self.sums[row], self.sums[row]))
            coarse, coarse_shift = self._shift_out_zeros(m, magnitude, (32, 16, 8), f"coarse_{row}")
            coarse_shift = delay(m, coarse_shift, 1, f"coarse_shift_{row}")
            fine, fine_shift = self._shift_out_zeros(m, coarse, (4, 2, 1), f"fine_{row}")
            power = Signal(signed(POWER_BITS), name=f"power_{row}", reset_less=True)
            top = ACCUMULATOR_BITS - 1 + ACCUMULATOR_EXPONENT
            m.d.sync += power.eq(exponents[row % 2] + top - coarse_shift - fine_shift)
            mantissa = delay(m, fine[-MANTISSA_BITS:], 1, f"mantissa_{row}")
            sticky = delay(m, fine[:-MANTISSA_BITS].any(), 1, f"sticky_{row}")
            m.d.comb += [self.o[row].negative.eq(negative), self.o[row].mantissa.eq(mantissa),
                         self.o[row].sticky.eq(sticky), self.o[row].power.eq(power)]
        return m

    @staticmethod
    def _shift_out_zeros(m: Module, value: Value, steps: tuple[int, ...], name: str) -> tuple[Signal, Signal]:
        """Shift left by each step whose top bits are all zero; returns the result and the shift, one cycle later."""
        total = 0
        for step in steps:
            empty = Signal(name=f"{name}_by_{step}")
            m.d.comb += empty.eq(value[-step:] == 0)
            shifted = Signal(ACCUMULATOR_BITS, name=f"{name}_{step}")
            m.d.comb += shifted.eq(Mux(empty, value << step, value))
            value, total = shifted, total + Mux(empty, step, 0)
        shift = Signal(6, name=f"{name}_shift", reset_less=True)
        result = Signal(ACCUMULATOR_BITS, name=f"{name}_result", reset_less=True)
        m.d.sync += [shift.eq(total), result.eq(value)]
        return result, shift

"""SwiGLU: sigmoid(gate) * gate * up on normalised accumulators, before requantisation.

Source: FastCar (arXiv:2505.14709), MLP module; docs/numerics.md; model.integer.swiglu is the reference.
"""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.wiring import In, Out

from hw.normalise import POWER_BITS, Normalised
from hw.pipeline import delay
from hw.sigmoid import Sigmoid
from model.integer import MANTISSA_BITS, SIGMOID_BITS, SILU_SHIFT

SILU_BITS = MANTISSA_BITS + SIGMOID_BITS + 1 - SILU_SHIFT - 1
"""A mantissa below 2**16 times a factor of at most 2**16, less the dropped bits: 17."""
MAGNITUDE_BITS = SILU_BITS + MANTISSA_BITS
NORMALISING_SHIFTS = 4
"""A non-zero magnitude has its leading one in the top five bits (model.integer._requantise)."""
TOP_POWER = MAGNITUDE_BITS - 1 - 2 * (MANTISSA_BITS - 1) - SIGMOID_BITS + SILU_SHIFT
"""Power of the magnitude's top bit for gate and up powers of 0 and sigmoid shift 0."""
KEPT_BITS = 8
"""Code bits of the largest element of a block (7) and the first dropped bit; ``sticky`` stands for the others."""
HIDDEN_POWER_BITS = POWER_BITS + 1
LOWEST_POWER = -(1 << (HIDDEN_POWER_BITS - 1))
"""Power of a zero: below every other, -582 at the lowest."""

Hidden = StructLayout({"negative": 1, "kept": KEPT_BITS, "sticky": 1, "power": signed(HIDDEN_POWER_BITS)})
"""An unrounded hidden value: |value| = (kept + a fraction that is not 0 if sticky) * 2**(power - KEPT_BITS + 1).

``kept`` has its top bit set, or all is 0 and ``power`` LOWEST_POWER for a zero.
"""


class SwiGlu(wiring.Component):
    """``lanes`` gate/up pairs a cycle, latency :attr:`LATENCY` cycles.

    Members
    -------
    i : :py:`In(ArrayLayout(Normalised, 2 * lanes))`
        Even entries are gates, odd entries ups.
    o : :py:`Out(ArrayLayout(Hidden, lanes))`
    """

    LATENCY = Sigmoid.LATENCY + 3

    def __init__(self, lanes: int):
        self.lanes = lanes
        super().__init__({"i": In(ArrayLayout(Normalised, 2 * lanes)), "o": Out(ArrayLayout(Hidden, lanes))})

    def elaborate(self, platform) -> Module:
        m = Module()
        m.submodules.sigmoid = sigmoid = Sigmoid(self.lanes)
        for lane in range(self.lanes):
            gate, up, hidden = self.i[2 * lane], self.i[2 * lane + 1], self.o[lane]
            m.d.comb += sigmoid.gates[lane].eq(gate)
            self._lane(m, lane, gate, up, sigmoid.o[lane], hidden)
        return m

    def _lane(self, m: Module, lane: int, gate: View, up: View, factor: View, hidden: View) -> None:
        gate_mantissa = delay(m, gate.mantissa, Sigmoid.LATENCY, f"gate_{lane}")
        silu = Signal(SILU_BITS, name=f"silu_{lane}", reset_less=True)
        m.d.sync += silu.eq((gate_mantissa * factor.factor) >> SILU_SHIFT)

        up_mantissa = delay(m, up.mantissa, Sigmoid.LATENCY + 1, f"up_{lane}")
        magnitude = Signal(MAGNITUDE_BITS, name=f"magnitude_{lane}", reset_less=True)
        m.d.sync += magnitude.eq(silu * up_mantissa)

        weight_shape = signed(HIDDEN_POWER_BITS)
        powers = Signal(weight_shape, name=f"powers_{lane}", reset_less=True)
        m.d.sync += powers.eq(gate.power + up.power)
        powers = delay(m, powers, Sigmoid.LATENCY - 1, f"powers_{lane}")
        weight = Signal(weight_shape, name=f"weight_{lane}", reset_less=True)
        m.d.sync += weight.eq(powers - factor.shift + TOP_POWER)
        weight = delay(m, weight, 1, f"weight_{lane}")

        shift = Signal(range(NORMALISING_SHIFTS + 1), name=f"shift_{lane}")
        m.d.comb += shift.eq(NORMALISING_SHIFTS)
        for zeros in reversed(range(NORMALISING_SHIFTS)):
            with m.If(magnitude[MAGNITUDE_BITS - 1 - zeros]):
                m.d.comb += shift.eq(zeros)
        aligned = Signal(MAGNITUDE_BITS, name=f"aligned_{lane}")
        m.d.comb += aligned.eq(magnitude << shift)
        result = Signal(Hidden, name=f"result_{lane}", reset_less=True)
        m.d.sync += [
            result.kept.eq(aligned[-KEPT_BITS:]),
            result.sticky.eq(aligned[:-KEPT_BITS].any()),
            result.power.eq(Mux(aligned[-1], weight - shift, LOWEST_POWER)),
        ]
        negative = delay(m, gate.negative ^ up.negative, self.LATENCY, f"negative_{lane}")
        m.d.comb += [hidden.eq(result), hidden.negative.eq(negative)]

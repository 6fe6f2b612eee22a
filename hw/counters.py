"""Performance counters: what each one means is said in hw/registers.py."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from hw.csr import CounterValues
from hw.registers import COUNTERS

STEP_BITS = 16
Steps = StructLayout({name.lower(): STEP_BITS for name in COUNTERS})
"""How much to add to each counter in this cycle."""


class Counters(wiring.Component):
    """64-bit sums of ``steps``. ``clear`` sets all to 0 and wins over a step.

    A job with several layers adds up over its layers, BUSIEST_ROWS too.
    """

    clear: In(1)
    steps: In(Steps)
    values: Out(CounterValues)

    def elaborate(self, platform):
        m = Module()
        for name in COUNTERS:
            name = name.lower()
            with m.If(self.clear):
                m.d.sync += self.values[name].eq(0)
            with m.Else():
                m.d.sync += self.values[name].eq(self.values[name] + self.steps[name])
        return m


class DispatchTimer(wiring.Component):
    """Measures the scheduling time of a layer: from its last score beat (or its DECIDE, if no score came) to its first
    dispatch. ``cycles`` is the result in the cycle of ``dispatch`` and 0 otherwise; it counts the dispatch cycle.
    """

    score_beat: In(1)
    decide: In(1)
    dispatch: In(1)
    cycles: Out(STEP_BITS)

    def elaborate(self, platform):
        m = Module()
        timing, count = Signal(), Signal(STEP_BITS)
        m.d.sync += count.eq(count + 1)
        with m.If(self.score_beat | (self.decide & ~timing)):
            m.d.sync += [count.eq(1), timing.eq(1)]
        with m.If(self.dispatch):
            m.d.comb += self.cycles.eq(count)
            m.d.sync += timing.eq(0)
        return m

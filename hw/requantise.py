"""Requantisation of hidden values to MXINT8: block maximum, shared exponent, ties-to-even rounding.

Source: OCP Microscaling v1.0, section 6.3; docs/numerics.md; model.integer._requantise is the reference.
"""

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.wiring import In, Out

from hw.config import AcceleratorConfig
from hw.ops import BLOCK_BITS, load_op
from hw.pipeline import delay, tree
from hw.swiglu import HIDDEN_POWER_BITS, KEPT_BITS, LOWEST_POWER, Hidden
from model.mx import BLOCK, FORMATS, SCALE_BIAS

LARGEST_CODE = FORMATS["mxint8"].largest
POWER = signed(HIDDEN_POWER_BITS)


def tag_layout(config: AcceleratorConfig) -> StructLayout:
    """Which block a row group belongs to, and whether it opens, closes it."""
    return StructLayout({"local": range(config.locals), "block": BLOCK_BITS, "first": 1, "last": 1})


class Requantise(wiring.Component):
    """Collect the groups of a block, then round them at the same rate. Groups of a block come in order, gaps allowed.

    No back-pressure: a block takes as many cycles to round as its groups take to arrive. Latency from the last group to
    the block: :attr:`latency` cycles.

    Members
    -------
    valid : :py:`In(1)`
    tag : :py:`In(tag_layout(config))`
    values : :py:`In(ArrayLayout(Hidden, config.pairs))`
        Hidden values of one row group.
    done : :py:`Out(1)`
    o : :py:`Out(load_op(config))`
        A finished block, valid with ``done``. The largest of its codes is 64 or more, unless the block is zero (scale
        byte 0) or its exponent is at an end of the E8M0 range.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        self.lanes = config.pairs
        self.groups = BLOCK // self.lanes
        self.latency = 2 + self.groups
        super().__init__({
            "valid": In(1),
            "tag": In(tag_layout(config)),
            "values": In(ArrayLayout(Hidden, self.lanes)),
            "done": Out(1),
            "o": Out(load_op(config)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        group_layout = ArrayLayout(Hidden, self.lanes)
        block_layout = ArrayLayout(group_layout, self.groups)

        # Stage 1: maximum of the group.
        valid = delay(m, self.valid, 1, "valid", reset=True)
        tag = delay(m, self.tag, 1, "tag")
        values = delay(m, self.values, 1, "values")
        group_power = Signal(POWER, reset_less=True)
        m.d.sync += group_power.eq(tree([self.values[lane].power for lane in range(self.lanes)], _larger))

        # Stage 2: maximum of the block so far; the groups enter from the top, the first one ends at the bottom.
        collected = Signal(block_layout, reset_less=True)
        so_far = Signal(POWER, reset_less=True)
        power = Signal(POWER)
        block = Signal(block_layout)
        m.d.comb += [
            power.eq(_larger(group_power, Mux(tag.first, LOWEST_POWER, so_far))),
            block.as_value().eq(_push(collected, values)),
        ]
        with m.If(valid):
            m.d.sync += [so_far.eq(power), collected.eq(block)]

        # Stage 3: round a group a cycle.
        held = Signal(block_layout, reset_less=True)
        exponent = Signal(signed(8), reset_less=True)
        remaining = Signal(range(self.groups + 1))
        codes = Signal(ArrayLayout(ArrayLayout(signed(8), self.lanes), self.groups), reset_less=True)
        rounded = Signal(ArrayLayout(signed(8), self.lanes))
        local, index = Signal.like(tag.local, reset_less=True), Signal.like(tag.block, reset_less=True)
        finished = Signal()
        for lane in range(self.lanes):
            m.d.comb += rounded[lane].eq(self._round(m, held[0][lane], exponent, lane))
        with m.If(remaining != 0):
            m.d.sync += [
                codes.as_value().eq(_push(codes, rounded)),
                held.as_value().eq(held.as_value() >> group_layout.size),
                remaining.eq(remaining - 1),
            ]
        with m.If(valid & tag.last):
            m.d.sync += [
                held.eq(block), remaining.eq(self.groups), local.eq(tag.local), index.eq(tag.block),
                exponent.eq(Mux(power > SCALE_BIAS, SCALE_BIAS, Mux(power < -SCALE_BIAS, -SCALE_BIAS, power))),
            ]
        m.d.sync += finished.eq(remaining == 1)

        # The next block may enter stage 3 while this one leaves.
        m.d.comb += self.done.eq(finished)
        scale = Signal(8, reset_less=True)
        m.d.sync += [scale.eq(exponent + SCALE_BIAS), self.o.local.eq(local), self.o.block.eq(index)]
        m.d.comb += [self.o.scale.eq(scale), self.o.codes.as_value().eq(codes.as_value())]
        return m

    def _round(self, m: Module, value: View, exponent: Signal, lane: int) -> Value:
        """Code of ``value`` in units of ``2**(exponent - 6)``, to nearest, ties to even, at most LARGEST_CODE."""
        difference = Signal(signed(HIDDEN_POWER_BITS + 1), name=f"difference_{lane}")
        m.d.comb += difference.eq(exponent - value.power)
        # kept has 7 code bits and one below them; what the shift pushes out of them stays for the rounding.
        shifted = Signal(2 * KEPT_BITS, name=f"shifted_{lane}")
        m.d.comb += shifted.eq(value.kept.shift_left(KEPT_BITS) >> difference[:3])
        half, code = shifted[KEPT_BITS], shifted[KEPT_BITS + 1:]
        up = half & (shifted[:KEPT_BITS].any() | value.sticky | code[0])
        magnitude = Signal(8, name=f"code_{lane}")
        with m.If(difference < 0):
            m.d.comb += magnitude.eq(LARGEST_CODE)
        with m.Elif(difference < KEPT_BITS):
            total = code + up
            m.d.comb += magnitude.eq(Mux(total > LARGEST_CODE, LARGEST_CODE, total))
        return Mux(value.negative, -magnitude, magnitude)


def _larger(a: Value, b: Value) -> Value:
    return Mux(a > b, a, b)


def _push(groups: View, group: View) -> Value:
    """Shift ``groups`` down by one and put ``group`` on top."""
    width = group.shape().size
    return (groups.as_value() >> width) | (group.as_value() << (groups.shape().size - width))

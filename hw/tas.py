"""TAS comparator: adds the per-head scores of a slot and decides whether it replays.

Source: FastCar (arXiv:2505.14709), eq. 5 and 8, without the division: sum over heads of s_m >= h * tau.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.axi import DATA_BITS
from hw.config import SLOTS, AcceleratorConfig

SCORE_BITS = 32
LANES = DATA_BITS // SCORE_BITS
"""Scores in one 64-byte beat."""
SUM_BITS = 64

Verdict = StructLayout({"slot": range(SLOTS), "replay": 1})
"""``replay`` of a slot whose scores have all been added."""


def score_request(config: AcceleratorConfig) -> StructLayout:
    """Announces that the next ``ceil(count / 16)`` beats hold the ``count`` >= 1 scores of ``slot``."""
    return StructLayout({"slot": range(SLOTS), "count": range(config.max_heads + 1)})


class Tas(wiring.Component):
    """Exact signed sum of each slot's int32 scores against a threshold; one beat a cycle, slots in order.

    A verdict follows the last beat of its slot by three cycles. Lanes beyond ``count`` are ignored.

    Members
    -------
    requests : slots to come, one for each run of beats; holds up to 32.
    i : beats of 16 scores, int32 little-endian, 16 fraction bits; taken only when their slot is known.
    threshold : signed 64 bits, same unit as the sum; quasi-static while beats are in flight.
    verdict_valid, verdict : no back-pressure.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "requests": In(stream.Signature(score_request(config))),
            "i": In(stream.Signature(DATA_BITS)),
            "threshold": In(signed(SUM_BITS)),
            "verdict_valid": Out(1), "verdict": Out(Verdict),
        })

    def elaborate(self, platform):
        m = Module()
        layout = score_request(self.config)
        m.submodules.slots = slots = SyncFIFO(width=layout.size, depth=SLOTS)
        wiring.connect(m, wiring.flipped(self.requests), slots.w_stream)
        head = layout(slots.r_data)

        taken = Signal.like(head.count)
        left = Signal.like(head.count)
        accept, last, first = Signal(), Signal(), Signal()
        m.d.comb += [left.eq(head.count - taken), last.eq(left <= LANES), first.eq(taken == 0)]
        m.d.comb += [self.i.ready.eq(slots.r_rdy), accept.eq(self.i.valid & slots.r_rdy), slots.r_en.eq(accept & last)]
        with m.If(accept):
            m.d.sync += taken.eq(Mux(last, 0, taken + LANES))

        scores = ArrayLayout(signed(SCORE_BITS), LANES)(self.i.payload)
        quarters = Signal(ArrayLayout(signed(SCORE_BITS + 2), LANES // 4))
        beat_sum = Signal(signed(SCORE_BITS + 4))
        total = Signal(signed(SUM_BITS))
        for quarter in range(LANES // 4):
            lanes = range(4 * quarter, 4 * quarter + 4)
            m.d.sync += quarters[quarter].eq(sum(Mux(left > lane, scores[lane], 0) for lane in lanes))
        m.d.sync += beat_sum.eq(sum(quarters[quarter] for quarter in range(LANES // 4)))

        tags = [Signal(StructLayout({"valid": 1, "first": 1, "last": 1, "slot": range(SLOTS)}), name=f"tag_{stage}")
                for stage in range(3)]
        m.d.sync += tags[0].eq(Cat(accept, first, last, head.slot))
        for earlier, later in zip(tags, tags[1:]):
            m.d.sync += later.eq(earlier)
        with m.If(tags[1].valid):
            m.d.sync += total.eq(Mux(tags[1].first, 0, total) + beat_sum)
        m.d.comb += [
            self.verdict_valid.eq(tags[2].valid & tags[2].last),
            self.verdict.slot.eq(tags[2].slot),
            self.verdict.replay.eq(total >= self.threshold),
        ]
        return m

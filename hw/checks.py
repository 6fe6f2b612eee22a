"""Legality of the next instruction, given what the job has set up so far (error codes of hw/isa.py)."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw import ops
from hw.config import CHUNK_BEATS, PORT_BYTES, SLOTS, AcceleratorConfig
from hw.csr import Settings
from hw.decoder import decoded
from hw.isa import Error, Opcode
from hw.loader import BLOCKS_PER_BEAT
from hw.program import memory_bits
from hw.registers import SOURCE_TAS
from hw.tas import LANES
from model.mx import BLOCK

BEAT_BITS = exact_log2(PORT_BYTES)
SETTLE_CYCLES = 4
"""Cycles from a new shape until the sizes derived from it are right: two registers, and slack."""

LayerState = StructLayout({
    "layer": ops.Shape, "has_layer": 1, "has_weights": 1, "decided": 1,
    "scored": SLOTS, "loaded": SLOTS, "stored": SLOTS,
})
"""What the instructions since LAYER have set up; bit s of the masks belongs to slot s."""


class Checks(wiring.Component):
    """Combinational in ``op`` and ``state``, except sizes derived from ``state.layer``.

    The first that fails is reported: PROGRAM, OPCODE, SLOT, SHAPE (all from the decoder), ORDER, STREAM, ADDRESS.

    ORDER refuses whatever comes before what it needs, a second SCORES, LOAD or STORE of a slot, anything but LOAD and
    STORE between DECIDE and RUN, a LAYER or END between SCORES and DECIDE, and with the TAS as source a DECIDE before
    the scores of every active slot.

    Members
    -------
    op, settings, state : instruction to check, registers, progress of the layer.
    computing : slots that compute, as the DRS decided; used once ``state.decided``.
    new_shape : pulse, ``state.layer`` changes with the next clock edge.
    discard : the instruction is legal but does nothing, because of its slot or the source; its address is not checked.
    wait : the verdict is not known yet.
    error : what is wrong, or NONE.
    size : 64-byte beats of memory that the instruction names.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "op": In(decoded(config)), "settings": In(Settings), "state": In(LayerState),
            "computing": In(SLOTS), "new_shape": In(1),
            "discard": Out(1), "wait": Out(1), "error": Out(Error), "size": Out(32),
        })

    def elaborate(self, platform):
        m = Module()
        config, op, state = self.config, self.op, self.state
        opcode = op.word.opcode
        layer_beats = self._layer_beats(m)
        blocks = state.layer.hidden_blocks
        load_beats = Signal(ops.BLOCK_BITS + 1)
        m.d.sync += load_beats.eq(((blocks + PORT_BYTES - 1) >> BEAT_BITS)
                                  + ((blocks + BLOCKS_PER_BEAT - 1) >> exact_log2(BLOCKS_PER_BEAT)))
        settle = Signal(range(SETTLE_CYCLES + 1))
        with m.If(self.new_shape):
            m.d.sync += settle.eq(SETTLE_CYCLES)
        with m.Elif(settle != 0):
            m.d.sync += settle.eq(settle - 1)
        m.d.comb += self.wait.eq((opcode == Opcode.WEIGHTS) & (settle != 0))

        slot = Signal(range(SLOTS))
        use_tas, active, computes = Signal(), Signal(), Signal()
        m.d.comb += [
            slot.eq(op.word.slot), use_tas.eq(self.settings.source == SOURCE_TAS),
            active.eq(self.settings.active.bit_select(slot, 1)), computes.eq(self.computing.bit_select(slot, 1)),
        ]
        stream, order = Signal(), Signal()
        with m.Switch(opcode):
            with m.Case(Opcode.LAYER):
                m.d.comb += order.eq(state.decided | state.scored.any())
            with m.Case(Opcode.WEIGHTS):
                m.d.comb += [order.eq(~state.has_layer | state.decided), self.size.eq(op.word.count),
                             stream.eq(op.word.count != layer_beats)]
            with m.Case(Opcode.SCORES):
                again = state.scored.bit_select(slot, 1)
                m.d.comb += [order.eq(~state.has_weights | state.decided | again), self.discard.eq(~use_tas | ~active),
                             self.size.eq((op.word.count + LANES - 1) >> exact_log2(LANES))]
            with m.Case(Opcode.DECIDE):
                missing = use_tas & (self.settings.active & ~state.scored).any()
                m.d.comb += order.eq(~state.has_weights | state.decided | missing)
            with m.Case(Opcode.LOAD):
                m.d.comb += [order.eq(~state.decided | state.loaded.bit_select(slot, 1)), self.discard.eq(~computes),
                             self.size.eq(load_beats)]
            with m.Case(Opcode.STORE):
                m.d.comb += [order.eq(~state.decided | state.stored.bit_select(slot, 1)), self.discard.eq(~computes),
                             self.size.eq(blocks)]
            with m.Case(Opcode.RUN):
                missing = (self.computing & ~(state.loaded & state.stored)).any()
                m.d.comb += order.eq(~state.decided | missing)
            with m.Case(Opcode.END):
                # Scores that nobody waited for would arrive in the middle of the next job.
                m.d.comb += order.eq(state.decided | state.scored.any())

        end = Signal(40)
        limit = Mux(opcode == Opcode.WEIGHTS, config.channel_bytes >> BEAT_BITS, 1 << (memory_bits(config) - BEAT_BITS))
        addressed = opcode.matches(Opcode.WEIGHTS, Opcode.SCORES, Opcode.LOAD, Opcode.STORE) & ~self.discard
        m.d.comb += end.eq(op.beat + self.size)
        with m.If(op.error != Error.NONE):
            m.d.comb += self.error.eq(op.error)
        with m.Elif(order):
            m.d.comb += self.error.eq(Error.ORDER)
        with m.Elif(stream):
            m.d.comb += self.error.eq(Error.STREAM)
        with m.Elif(addressed & (op.misplaced | (end > limit))):
            m.d.comb += self.error.eq(Error.ADDRESS)
        return m

    def _layer_beats(self, m: Module) -> Value:
        """Beats per port of a layer, as ``layout.layer_beats`` counts them, two registers behind the shape."""
        rows, shape = self.config.rows, self.state.layer
        # A phase has (row groups) * (blocks of the reduction) data beats. With more than 32 rows a group, the last one
        # of an odd number of output blocks is half empty.
        down_groups = (shape.hidden_blocks << exact_log2(BLOCK // rows) if rows <= BLOCK
                       else (shape.hidden_blocks + 1) >> exact_log2(rows // BLOCK))
        gate_up, down, beats = Signal(32), Signal(32), Signal(32)
        m.d.sync += [
            gate_up.eq((shape.intermediate_blocks << exact_log2(2 * BLOCK // rows)) * shape.hidden_blocks),
            down.eq(down_groups * shape.intermediate_blocks),
        ]
        chunk_bits = exact_log2(CHUNK_BEATS)
        m.d.sync += beats.eq(sum(data + ((data + CHUNK_BEATS - 1) >> chunk_bits) for data in (gate_up, down)))
        return beats

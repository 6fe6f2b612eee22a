"""Instruction decoder: checks what can be checked without the state of the job, and forms addresses."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.data import Field, FlexibleLayout, StructLayout
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.csr import Settings
from hw.isa import FIELDS, USED, Error, Opcode
from hw.program import INSTRUCTION_BITS, fetched, memory_bits

WEIGHT_ALIGNMENT = 4096
Word = FlexibleLayout(INSTRUCTION_BITS, {name: Field(width, low) for name, (low, width) in FIELDS.items()})
"""An instruction word of hw/isa.py; fields of different opcodes overlap."""


def decoded(config: AcceleratorConfig) -> StructLayout:
    """A checked instruction.

    ``beat``: address / 64 of the memory it names, base register included (WEIGHTS: inside a port's region).
    ``misplaced``: that address is misaligned or beyond board memory. ``error``: PROGRAM, OPCODE, SLOT, SHAPE or NONE.
    """
    return StructLayout({
        "word": Word, "index": range(config.program_length), "error": Error,
        "beat": memory_bits(config) - exact_log2(PORT_BYTES), "misplaced": 1,
    })


class Decoder(wiring.Component):
    """One register stage, one instruction a cycle.

    Members
    -------
    settings : base registers; quasi-static.
    i, o : instructions in order.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "settings": In(Settings),
            "i": In(stream.Signature(fetched(config))), "o": Out(stream.Signature(decoded(config))),
        })

    def elaborate(self, platform):
        m = Module()
        word = Word(self.i.p.word)
        base, address = Signal(64), Signal(65)
        low, alignment = exact_log2(PORT_BYTES), exact_log2(WEIGHT_ALIGNMENT)
        top = memory_bits(self.config)
        with m.Switch(word.opcode):
            with m.Case(Opcode.SCORES):
                m.d.comb += base.eq(self.settings.scores_base)
            with m.Case(Opcode.LOAD):
                m.d.comb += base.eq(self.settings.input_base)
            with m.Case(Opcode.STORE):
                m.d.comb += base.eq(self.settings.output_base)
        m.d.comb += address.eq(base + word.offset)
        misaligned = Mux(word.opcode == Opcode.WEIGHTS, address[:alignment] != 0, address[:low] != 0)

        legal = self._legal(m, word)
        m.d.comb += self.i.ready.eq(self.o.ready | ~self.o.valid)
        with m.If(self.i.ready):
            m.d.sync += [
                self.o.valid.eq(self.i.valid), self.o.p.word.eq(word), self.o.p.index.eq(self.i.p.index),
                self.o.p.beat.eq(address[low:top]), self.o.p.misplaced.eq(misaligned | (address[top:] != 0)),
                self.o.p.error.eq(Error.NONE),
            ]
            with m.If(self.i.p.missing):
                m.d.sync += self.o.p.error.eq(Error.PROGRAM)
            with m.Elif(~legal):
                m.d.sync += self.o.p.error.eq(Error.OPCODE)
            with m.Elif(word.opcode.matches(Opcode.SCORES, Opcode.LOAD, Opcode.STORE) & (word.slot >= SLOTS)):
                m.d.sync += self.o.p.error.eq(Error.SLOT)
            with m.Elif(self._bad_shape(word)):
                m.d.sync += self.o.p.error.eq(Error.SHAPE)
        return m

    def _legal(self, m: Module, word) -> Value:
        """A known opcode with zeros in every bit that it does not use."""
        legal = Signal()
        with m.Switch(word.opcode):
            for opcode, fields in USED.items():
                used = sum(((1 << FIELDS[name][1]) - 1) << FIELDS[name][0] for name in ("opcode", *fields))
                with m.Case(opcode):
                    unused = ~used & ((1 << INSTRUCTION_BITS) - 1)
                    m.d.comb += legal.eq((word.as_value() & unused) == 0)
        return legal

    def _bad_shape(self, word) -> Value:
        config = self.config
        blocks = ((word.hidden_blocks == 0) | (word.hidden_blocks > config.max_hidden_blocks)
                  | (word.intermediate_blocks == 0) | (word.intermediate_blocks > config.max_intermediate_blocks))
        heads = (word.count == 0) | (word.count > config.max_heads)
        return ((word.opcode == Opcode.LAYER) & blocks) | ((word.opcode == Opcode.SCORES) & heads)

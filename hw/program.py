"""Instruction memory: fetches a job's whole program, then hands it out in order, one instruction a cycle."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.axi import DATA_BITS
from hw.config import PORT_BYTES, AcceleratorConfig
from hw.isa import INSTRUCTION_BYTES, Error
from hw.ops import ReadRequest

INSTRUCTION_BITS = 8 * INSTRUCTION_BYTES
PER_BEAT = PORT_BYTES // INSTRUCTION_BYTES


def memory_bits(config: AcceleratorConfig) -> int:
    """log2 of the size of board memory in bytes."""
    return exact_log2(config.ports * config.channel_bytes)


def fetched(config: AcceleratorConfig) -> StructLayout:
    """An instruction word and its index. ``missing``: the program ended before; ``index`` is that of its last one."""
    return StructLayout({"word": INSTRUCTION_BITS, "index": range(config.program_length), "missing": 1})


class Program(wiring.Component):
    """Runs as soon as it leaves reset: checks where the program lies, reads it once, then offers instruction after
    instruction without end: behind the last one comes an item marked ``missing``.

    Members
    -------
    base, count : PROGRAM_BASE, PROGRAM_COUNT; quasi-static.
    requests, i : one read of the program, and its beats.
    loaded : the whole program is in the instruction memory.
    error : PROGRAM or ADDRESS when the program is refused, NONE otherwise; it stays.
    o : instructions in order.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "base": In(64), "count": In(32),
            "requests": Out(stream.Signature(ReadRequest)), "i": In(stream.Signature(DATA_BITS)),
            "loaded": Out(1), "error": Out(Error), "o": Out(stream.Signature(fetched(config))),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.memory = memory = Memory(
            shape=DATA_BITS, depth=max(2, config.program_length // PER_BEAT), init=[])
        write, read = memory.write_port(), memory.read_port()

        beats = Signal(range(config.program_length // PER_BEAT + 2))
        received = Signal.like(beats)
        m.d.comb += [
            beats.eq((self.count + PER_BEAT - 1) >> exact_log2(PER_BEAT)),
            write.addr.eq(received), write.data.eq(self.i.payload), write.en.eq(self.i.valid & self.i.ready),
            self.requests.p.address.eq(self.base), self.requests.p.beats.eq(beats),
        ]
        with m.FSM(init="CHECK"):
            with m.State("CHECK"):
                with m.If((self.count == 0) | (self.count > config.program_length)):
                    m.next = "REFUSED_LENGTH"
                with m.Elif(self._misplaced(beats)):
                    m.next = "REFUSED_ADDRESS"
                with m.Else():
                    m.next = "REQUEST"
            with m.State("REFUSED_LENGTH"):
                m.d.comb += self.error.eq(Error.PROGRAM)
            with m.State("REFUSED_ADDRESS"):
                m.d.comb += self.error.eq(Error.ADDRESS)
            with m.State("REQUEST"):
                m.d.comb += self.requests.valid.eq(1)
                with m.If(self.requests.ready):
                    m.next = "RECEIVE"
            with m.State("RECEIVE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid):
                    m.d.sync += received.eq(received + 1)
                    with m.If(received + 1 == beats):
                        m.next = "LOADED"
            with m.State("LOADED"):
                m.d.comb += self.loaded.eq(1)

        # Address -> memory output -> output register; a stage moves when the next one is free or moves.
        pointer, looked_up = Signal(range(config.program_length + 1)), Signal(range(config.program_length + 1))
        looked_up_valid, move_output, move_memory = Signal(), Signal(), Signal()
        missing = Signal()
        m.d.comb += [
            move_output.eq(self.o.ready | ~self.o.valid), move_memory.eq(move_output | ~looked_up_valid),
            read.addr.eq(pointer >> exact_log2(PER_BEAT)), read.en.eq(move_memory),
            missing.eq(looked_up == self.count),
        ]
        with m.If(move_memory & self.loaded):
            m.d.sync += [looked_up.eq(pointer), looked_up_valid.eq(1)]
            with m.If(pointer != self.count):
                m.d.sync += pointer.eq(pointer + 1)
        with m.If(move_output):
            m.d.sync += [
                self.o.valid.eq(looked_up_valid),
                self.o.p.word.eq(read.data.word_select(looked_up[:exact_log2(PER_BEAT)], INSTRUCTION_BITS)),
                self.o.p.missing.eq(missing), self.o.p.index.eq(Mux(missing, looked_up - 1, looked_up)),
            ]
        return m

    def _misplaced(self, beats: Value) -> Value:
        """The program is not 64-byte aligned or does not lie in board memory."""
        bits = memory_bits(self.config)
        low = exact_log2(PORT_BYTES)
        return ((self.base[:low] != 0) | (self.base[bits:] != 0)
                | (self.base[low:bits] + beats > 1 << (bits - low)))

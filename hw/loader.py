"""Loader: turns the beats of LOADs (hw/layout.py, "Activations of a slot") into one block a cycle for the cores."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import StructLayout
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw import ops
from hw.axi import DATA_BITS
from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from model.mx import BLOCK

BLOCKS_PER_BEAT = PORT_BYTES // BLOCK


def load_target(config: AcceleratorConfig) -> StructLayout:
    """Where the next slot's input goes."""
    return StructLayout({"core": range(max(2, config.cores)), "local": range(config.locals)})


class Loader(wiring.Component):
    """Slots in order; scale beats first, then two blocks from every code beat, a block a cycle.

    Members
    -------
    targets : slots to come; holds up to 32, so that every slot's read can be outstanding.
    i : beats of the slots' inputs, back to back.
    hidden_blocks : blocks of every slot's input; quasi-static while anything is outstanding.
    load_valid, core, load : a block for ``core``; no back-pressure.
    busy : a slot is outstanding or its last block is on its way.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "targets": In(stream.Signature(load_target(config))), "i": In(stream.Signature(DATA_BITS)),
            "hidden_blocks": In(ops.BLOCK_BITS + 1),
            "load_valid": Out(1), "core": Out(range(max(2, config.cores))), "load": Out(ops.load_op(config)),
            "busy": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        layout = load_target(config)
        m.submodules.slots = slots = SyncFIFO(width=layout.size, depth=SLOTS)
        wiring.connect(m, wiring.flipped(self.targets), slots.w_stream)
        target = layout(slots.r_data)

        # The scale beats of the slot in progress.
        m.submodules.scales = scales = Memory(
            shape=DATA_BITS, depth=max(2, -(-config.max_hidden_blocks // PORT_BYTES)), init=[],
            attrs={"ram_style": "distributed"})
        write, read = scales.write_port(), scales.read_port(domain="comb")

        block = Signal(ops.BLOCK_BITS)
        last = Signal()
        take = Signal()
        m.d.comb += [
            last.eq(block + 1 == self.hidden_blocks), take.eq(self.i.valid & slots.r_rdy),
            write.data.eq(self.i.payload), read.addr.eq(block >> exact_log2(PORT_BYTES)),
            self.busy.eq(slots.r_rdy | self.load_valid),
        ]
        m.d.sync += self.load_valid.eq(0)
        with m.FSM(init="SCALES"):
            with m.State("SCALES"):
                m.d.comb += [self.i.ready.eq(slots.r_rdy), write.en.eq(take)]
                # ``block`` counts the blocks whose scales came before this beat.
                m.d.comb += write.addr.eq(block >> exact_log2(PORT_BYTES))
                with m.If(take):
                    m.d.sync += block.eq(block + PORT_BYTES)
                    with m.If(block + PORT_BYTES >= self.hidden_blocks):
                        m.d.sync += block.eq(0)
                        m.next = "CODES"
            with m.State("CODES"):
                with m.If(take):
                    m.d.sync += [
                        self.load_valid.eq(1), self.core.eq(target.core), self.load.local.eq(target.local),
                        self.load.block.eq(block), self.load.scale.eq(read.data.word_select(block[:6], 8)),
                        self.load.codes.as_value().eq(self.i.payload.word_select(block[0], 8 * BLOCK)),
                        block.eq(Mux(last, 0, block + 1)),
                    ]
                    m.d.comb += self.i.ready.eq(block[0] | last)
                    with m.If(last):
                        m.d.comb += slots.r_en.eq(1)
                        m.next = "SCALES"
        return m

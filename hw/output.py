"""Output side of a core: packs BF16 words into 64-byte beats, queues them, addresses them.

Source: hw/layout.py (outputs of a slot are contiguous BF16, one block of 32 a beat).
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, StructLayout
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi import ADDRESS_BITS
from hw.config import AcceleratorConfig
from hw.ops import BLOCK_BITS, OUTPUT_BLOCK_BYTES, WriteRequest, bind_op
from hw.requantise import tag_layout
from model.mx import BLOCK

MINIMUM_ENTRIES = 16
MARGIN = 4
"""Entries kept free: drain operations that the schedule may still send after ``ready`` falls."""


class Output(wiring.Component):
    """Words enter without back-pressure; :attr:`ready` promises the room before their drain operation is issued.

    An entry is what a group fills, at least a block. Blocks at or above ``hidden_blocks`` (padding rows) are dropped.
    Bound addresses and ``hidden_blocks`` must hold until the last beat has left.

    Members
    -------
    bind_valid, bind : :py:`In(bind_op(config))`
    hidden_blocks : :py:`In(BLOCK_BITS + 1)`
    reserve : :py:`In(1)`
        A drain operation that opens an entry was accepted; its words arrive later.
    ready : :py:`Out(1)`
        MARGIN more operations may be issued.
    valid, tag, words
        Words of one row group, groups of a block in order.
    o : :py:`Out(stream.Signature(WriteRequest))`
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        self.blocks_per_entry = max(1, config.rows // BLOCK)
        pass_entries = config.pass_rows // (self.blocks_per_entry * BLOCK)
        self.depth = max(MINIMUM_ENTRIES, 2 * pass_entries)
        super().__init__({
            "bind_valid": In(1),
            "bind": In(bind_op(config)),
            "hidden_blocks": In(BLOCK_BITS + 1),
            "reserve": In(1),
            "ready": Out(1),
            "valid": In(1),
            "tag": In(tag_layout(config)),
            "words": In(ArrayLayout(16, config.rows)),
            "o": Out(stream.Signature(WriteRequest)),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        config, parts = self.config, self.blocks_per_entry
        block_words = ArrayLayout(16, BLOCK)
        entry = StructLayout({"local": range(config.locals), "block": BLOCK_BITS,
                              "words": ArrayLayout(block_words, parts)})
        addresses = Signal(ArrayLayout(ADDRESS_BITS, config.locals))
        with m.If(self.bind_valid):
            m.d.sync += addresses[self.bind.local].eq(self.bind.address)

        # Groups enter from the top, the first one ends at the bottom.
        packed = Signal(entry, reset_less=True)
        push = Signal()
        group_bits, entry_bits = 16 * config.rows, 16 * BLOCK * parts
        with m.If(self.valid):
            m.d.sync += [
                packed.local.eq(self.tag.local), packed.block.eq(self.tag.block),
                packed.words.as_value().eq(
                    (packed.words.as_value() >> group_bits) | (self.words.as_value() << (entry_bits - group_bits))),
            ]
        m.d.sync += push.eq(self.valid & self.tag.last)

        m.submodules.fifo = fifo = SyncFIFOBuffered(width=entry.size, depth=self.depth)
        m.d.comb += [fifo.w_en.eq(push), fifo.w_data.eq(packed)]
        head = entry(fifo.r_data)

        reserved = Signal(range(self.depth + 1))
        m.d.sync += reserved.eq(reserved + self.reserve - fifo.r_en)
        m.d.comb += self.ready.eq(reserved <= self.depth - MARGIN)

        part = Signal(range(max(2, parts)))
        block = Signal(BLOCK_BITS + 1)
        m.d.comb += block.eq(head.block + part)
        with m.If(fifo.r_rdy & (self.o.ready | ~self.o.valid)):
            m.d.sync += [
                self.o.valid.eq(block < self.hidden_blocks),
                self.o.p.address.eq(addresses[head.local] + block * OUTPUT_BLOCK_BYTES),
                self.o.p.data.eq(head.words[part].as_value()),
                part.eq(Mux(part == parts - 1, 0, part + 1)),
            ]
            m.d.comb += fifo.r_en.eq(part == parts - 1)
        with m.Elif(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        return m

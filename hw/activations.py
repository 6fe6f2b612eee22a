"""Activation memories of a core: MLP input and hidden codes of every local row, with their largest scales.

Source: docs/numerics.md, accumulation (one common exponent per token and matrix).
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.data import ArrayLayout, StructLayout, View
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from hw.config import AcceleratorConfig
from hw.ops import BLOCK_BITS, Phase, codes_layout, load_op

BlockData = StructLayout({"codes": codes_layout(), "scale": 8})


class Activations(wiring.Component):
    """Two synchronous memories indexed (block, local). A block read one cycle after it was written is the new one.

    Members
    -------
    start : :py:`In(1)`
        Forget the largest scales.
    x_valid, x : :py:`In(load_op(config))`
        Write a block of the MLP input.
    hidden_valid, hidden : :py:`In(load_op(config))`
        Write a requantised block of hidden values.
    phase, local, block
        Block to read: input (GATE_UP) or hidden (DOWN).
    o : :py:`Out(BlockData)`
        The block, :attr:`LATENCY` cycles later.
    largest_x, largest_hidden : :py:`Out(ArrayLayout(8, locals))`
        Largest scale byte written since ``start``, up to date one cycle after the write.
    """

    LATENCY = 2

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        largest = ArrayLayout(8, config.locals)
        super().__init__({
            "start": In(1),
            "x_valid": In(1),
            "x": In(load_op(config)),
            "hidden_valid": In(1),
            "hidden": In(load_op(config)),
            "phase": In(Phase),
            "local": In(range(config.locals)),
            "block": In(BLOCK_BITS),
            "o": Out(BlockData),
            "largest_x": Out(largest),
            "largest_hidden": Out(largest),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        x = self._store(m, "x_memory", self.config.max_hidden_blocks, self.x_valid, self.x, self.largest_x)
        hidden = self._store(m, "hidden_memory", self.config.max_intermediate_blocks, self.hidden_valid, self.hidden,
                             self.largest_hidden)
        down = Signal(reset_less=True)
        selected = Signal(BlockData, reset_less=True)
        m.d.sync += [down.eq(self.phase == Phase.DOWN), selected.eq(Mux(down, hidden, x))]
        m.d.comb += self.o.eq(selected)
        return m

    def _store(self, m: Module, name: str, blocks: int, valid: Signal, write: View, largest: View) -> View:
        local_bits = ceil_log2(self.config.locals)

        def address(local, block):
            return Cat(local[:local_bits], block[:ceil_log2(blocks)])

        depth = blocks << local_bits
        m.submodules[name] = memory = Memory(shape=BlockData, depth=depth, init=[])
        write_port, read_port = memory.write_port(), memory.read_port()
        m.d.comb += [
            write_port.en.eq(valid), write_port.addr.eq(address(write.local, write.block)),
            write_port.data.codes.eq(write.codes), write_port.data.scale.eq(write.scale),
            read_port.addr.eq(address(self.local, self.block)), read_port.en.eq(1),
        ]
        with m.If(self.start):
            m.d.sync += largest.eq(0)
        with m.Elif(valid & (write.scale > largest[write.local])):
            m.d.sync += largest[write.local].eq(write.scale)
        return read_port.data

"""Accelerator core: activations, MAC array, accumulators and epilogue of the slots mapped to it.

All cores get the same operations in the same cycle and ignore those of local rows they do not have.
Source: FastCar (arXiv:2505.14709), section on the dynamic resource scheduling accelerator; docs/architecture.md.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout, View
from amaranth.lib.wiring import In, Out, connect, flipped
from amaranth.utils import ceil_log2

from hw.accumulator import Accumulator
from hw.activations import Activations
from hw.align import Align
from hw.bf16 import ToBf16
from hw.config import AcceleratorConfig
from hw.dot import Dot
from hw.normalise import Normalise
from hw.ops import Phase, Shape, WriteRequest, bind_op, drain_op, load_op, mac_op, weight_beat
from hw.output import Output
from hw.pipeline import delay, tree
from hw.requantise import Requantise, tag_layout
from hw.swiglu import SwiGlu
from model.mx import SCALE_NAN

BLOCKS_IN_FLIGHT = 64
"""More gate/up blocks than the epilogue holds at one a cycle."""


def core_members(config: AcceleratorConfig) -> dict:
    """Members of :class:`Core`."""
    return {
        "start": In(1),
        "rows": In(range(config.locals + 1)),
        "shape": In(Shape),
        "load_valid": In(1),
        "load": In(load_op(config)),
        "bind_valid": In(1),
        "bind": In(bind_op(config)),
        "mac_valid": In(1),
        "mac": In(mac_op(config)),
        "beat": In(weight_beat(config)),
        "drain_valid": In(1),
        "drain": In(drain_op(config)),
        "busy": Out(1),
        "drain_ready": Out(1),
        "nan": Out(1),
        "o": Out(stream.Signature(WriteRequest)),
    }


class Core(wiring.Component):
    """One core of ``config.rows`` x 32 multipliers. MAC and drain operations may come every cycle.

    A drain operation sees a MAC operation issued :attr:`MAC_LATENCY` or more cycles before it. It reads its
    accumulators in the cycle it is issued, so that the bank may be overwritten from the next cycle on.

    Members
    -------
    start : :py:`In(1)`
        A new job: forget largest scales and NaN flags. Before the loads of the job.
    rows : :py:`In(range(locals + 1))`
        Rows mapped to this core; operations with ``local >= rows`` are ignored. Quasi-static during a layer.
    shape : :py:`In(Shape)`
        Layer in force. Quasi-static until the last output beat has left. A largest scale of 255 marks a matrix with a
        NaN block somewhere: every output of the layer is NaN.
    load_valid, load : :py:`In(load_op(config))`
        Write an input block. All blocks of a local row come before its first MAC operation.
    bind_valid, bind : :py:`In(bind_op(config))`
        Set the output address of a local row.
    mac_valid, mac, beat : :py:`In(mac_op(config))`, :py:`In(weight_beat(config))`
    drain_valid, drain : :py:`In(drain_op(config))`
        Groups of a block of 32 in order, no groups of other blocks between them. DOWN: only after ``drain_ready``.
    busy : :py:`Out(1)`
        A gate/up drain is in flight: its hidden block cannot be read yet.
    drain_ready : :py:`Out(1)`
        DOWN drain operations may be issued, up to three cycles after it falls.
    nan : :py:`Out(1)`
        A NaN block reached a row of this core since ``start``.
    o : :py:`Out(stream.Signature(WriteRequest))`
        64-byte output beats, in drain order.
    """

    MAC_LATENCY = Activations.LATENCY + Dot.LATENCY + Align.LATENCY + 1
    EPILOGUE_LATENCY = 1 + Normalise.LATENCY

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__(core_members(config))

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        m.submodules.activations = activations = Activations(config)
        m.submodules.accumulator = accumulator = Accumulator(config)
        m.submodules.requantise = requantise = Requantise(config)
        nan_rows = Signal(config.locals)
        m.d.comb += [
            activations.start.eq(self.start),
            activations.x_valid.eq(self.load_valid), activations.x.eq(self.load),
            activations.hidden_valid.eq(requantise.done), activations.hidden.eq(requantise.o),
        ]
        self._mac_path(m, activations, accumulator, nan_rows)
        self._drain_path(m, activations, accumulator, requantise, nan_rows)
        return m

    def _mac_path(self, m: Module, activations: Activations, accumulator: Accumulator, nan_rows: Signal) -> None:
        config = self.config
        m.submodules.dot = dot = Dot(config.rows)
        m.submodules.align = align = Align(config.rows)
        accepted = self.mac_valid & (self.mac.local < self.rows)
        m.d.comb += [
            activations.phase.eq(self.mac.phase), activations.local.eq(self.mac.local),
            activations.block.eq(self.mac.block),
        ]

        # The beat waits for the activations it meets.
        valid = delay(m, accepted, Activations.LATENCY, "mac_valid", reset=True)
        op = delay(m, self.mac, Activations.LATENCY, "mac")
        weights = delay(m, self.beat.codes, Activations.LATENCY - 1, "weights")
        m.d.comb += [dot.weights.eq(weights), dot.codes.eq(activations.o.codes)]

        # The scales wait for the products.
        scales = delay(m, self.beat.scales, Activations.LATENCY, "scales")
        early = Dot.LATENCY - Align.EARLY
        down = op.phase == Phase.DOWN
        x_drop = Signal(8)
        m.d.comb += x_drop.eq(Mux(down, activations.largest_hidden[op.local], activations.largest_x[op.local])
                              - activations.o.scale)
        largest = Signal(ArrayLayout(8, 2))
        m.d.comb += [
            largest[0].eq(Mux(down, self.shape.down_scale, self.shape.gate_scale)),
            largest[1].eq(Mux(down, self.shape.down_scale, self.shape.up_scale)),
            align.x_drop.eq(delay(m, x_drop, early, "x_drop")),
            align.largest.eq(delay(m, largest, early, "largest")),
            align.scales.eq(delay(m, scales, early, "early_scales")),
            align.sums.eq(dot.sums),
        ]

        to_accumulator = Dot.LATENCY + Align.LATENCY
        late = delay(m, op, to_accumulator, "late_mac")
        m.d.comb += [
            accumulator.valid.eq(delay(m, valid, to_accumulator, "late_valid", reset=True)),
            accumulator.first.eq(late.first),
            accumulator.index.eq(_index(config, late)),
            accumulator.terms.eq(align.terms),
        ]

        weight_nan = tree([scales[row] == SCALE_NAN for row in range(config.rows)], lambda a, b: a | b)
        with m.If(self.start):
            m.d.sync += nan_rows.eq(0)
        with m.Else():
            with m.If(self.load_valid & (self.load.scale == SCALE_NAN)):
                m.d.sync += nan_rows.bit_select(self.load.local, 1).eq(1)
            with m.If(valid & weight_nan):
                m.d.sync += nan_rows.bit_select(op.local, 1).eq(1)

    def _drain_path(self, m: Module, activations, accumulator, requantise, nan_rows: Signal) -> None:
        config = self.config
        m.submodules.normalise = normalise = Normalise(config.rows)
        m.submodules.swiglu = swiglu = SwiGlu(config.pairs)
        m.submodules.to_bf16 = to_bf16 = ToBf16(config.rows)
        m.submodules.output = output = Output(config)
        accepted = Signal()
        down = Signal()
        m.d.comb += [
            accepted.eq(self.drain_valid & (self.drain.local < self.rows)),
            down.eq(self.drain.phase == Phase.DOWN),
            accumulator.read_index.eq(_index(config, self.drain)),
        ]

        exponents = Signal(ArrayLayout(9, 2), reset_less=True)
        largest_x = activations.largest_x[self.drain.local]
        largest_hidden = activations.largest_hidden[self.drain.local]
        m.d.sync += [
            exponents[0].eq(Mux(down, largest_hidden + self.shape.down_scale, largest_x + self.shape.gate_scale)),
            exponents[1].eq(Mux(down, largest_hidden + self.shape.down_scale, largest_x + self.shape.up_scale)),
        ]
        m.d.comb += [normalise.sums.eq(delay(m, accumulator.sums, 1, "sums")), normalise.exponents.eq(exponents)]

        tag = Signal(tag_layout(config))
        m.d.comb += [tag[field].eq(self.drain[field]) for field in ("local", "block", "first", "last")]
        normalised_tag = delay(m, tag, self.EPILOGUE_LATENCY, "normalised_tag")

        gate_up_valid = delay(m, accepted & ~down, self.EPILOGUE_LATENCY + SwiGlu.LATENCY, "gate_up_valid", reset=True)
        m.d.comb += [
            swiglu.i.eq(normalise.o),
            requantise.valid.eq(gate_up_valid),
            requantise.tag.eq(delay(m, normalised_tag, SwiGlu.LATENCY, "gate_up_tag")),
            requantise.values.eq(swiglu.o),
        ]

        matrix_nan = Cat(self.shape[f"{name}_scale"] == SCALE_NAN for name in ("gate", "up", "down")).any()
        row_exists = Cat(local < self.rows for local in range(config.locals))
        m.d.comb += self.nan.eq(((nan_rows | matrix_nan.replicate(config.locals)) & row_exists).any())
        down_valid = delay(m, accepted & down, self.EPILOGUE_LATENCY + ToBf16.LATENCY, "down_valid", reset=True)
        m.d.comb += [
            to_bf16.i.eq(normalise.o),
            to_bf16.nan.eq(nan_rows.bit_select(normalised_tag.local, 1) | matrix_nan),
            output.valid.eq(down_valid),
            output.tag.eq(delay(m, normalised_tag, ToBf16.LATENCY, "down_tag")),
            output.words.eq(to_bf16.words),
            output.reserve.eq(accepted & down & self.drain.first),
            output.bind_valid.eq(self.bind_valid), output.bind.eq(self.bind),
            output.hidden_blocks.eq(self.shape.hidden_blocks),
            self.drain_ready.eq(output.ready),
        ]
        connect(m, output.o, flipped(self.o))

        # From the first group of a block to its storage.
        open_block = Signal()
        in_flight = Signal(range(BLOCKS_IN_FLIGHT))
        gate_up = accepted & ~down
        with m.If(gate_up):
            m.d.sync += open_block.eq(~self.drain.last)
        m.d.sync += in_flight.eq(in_flight + (gate_up & self.drain.last) - requantise.done)
        m.d.comb += self.busy.eq((in_flight != 0) | open_block | gate_up)


def _index(config: AcceleratorConfig, op: View) -> Value:
    """Accumulators of a MAC or drain operation."""
    return Cat(op.local[:ceil_log2(config.locals)], op.group[:ceil_log2(config.groups)], op.bank)

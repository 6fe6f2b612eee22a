"""Schedule: walks a layer's weight stream and drives all cores in lockstep with MAC and drain operations.

The order of beats is the contract of ``hw/layout.py``. A data beat is held for as many cycles as the busiest core has
rows (local 0, 1, ...), which is what lets one weight read serve every batch row.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.data import ArrayLayout
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from hw.config import CHUNK_BEATS, AcceleratorConfig
from hw.drains import Drains, pass_info
from hw.ops import BLOCK_BITS, Phase, Shape, drain_op, mac_op, weight_beat
from hw.weights import raw_beat
from model.mx import BLOCK

SETTLE_CYCLES = 8
"""Cycles from the last gate/up drain operation until ``cores_busy`` is believed: it may come through registers."""


class Schedule(wiring.Component):
    """One MAC operation a cycle while beats come, except one cycle a chunk (its scale beat) when ``rows`` is 1.

    With two or more rows the scale beat is taken while the last data beat before it is still held. A pass starts
    without a gap if its accumulator bank (they alternate) is free: the pass before the previous one issued all its
    drain operations. The down phase starts when all gate/up drain operations are issued and no core is busy. The
    first MAC operation shows one cycle after its data beat was taken.

    Parameters
    ----------
    mac_latency : :class:`int`
        Cycles from a MAC operation until a drain operation sees its result, at least 2.

    Members
    -------
    start : :py:`In(1)`
        Pulse while idle. ``rows`` (1 or more) and ``shape`` (both block counts 1 or more) hold from here to ``done``.
    rows, shape : :py:`In(range(config.locals + 1))`, :py:`In(Shape)`
    loads_done : :py:`In(1)`
        Activations are in place: no MAC operation before it is 1. Holds until ``done``.
    i : :py:`In(stream.Signature(raw_beat(config)))`
        Scale and data beats of the layer, exactly as many as ``shape`` needs are taken.
    starved : :py:`In(1)`
        No further beat will come.
    mac_valid, mac, beat : :py:`Out`, registered
        MAC operation with the held weight beat.
    drain_valid, drain, drain_ready : see :class:`hw.drains.Drains`.
    cores_busy : :py:`In(1)`
        Some core still works on a gate/up drain operation; up at most ``SETTLE_CYCLES`` after the operation showed.
    flush : :py:`In(1)`
        Back to idle.
    busy : :py:`Out(1)`
        From ``start`` until the last drain operation.
    done : :py:`Out(1)`
        Pulse in the cycle after the last drain operation; cores may still emit outputs.
    error_stream : :py:`Out(1)`
        A beat is needed and ``starved`` says that none will come.
    beat_taken, mac_cycle, stall_weight, stall_drain : :py:`Out(1)`
        Counter strobes: a beat was taken, a data beat is held, no beat was there when one could have been used, a beat
        was there but its bank (or the down phase) had to wait for drains.
    """

    def __init__(self, config: AcceleratorConfig, mac_latency: int):
        if mac_latency < 2:
            raise ValueError(f"mac_latency must be at least 2 cycles, not {mac_latency!r}")
        self.config = config
        self.mac_latency = mac_latency
        super().__init__({
            "start": In(1),
            "flush": In(1),
            "rows": In(range(config.locals + 1)),
            "shape": In(Shape),
            "loads_done": In(1),
            "i": In(stream.Signature(raw_beat(config))),
            "starved": In(1),
            "mac_valid": Out(1),
            "mac": Out(mac_op(config)),
            "beat": Out(weight_beat(config)),
            "drain_valid": Out(1),
            "drain": Out(drain_op(config)),
            "drain_ready": In(1),
            "cores_busy": In(1),
            "busy": Out(1),
            "done": Out(1),
            "error_stream": Out(1),
            "beat_taken": Out(1),
            "mac_cycle": Out(1),
            "stall_weight": Out(1),
            "stall_drain": Out(1),
        })

    def elaborate(self, platform) -> Module:
        m = Module()
        config = self.config
        full_pass = config.groups  # a power of two, as is config.rows
        m.submodules.drains = drains = Drains(config, self.mac_latency)

        # Row groups of each phase. Groups of 64 rows leave half of the last down group empty when hidden_blocks is odd.
        gate_up_groups = self.shape.intermediate_blocks << exact_log2(2 * BLOCK // config.rows)
        if config.rows <= BLOCK:
            down_groups = self.shape.hidden_blocks << exact_log2(BLOCK // config.rows)
        else:
            down_groups = (self.shape.hidden_blocks + 1) >> 1

        # Where the next data beat belongs.
        running = Signal()
        phase = Signal(Phase)
        bank = Signal()
        groups_left = Signal(range(1024 * 2 * BLOCK // config.rows + 1))  # of the phase, this pass included
        pass_block = Signal(BLOCK_BITS)  # block of 32 values that the pass starts with
        block = Signal(BLOCK_BITS)
        group = Signal(range(full_pass))
        position = Signal(range(CHUNK_BEATS))
        have_scales = Signal()
        scales = Signal(ArrayLayout(ArrayLayout(16, CHUNK_BEATS), config.ports))

        is_down = phase == Phase.DOWN
        reduction = Mux(is_down, self.shape.intermediate_blocks, self.shape.hidden_blocks)
        last_pass = Signal()
        last_group = Signal()
        pass_ends = Signal()
        pass_starts = Signal()
        info = Signal(pass_info(config))
        m.d.comb += [
            last_pass.eq(groups_left <= full_pass),
            info.phase.eq(phase),
            info.bank.eq(bank),
            info.last_group.eq(Mux(last_pass, groups_left - 1, full_pass - 1)),
            info.block.eq(pass_block),
            info.final.eq(last_pass & is_down),
            last_group.eq(group == info.last_group),
            pass_ends.eq(last_group & (block + 1 == reduction)),
            pass_starts.eq((group == 0) & (block == 0)),
        ]

        # The down phase reads what the gate/up drains leave in the cores' hidden memories.
        settle = Signal(range(SETTLE_CYCLES + 1))
        with m.If(drains.occupied.any() | drains.drain_valid):
            m.d.sync += settle.eq(SETTLE_CYCLES)
        with m.Elif(settle != 0):
            m.d.sync += settle.eq(settle - 1)
        hidden_missing = is_down & (pass_block == 0) & (drains.occupied.any() | (settle != 0) | self.cores_busy)

        # A beat is taken: scales whenever the previous chunk is used up, data when the held beat served all rows.
        last_local = Signal()
        advance = Signal()
        wait_drain = Signal()
        take_data = Signal()
        take_scales = Signal()
        m.d.comb += [
            last_local.eq(self.mac.local + 1 == self.rows),
            advance.eq(running & self.loads_done & (~self.mac_valid | last_local)),
            wait_drain.eq(have_scales & pass_starts & (drains.occupied.bit_select(bank, 1) | hidden_missing)),
            self.i.ready.eq(Mux(have_scales, advance & ~wait_drain, running)),
            take_data.eq(self.i.valid & self.i.ready & have_scales),
            take_scales.eq(self.i.valid & self.i.ready & ~have_scales),
            self.beat_taken.eq(self.i.valid & self.i.ready),
            self.mac_cycle.eq(self.mac_valid),
            self.stall_weight.eq(advance & ~wait_drain & ~self.i.valid),
            self.stall_drain.eq(advance & wait_drain & self.i.valid),
            self.error_stream.eq(running & self.starved & ~self.i.valid),
            self.busy.eq(running | drains.occupied.any()),
        ]
        with m.If(take_scales):
            m.d.sync += [scales.eq(self.i.payload), have_scales.eq(1), position.eq(0)]

        # Hold the beat: one operation for each local row.
        closes = Signal()  # the held beat is the last one of its pass
        with m.If(take_data):
            m.d.sync += [
                self.mac_valid.eq(1),
                self.mac.phase.eq(phase), self.mac.bank.eq(bank), self.mac.group.eq(group), self.mac.block.eq(block),
                self.mac.first.eq(block == 0), self.mac.local.eq(0), closes.eq(pass_ends),
                self.beat.codes.as_value().eq(self.i.payload.as_value()),
            ]
            for p in range(config.ports):
                m.d.sync += self.beat.scales.as_value().word_select(p, 16).eq(scales[p][position])
        with m.Elif(last_local):
            m.d.sync += self.mac_valid.eq(0)
        with m.Elif(self.mac_valid):
            m.d.sync += self.mac.local.eq(self.mac.local + 1)

        # Step to the next data beat: group, then block, then pass, then phase.
        with m.If(take_data):
            m.d.sync += [
                position.eq(position + 1),
                have_scales.eq((position != CHUNK_BEATS - 1) & ~(pass_ends & last_pass)),
                group.eq(Mux(last_group, 0, group + 1)),
            ]
            with m.If(last_group):
                m.d.sync += block.eq(Mux(pass_ends, 0, block + 1))
            with m.If(pass_ends):
                m.d.sync += [
                    bank.eq(~bank),
                    groups_left.eq(groups_left - full_pass),
                    pass_block.eq(pass_block + Mux(is_down, config.pass_rows, config.pass_rows // 2) // BLOCK),
                ]
                with m.If(last_pass):
                    m.d.sync += [
                        phase.eq(Phase.DOWN), groups_left.eq(down_groups), pass_block.eq(0), running.eq(~is_down),
                    ]
        with m.If(self.start):
            m.d.sync += [
                running.eq(1), phase.eq(Phase.GATE_UP), bank.eq(0), groups_left.eq(gate_up_groups), pass_block.eq(0),
                block.eq(0), group.eq(0), have_scales.eq(0),
            ]
        with m.If(self.flush):
            m.d.sync += [running.eq(0), self.mac_valid.eq(0)]

        m.d.comb += [
            drains.start.eq(self.start), drains.flush.eq(self.flush), drains.rows.eq(self.rows),
            drains.open_valid.eq(take_data & pass_starts), drains.open.eq(info),
            drains.close.eq((self.mac_valid & last_local & closes) << self.mac.bank),
            drains.drain_ready.eq(self.drain_ready), self.drain_valid.eq(drains.drain_valid),
            self.drain.eq(drains.drain), self.done.eq(drains.done),
        ]
        return m

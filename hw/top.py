"""The accelerator: everything between the memory ports and the control port. docs/architecture.md has the picture."""

from collections.abc import Callable

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import Out, connect, flipped

from hw import axi
from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.core import Core
from hw.counters import Counters, DispatchTimer
from hw.csr import Csr
from hw.drs import Drs
from hw.job import Job
from hw.loader import Loader
from hw.reader import Reader
from hw.registers import SOURCE_TAS
from hw.replica import CoreModule
from hw.schedule import Schedule
from hw.sequencer import Destination, Sequencer
from hw.slice import PortSlice
from hw.tas import Tas
from hw.weights import WeightStream
from hw.writer import Writer

DATA_FIFO_BEATS = 128
"""Prefetch depth of the data port: two bursts, which covers LOADs of many slots back to back."""


class Top(wiring.Component):
    """The whole accelerator of one build.

    Parameters
    ----------
    config : sizes.
    make_core : what makes a core: :class:`hw.replica.CoreModule`, or :class:`hw.replica.CoreInstance` for the Verilog
        build, which writes the core out once.

    Members
    -------
    csr : AXI4-Lite control port (hw/registers.py).
    data : AXI4 master for program, scores, inputs (read) and outputs (write).
    weights_0 ... : AXI4 read masters, one for each weight port.
    interrupt : the job is done or the accelerator has halted with an error; falls with start or reset.
    """

    def __init__(self, config: AcceleratorConfig,
                 make_core: Callable[[AcceleratorConfig], wiring.Component] = CoreModule):
        self.config = config
        self.make_core = make_core
        super().__init__({
            "csr": Out(axi.LiteSlave), "data": Out(axi.Master), "interrupt": Out(1),
            **{f"weights_{port}": Out(axi.ReadMaster) for port in range(config.ports)},
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.csr = csr = Csr(config)
        m.submodules.job = job = Job(config)
        m.submodules.counters = counters = Counters()
        m.submodules.drs = drs = ResetInserter(job.begin)(Drs(config))

        # Control leaves reset for the time of a job; memory traffic and cores live on until it has drained.
        outside_job = ~job.running
        m.submodules.sequencer = sequencer = ResetInserter(outside_job)(Sequencer(config))
        m.submodules.tas = tas = ResetInserter(outside_job)(Tas(config))
        m.submodules.loader = loader = ResetInserter(outside_job)(Loader(config))
        m.submodules.schedule = schedule = ResetInserter(outside_job)(Schedule(config, Core.MAC_LATENCY))
        m.submodules.reader = reader = ResetInserter(job.forget)(Reader(DATA_FIFO_BEATS))
        m.submodules.weights = weights = ResetInserter(job.forget)(WeightStream(config))
        m.submodules.writer = writer = ResetInserter(job.forget)(Writer(config))
        cores = [self.make_core(config) for _ in range(config.cores)]
        for index, core in enumerate(cores):
            m.submodules[f"core_{index}"] = core
            m.d.comb += core.reset.eq(job.forget)

        self._ports(m, csr, job, reader, writer, weights)
        self._data_reads(m, sequencer, reader, tas, loader)
        self._scheduling(m, csr, sequencer, tas, drs)
        self._computing(m, sequencer, drs, loader, weights, schedule, writer, cores)
        self._job(m, csr, job, counters, drs, sequencer, reader, weights, writer, schedule, cores)
        self._counters(m, csr, job, counters, sequencer, tas, drs, loader, weights, schedule, writer)
        return m

    def _ports(self, m, csr, job, reader, writer, weights):
        connect(m, flipped(self.csr), csr.bus)
        m.submodules.data_slice = data = ResetInserter(job.forget)(PortSlice(axi.Master))
        connect(m, data.outer, flipped(self.data))
        for port in range(self.config.ports):
            port_slice = ResetInserter(job.forget)(PortSlice(axi.ReadMaster))
            m.submodules[f"weights_slice_{port}"] = port_slice
            connect(m, weights.ports[port], port_slice.inner)
            connect(m, port_slice.outer, flipped(getattr(self, f"weights_{port}")))
        for source, signature in ((reader.bus, axi.ReadMaster), (writer.bus, axi.WriteMaster)):
            for name, member in signature.members.items():
                inner, outer = getattr(source, name), getattr(data.inner, name)
                m.d.comb += outer.eq(inner) if member.flow == Out else inner.eq(outer)

    def _data_reads(self, m, sequencer, reader, tas, loader):
        """Requests of the sequencer, and their beats to whom it names."""
        connect(m, sequencer.requests, reader.requests)
        takers = {Destination.PROGRAM: sequencer.program, Destination.SCORES: tas.i, Destination.INPUTS: loader.i}
        for destination, taker in takers.items():
            m.d.comb += taker.payload.eq(reader.o.p.data)
            with m.If(sequencer.destination == destination):
                m.d.comb += [taker.valid.eq(reader.o.valid), reader.o.ready.eq(taker.ready)]

    def _scheduling(self, m, csr, sequencer, tas, drs):
        connect(m, sequencer.score_requests, tas.requests)
        m.d.comb += [
            sequencer.settings.eq(csr.settings), tas.threshold.eq(csr.settings.threshold),
            sequencer.verdict_valid.eq(tas.verdict_valid), sequencer.verdict.eq(tas.verdict),
            drs.decide.eq(sequencer.decide), drs.compute.eq(sequencer.compute),
            sequencer.mapped.eq(drs.done), sequencer.placements.eq(drs.placements), sequencer.total.eq(drs.total),
        ]

    def _computing(self, m, sequencer, drs, loader, weights, schedule, writer, cores):
        connect(m, sequencer.targets, loader.targets)
        connect(m, sequencer.prefetch, weights.start)
        connect(m, weights.o, schedule.i)
        m.d.comb += [
            loader.hidden_blocks.eq(sequencer.shape.hidden_blocks),
            schedule.start.eq(sequencer.run), schedule.shape.eq(sequencer.shape), schedule.rows.eq(drs.busiest),
            schedule.loads_done.eq(~loader.busy), schedule.starved.eq(weights.exhausted),
            schedule.cores_busy.eq(Cat(core.busy for core in cores).any()),
            schedule.drain_ready.eq(Cat(core.drain_ready for core in cores).all()),
            sequencer.ran.eq(schedule.done), sequencer.written.eq(writer.beats), sequencer.writing.eq(writer.busy),
        ]
        for index, core in enumerate(cores):
            connect(m, core.o, writer.i[index])
            m.d.comb += [
                core.mac_valid.eq(schedule.mac_valid), core.mac.eq(schedule.mac), core.beat.eq(schedule.beat),
                core.drain_valid.eq(schedule.drain_valid), core.drain.eq(schedule.drain),
                core.rows.eq(drs.core_rows[index]), core.shape.eq(sequencer.shape), core.start.eq(sequencer.decide),
                core.load_valid.eq(loader.load_valid & (loader.core == index)), core.load.eq(loader.load),
                core.bind_valid.eq(sequencer.bind_valid & (sequencer.bind_core == index)), core.bind.eq(sequencer.bind),
            ]

    def _job(self, m, csr, job, counters, drs, sequencer, reader, weights, writer, schedule, cores):
        buses = [self.data, *(getattr(self, f"weights_{port}") for port in range(self.config.ports))]
        channels = [(bus, channel) for bus in buses for channel in ("ar", "r")]
        channels += [(self.data, channel) for channel in ("aw", "w", "b")]
        moved = Cat(getattr(bus, f"{channel}valid") & getattr(bus, f"{channel}ready")
                    for bus, channel in channels).any()
        m.d.comb += [
            job.start.eq(csr.start), job.reset.eq(csr.reset), job.watchdog.eq(csr.settings.watchdog),
            job.finished.eq(sequencer.finished), job.instruction_error.eq(sequencer.error),
            job.index.eq(sequencer.index),
            job.read_error.eq(reader.error | weights.error), job.write_error.eq(writer.error),
            job.stream_error.eq(schedule.error_stream),
            job.progress.eq(moved | sequencer.retired | schedule.mac_valid | schedule.drain_valid),
            job.traffic.eq(reader.busy | weights.busy | writer.busy),
            job.nan.eq(Cat(core.nan for core in cores).any()), job.nan_valid.eq(sequencer.outputs_complete),
            reader.flush.eq(job.flush), weights.flush.eq(job.flush), writer.flush.eq(job.flush),
            csr.status.eq(job.status), csr.error.eq(job.error), csr.error_index.eq(job.error_index),
            csr.index.eq(drs.index), csr.placements.eq(drs.placements), csr.counters.eq(counters.values),
            self.interrupt.eq(job.status.done | job.status.error),
        ]

    def _counters(self, m, csr, job, counters, sequencer, tas, drs, loader, weights, schedule, writer):
        m.submodules.timer = timer = ResetInserter(~job.running)(DispatchTimer())
        dispatched = Signal()
        with m.If(job.begin):
            m.d.sync += dispatched.eq(0)
        with m.Elif(sequencer.dispatch):
            m.d.sync += dispatched.eq(1)
        steps, mapped = counters.steps, Signal()
        m.d.comb += [
            timer.score_beat.eq(tas.i.valid & tas.i.ready), timer.decide.eq(sequencer.decide),
            timer.dispatch.eq(sequencer.dispatch), mapped.eq(drs.done), counters.clear.eq(job.begin),
        ]
        active_rows = Signal(range(SLOTS + 1))
        m.d.comb += active_rows.eq(sum(csr.settings.active[slot] for slot in range(SLOTS)))
        values = {
            "CYCLES": job.running,
            "FETCH_CYCLES": job.running & ~sequencer.program_loaded,
            "SCORE_CYCLES": sequencer.deciding & (csr.settings.source == SOURCE_TAS),
            "DRS_CYCLES": timer.cycles,
            "INPUT_CYCLES": loader.busy,
            "WEIGHT_BEATS": schedule.beat_taken,
            "WEIGHT_BYTES": weights.port_beats * PORT_BYTES,
            "MAC_CYCLES": schedule.mac_cycle,
            "STALL_WEIGHT_CYCLES": schedule.stall_weight,
            "STALL_DRAIN_CYCLES": schedule.stall_drain,
            "EXPOSED_CYCLES": job.running & dispatched & ~schedule.beat_taken & ~schedule.mac_cycle & ~loader.busy,
            "OUTPUT_BYTES": writer.beats * PORT_BYTES,
            "ROWS_COMPUTED": Mux(mapped, drs.total, 0),
            "ROWS_REPLAYED": Mux(mapped, active_rows - drs.total, 0),
            "BUSIEST_ROWS": Mux(mapped, drs.busiest, 0),
        }
        for name, value in values.items():
            m.d.comb += steps[name.lower()].eq(value)

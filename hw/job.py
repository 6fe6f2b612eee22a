"""Life of a job: start, errors, draining of memory traffic, halt and reset; with the watchdog."""

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.config import AcceleratorConfig
from hw.csr import Status
from hw.isa import Error


class Job(wiring.Component):
    """State machine around the sequencer, which is held in reset unless ``running``.

    A job ends with ``finished``, or with the first error (several in one cycle: instruction, READ, WRITE, STREAM,
    WATCHDOG in this order). After an error ``flush`` is 1 until ``traffic`` is 0; then the accelerator halts, shows the
    error and waits for a reset command. The watchdog also bounds the draining: when it expires the accelerator halts
    with the first error and traffic still outstanding, which the reset then forgets. A reset command in a running job
    aborts it (drains, no error); one while draining forgets the traffic at once.

    Members
    -------
    start, reset : commands. watchdog : cycles without ``progress``, 0 = off.
    finished, instruction_error, read_error, write_error, stream_error, index : from the sequencer and the memory side.
    progress : something moved in this cycle. traffic : memory answers are outstanding.
    nan : a NaN block was seen in the job's rows, valid with ``nan_valid``.
    begin : pulse, first cycle of a job. running, flush : see above. forget : pulse, reset the whole data path.
    status, error, error_index : registers.
    """

    def __init__(self, config: AcceleratorConfig):
        index = range(config.program_length)
        super().__init__({
            "start": In(1), "reset": In(1), "watchdog": In(32),
            "finished": In(1), "instruction_error": In(Error), "read_error": In(1), "write_error": In(1),
            "stream_error": In(1), "index": In(index), "progress": In(1), "traffic": In(1),
            "nan": In(1), "nan_valid": In(1),
            "begin": Out(1), "running": Out(1), "flush": Out(1), "forget": Out(1),
            "status": Out(Status), "error": Out(Error), "error_index": Out(index),
        })

    def elaborate(self, platform):
        m = Module()
        idle_cycles, expired = Signal(32), Signal()
        m.d.comb += expired.eq((self.watchdog != 0) & (idle_cycles >= self.watchdog))

        done, nan = Signal(), Signal()
        error = Signal(Error)
        with m.If(self.instruction_error != Error.NONE):
            m.d.comb += error.eq(self.instruction_error)
        with m.Elif(self.read_error):
            m.d.comb += error.eq(Error.READ)
        with m.Elif(self.write_error):
            m.d.comb += error.eq(Error.WRITE)
        with m.Elif(self.stream_error):
            m.d.comb += error.eq(Error.STREAM)
        with m.Elif(expired):
            m.d.comb += error.eq(Error.WATCHDOG)

        with m.If(self.progress | self.begin):
            m.d.sync += idle_cycles.eq(0)
        with m.Elif(self.status.busy & ~expired):
            m.d.sync += idle_cycles.eq(idle_cycles + 1)
        with m.If(self.nan_valid & self.nan):
            m.d.sync += nan.eq(1)

        with m.FSM(init="IDLE") as fsm:
            with m.State("IDLE"):
                with m.If(self.reset):
                    m.d.comb += self.forget.eq(1)
                    m.d.sync += done.eq(0)
                with m.Elif(self.start):
                    m.d.comb += self.begin.eq(1)
                    m.d.sync += [done.eq(0), nan.eq(0)]
                    m.next = "RUNNING"
            with m.State("RUNNING"):
                m.d.comb += self.running.eq(1)
                with m.If(error != Error.NONE):
                    m.d.sync += [self.error.eq(error), self.error_index.eq(self.index)]
                    # A memory that stopped answering is not waited for a second time.
                    with m.If(error == Error.WATCHDOG):
                        m.next = "HALTED"
                    with m.Else():
                        m.next = "DRAINING"
                with m.Elif(self.reset):
                    m.next = "DRAINING"
                with m.Elif(self.finished):
                    m.d.sync += done.eq(1)
                    m.next = "IDLE"
            with m.State("DRAINING"):
                m.d.comb += self.flush.eq(1)
                with m.If(self.reset):
                    m.next = "FORGET"
                with m.Elif(~self.traffic | expired):
                    with m.If(self.error == Error.NONE):
                        m.next = "FORGET"
                    with m.Else():
                        m.next = "HALTED"
            with m.State("HALTED"):
                m.d.comb += self.flush.eq(1)
                with m.If(self.reset):
                    m.next = "FORGET"
            with m.State("FORGET"):
                m.d.comb += self.forget.eq(1)
                m.d.sync += [self.error.eq(Error.NONE), self.error_index.eq(0), nan.eq(0)]
                m.next = "IDLE"
        m.d.comb += [
            self.status.busy.eq(fsm.ongoing("RUNNING") | fsm.ongoing("DRAINING")), self.status.done.eq(done),
            self.status.error.eq(fsm.ongoing("HALTED")), self.status.nan.eq(nan),
        ]
        return m

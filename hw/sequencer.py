"""Instruction sequencer: executes the job's program (hw/isa.py says what each instruction does)."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out, connect, flipped

from hw import ops
from hw.axi import DATA_BITS
from hw.checks import BEAT_BITS, Checks, LayerState
from hw.config import SLOTS, AcceleratorConfig
from hw.csr import Settings
from hw.decoder import Decoder, decoded
from hw.isa import Error, Opcode
from hw.loader import load_target
from hw.program import Program
from hw.registers import SOURCE_TAS
from hw.tas import Verdict, score_request
from hw.weights import WeightRequest


class Destination(enum.Enum, shape=2):
    """Who takes the beats of the data port: its reads are all of one kind at a time."""

    PROGRAM = 0
    SCORES = 1
    INPUTS = 2


class Sequencer(wiring.Component):
    """Starts when it leaves reset and runs once: one instruction a cycle where nothing has to be waited for.

    DECIDE waits for the verdicts of all scores asked for; the weights are requested two cycles after the DRS got the
    index bits, LOADs follow in the same cycle. RUN ends when the memory has acknowledged all outputs of its rows.

    Members
    -------
    settings : registers; quasi-static.
    requests, destination : reads over the data port and who takes their beats.
    program : beats of the program.
    score_requests, verdict_valid, verdict : the TAS comparator.
    decide, compute, mapped, placements, total : the DRS (``mapped`` is its ``done``).
    prefetch : weights of the layer.
    shape, targets : layer in force, slots of the LOADs. bind_valid, bind_core, bind : STORE.
    run, ran : start and ``done`` of the schedule. written : an output beat went to memory. writing : writer is busy.
    outputs_complete : pulse at the end of a RUN that computed.
    finished : END was executed; stays. error, index : what failed (or NONE), instruction being executed.
    program_loaded : the program is in the instruction memory. deciding : between LAYER (or the start) and the last
    verdict. retired, dispatch : pulses; ``dispatch`` at the first weight request, LOAD or STORE of a layer.
    """

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        super().__init__({
            "settings": In(Settings),
            "requests": Out(stream.Signature(ops.ReadRequest)), "destination": Out(Destination),
            "program": In(stream.Signature(DATA_BITS)),
            "score_requests": Out(stream.Signature(score_request(config))),
            "verdict_valid": In(1), "verdict": In(Verdict),
            "decide": Out(1), "compute": Out(SLOTS), "mapped": In(1),
            "placements": In(ops.placements(config)), "total": In(range(SLOTS + 1)),
            "prefetch": Out(stream.Signature(WeightRequest)),
            "shape": Out(ops.Shape), "targets": Out(stream.Signature(load_target(config))),
            "bind_valid": Out(1), "bind_core": Out(range(max(2, config.cores))), "bind": Out(ops.bind_op(config)),
            "run": Out(1), "ran": In(1), "written": In(1), "writing": In(1), "outputs_complete": Out(1),
            "finished": Out(1), "error": Out(Error), "index": Out(range(config.program_length)),
            "program_loaded": Out(1), "deciding": Out(1), "retired": Out(1), "dispatch": Out(1),
        })

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.fetch = fetch = Program(config)
        m.submodules.decoder = decoder = Decoder(config)
        m.submodules.checks = checks = Checks(config)
        connect(m, fetch.o, decoder.i)
        connect(m, fetch.i, flipped(self.program))
        state = Signal(LayerState)
        op = Signal(decoded(config))
        valid, retire = Signal(), Signal()
        m.d.comb += [
            fetch.base.eq(self.settings.program_base), fetch.count.eq(self.settings.program_count),
            decoder.settings.eq(self.settings), checks.settings.eq(self.settings),
            op.eq(decoder.o.p), checks.op.eq(decoder.o.p), checks.state.eq(state),
            checks.computing.eq(Cat(p.compute for p in self.placements)),
            self.shape.eq(state.layer), self.program_loaded.eq(fetch.loaded),
            decoder.o.ready.eq(retire), self.retired.eq(retire), self.index.eq(op.index),
        ]
        executing = Signal()  # not in the middle of DECIDE or RUN, whose own state the checks do not know
        with m.If(fetch.error != Error.NONE):
            m.d.comb += self.error.eq(fetch.error)
        with m.Elif(decoder.o.valid & executing & ~checks.wait):
            m.d.comb += [self.error.eq(checks.error), valid.eq(checks.error == Error.NONE)]

        slot = Signal(range(SLOTS))
        slot_bit = Signal(SLOTS)
        place = Signal(ops.placement(config))
        weights = Signal(WeightRequest)
        scores_left = Signal(range(SLOTS + 1))
        replay = Signal(SLOTS)
        use_tas = self.settings.source == SOURCE_TAS
        m.d.comb += [
            slot.eq(op.word.slot), slot_bit.eq(1 << slot), place.eq(self.placements[slot]),
            self.requests.p.address.eq(op.beat << BEAT_BITS),
            self.score_requests.p.slot.eq(slot), self.score_requests.p.count.eq(op.word.count),
            self.targets.p.core.eq(place.core), self.targets.p.local.eq(place.local),
            self.bind_core.eq(place.core), self.bind.local.eq(place.local), self.bind.address.eq(op.beat << BEAT_BITS),
            self.compute.eq(self.settings.active & Mux(use_tas, ~replay, self.settings.host_mask)),
            self.prefetch.p.eq(weights),
            self.destination.eq(Mux(state.decided, Destination.INPUTS, Destination.SCORES)),
        ]
        with m.If(~fetch.loaded):
            m.d.comb += [
                self.destination.eq(Destination.PROGRAM), self.requests.valid.eq(fetch.requests.valid),
                self.requests.p.eq(fetch.requests.p), fetch.requests.ready.eq(self.requests.ready),
            ]

        # Scores asked for against verdicts that came.
        asked = self.score_requests.valid & self.score_requests.ready
        m.d.sync += scores_left.eq(scores_left + asked - self.verdict_valid)
        with m.If(self.verdict_valid):
            m.d.sync += replay.bit_select(self.verdict.slot, 1).eq(self.verdict.replay)

        deciding, undispatched = Signal(init=1), Signal()
        m.d.comb += self.deciding.eq(deciding & fetch.loaded)
        with m.If(self.prefetch.ready):
            m.d.sync += self.prefetch.valid.eq(0)
        with m.If(undispatched & (self.prefetch.valid | self.bind_valid | self.targets.valid)):
            m.d.comb += self.dispatch.eq(1)
            m.d.sync += undispatched.eq(0)

        beats_left = Signal(range(SLOTS * config.max_hidden_blocks + 1))  # output beats still to be written
        scheduled = Signal()
        with m.FSM(init="EXECUTE"):
            with m.State("EXECUTE"):
                m.d.comb += executing.eq(1)
                with m.If(valid):
                    with m.Switch(op.word.opcode):
                        with m.Case(Opcode.LAYER):
                            m.d.comb += [retire.eq(1), checks.new_shape.eq(1)]
                            m.d.sync += [state.eq(0), state.has_layer.eq(1), deciding.eq(1)]
                            m.d.sync += [state.layer[name].eq(op.word[name]) for name, _ in ops.Shape]
                        with m.Case(Opcode.WEIGHTS):
                            m.d.comb += retire.eq(1)
                            m.d.sync += [state.has_weights.eq(1), weights.offset.eq(op.beat << BEAT_BITS),
                                         weights.beats.eq(op.word.count)]
                        with m.Case(Opcode.SCORES):
                            with m.If(checks.discard):
                                m.d.comb += retire.eq(1)
                            with m.Else():
                                m.d.comb += [
                                    self.requests.valid.eq(self.score_requests.ready),
                                    self.requests.p.beats.eq(checks.size),
                                    retire.eq(self.requests.ready & self.score_requests.ready),
                                    self.score_requests.valid.eq(self.requests.ready),
                                ]
                            with m.If(retire):
                                m.d.sync += state.scored.eq(state.scored | slot_bit)
                        with m.Case(Opcode.DECIDE):
                            with m.If(scores_left == 0):
                                m.d.comb += [self.decide.eq(1), self.deciding.eq(0)]
                                m.d.sync += deciding.eq(0)
                                m.next = "MAP"
                        with m.Case(Opcode.LOAD):
                            with m.If(checks.discard):
                                m.d.comb += retire.eq(1)
                            with m.Else():
                                m.d.comb += [
                                    self.requests.valid.eq(self.targets.ready),
                                    self.requests.p.beats.eq(checks.size),
                                    retire.eq(self.requests.ready & self.targets.ready),
                                    self.targets.valid.eq(self.requests.ready),
                                ]
                                with m.If(retire):
                                    m.d.sync += state.loaded.eq(state.loaded | slot_bit)
                        with m.Case(Opcode.STORE):
                            m.d.comb += [retire.eq(1), self.bind_valid.eq(~checks.discard)]
                            with m.If(~checks.discard):
                                m.d.sync += state.stored.eq(state.stored | slot_bit)
                        with m.Case(Opcode.RUN):
                            m.d.sync += [beats_left.eq(self.total * state.layer.hidden_blocks), scheduled.eq(0)]
                            with m.If(self.total == 0):
                                m.d.comb += retire.eq(1)
                                m.d.sync += state.eq(0)
                            with m.Else():
                                m.d.comb += self.run.eq(1)
                                m.next = "RUNNING"
                        with m.Case(Opcode.END):
                            m.d.comb += retire.eq(1)
                            m.next = "FINISHED"
            with m.State("MAP"):
                with m.If(self.mapped):
                    m.d.comb += [retire.eq(1), self.dispatch.eq(self.total == 0)]
                    m.d.sync += [state.decided.eq(1), undispatched.eq(self.total != 0),
                                 self.prefetch.valid.eq(self.total != 0)]
                    m.next = "EXECUTE"
            with m.State("RUNNING"):
                m.d.sync += beats_left.eq(beats_left - self.written)
                with m.If(self.ran):
                    m.d.sync += scheduled.eq(1)
                with m.If(scheduled & (beats_left == 0) & ~self.writing):
                    m.d.comb += [retire.eq(1), self.outputs_complete.eq(1)]
                    m.d.sync += state.eq(0)
                    m.next = "EXECUTE"
            with m.State("FINISHED"):
                m.d.comb += self.finished.eq(1)
        return m

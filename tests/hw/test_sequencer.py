"""Sequencer with the DRS: what it dispatches, to whom, and in which cycle. Whole jobs are in test_top.py."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.sim import Simulator

from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.drs import Drs
from hw.isa import Error, Instruction, Opcode
from hw.layout import activation_bytes, layer_beats
from hw.sequencer import Sequencer

CONFIG = AcceleratorConfig(name="t", cores=4, ports=2, max_hidden_blocks=8, max_intermediate_blocks=8, clock_hz=1,
                           channel_bytes=1 << 20)
HIDDEN, INTERMEDIATE, INPUT_BASE, OUTPUT_BASE = 96, 64, 0x10000, 0x40000
LOAD_STRIDE, STORE_STRIDE = activation_bytes(HIDDEN), 256
PROGRAM = [
    Instruction(Opcode.LAYER, hidden_blocks=HIDDEN // 32, intermediate_blocks=INTERMEDIATE // 32, gate_scale=1,
                up_scale=2, down_scale=3),
    Instruction(Opcode.WEIGHTS, count=layer_beats(CONFIG, HIDDEN, INTERMEDIATE), offset=0x3000),
    Instruction(Opcode.DECIDE),
    *(Instruction(Opcode.LOAD, slot=s, offset=s * LOAD_STRIDE) for s in range(SLOTS)),
    *(Instruction(Opcode.STORE, slot=s, offset=s * STORE_STRIDE) for s in range(SLOTS)),
    Instruction(Opcode.RUN),
    Instruction(Opcode.END),
]


def execute(mask):
    """Run PROGRAM with HOST_MASK ``mask`` and everything ready; events as (cycle since DECIDE, what, value)."""
    m = Module()
    m.submodules.dut = dut = Sequencer(CONFIG)
    m.submodules.drs = drs = Drs(CONFIG)
    m.d.comb += [drs.decide.eq(dut.decide), drs.compute.eq(dut.compute), dut.mapped.eq(drs.done),
                 dut.placements.eq(drs.placements), dut.total.eq(drs.total)]
    code = b"".join(i.encode() for i in PROGRAM)
    code += bytes(-len(code) % PORT_BYTES)
    beats = [int.from_bytes(code[k:k + PORT_BYTES], "little") for k in range(0, len(code), PORT_BYTES)]
    events, finished = [], []

    async def bench(ctx):
        ctx.set(dut.settings, {"program_base": 0x80, "program_count": len(PROGRAM), "input_base": INPUT_BASE,
                               "output_base": OUTPUT_BASE, "active": (1 << SLOTS) - 1, "host_mask": mask})
        for stream in (dut.requests, dut.score_requests, dut.prefetch, dut.targets):
            ctx.set(stream.ready, 1)
        for beat in beats:
            ctx.set(dut.program.payload, beat)
            ctx.set(dut.program.valid, 1)
            await ctx.tick().until(dut.program.ready)
        ctx.set(dut.program.valid, 0)
        decided, run_at = None, None
        for cycle in range(300):
            probes = (dut.decide, dut.prefetch.valid, dut.prefetch.p, dut.requests.valid, dut.requests.p, dut.targets.p,
                      dut.bind_valid, dut.bind_core, dut.bind, dut.run, dut.finished, dut.error)
            (decide, prefetch, weights, request, read, target, bind_valid, bind_core, bind, run, end, error
             ) = (await ctx.tick().sample(*probes))[-len(probes):]
            assert error == Error.NONE
            decided = cycle if decide else decided
            if prefetch:
                events.append((cycle - decided, "weights", (weights.offset, weights.beats)))
            if request:
                events.append((cycle - decided, "load", (read.address, read.beats, target.core, target.local)))
            if bind_valid:
                events.append((cycle - decided, "store", (bind.address, bind_core, bind.local)))
            if run:
                events.append((cycle - decided, "run", ()))
                run_at = cycle
            # Stand-in for schedule and writer: done after 5 cycles, then the outputs are written.
            if run_at is not None:
                ctx.set(dut.ran, cycle == run_at + 5)
                ctx.set(dut.written, run_at + 5 < cycle <= run_at + 5 + mask.bit_count() * HIDDEN // 32)
            if end:
                finished.append(cycle - decided)
                return

    sim = Simulator(m)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    assert finished, f"mask {mask:#x}: no END within 300 cycles"
    return events, finished[0]


def masks():
    rng = random.Random(9)
    return [0, (1 << SLOTS) - 1, 1, 1 << 31, 0x80000001, rng.getrandbits(32)]


@pytest.mark.parametrize("mask", masks(), ids=hex)
def test_dispatch_and_discard_take_a_cycle_each(mask):
    events, finished = execute(mask)
    computing = [s for s in range(SLOTS) if mask >> s & 1]
    place = {slot: (rank % CONFIG.cores, rank // CONFIG.cores) for rank, slot in enumerate(computing)}
    first = 3  # DECIDE in cycle 0, mapped in 2
    expected = []
    if computing:
        expected.append((first, "weights", (0x3000, PROGRAM[1].count)))
        beats = LOAD_STRIDE // PORT_BYTES
        expected += [(first + s, "load", (INPUT_BASE + s * LOAD_STRIDE, beats, *place[s])) for s in computing]
        expected += [(first + SLOTS + s, "store", (OUTPUT_BASE + s * STORE_STRIDE, *place[s])) for s in computing]
        expected.append((first + 2 * SLOTS, "run", ()))
    assert sorted(events) == sorted(expected), f"mask {mask:#x}"
    if not computing:
        assert finished == first + 2 * SLOTS + 2  # RUN and END take a cycle each

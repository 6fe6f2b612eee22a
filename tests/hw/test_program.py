"""Program fetch and decoder: instructions in order, one a cycle, static checks and addresses against hw/isa.py."""

import random

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from hw.config import PORT_BYTES, AcceleratorConfig
from hw.decoder import Decoder
from hw.isa import FIELDS, INSTRUCTION_BYTES, USED, Error, Instruction, Opcode
from hw.program import Program

CONFIG = AcceleratorConfig(name="t", cores=2, ports=2, max_hidden_blocks=9, max_intermediate_blocks=700, clock_hz=1,
                           channel_bytes=1 << 20, max_heads=20, program_length=32)
BASES = {"scores_base": 0x1000, "input_base": 0x20000, "output_base": 0x40000}


def fetch_and_decode(words, stall=0.0, seed=0):
    """Decoded instructions of ``words`` up to the first missing one, and cycles from loaded to it."""
    rng = random.Random(seed)
    m = Module()
    m.submodules.program = program = Program(CONFIG)
    m.submodules.decoder = decoder = Decoder(CONFIG)
    wiring.connect(m, program.o, decoder.i)
    code = b"".join(word.to_bytes(INSTRUCTION_BYTES, "little") for word in words)
    beats = [int.from_bytes(code[k:k + PORT_BYTES], "little") for k in range(0, len(code), PORT_BYTES)]
    got, cycles = [], [0]

    async def bench(ctx):
        ctx.set(program.base, 0x8000)
        ctx.set(program.count, len(words))
        for name, value in BASES.items():
            ctx.set(decoder.settings[name], value)
        ctx.set(program.requests.ready, 1)
        request, = await ctx.tick().sample(program.requests.payload).until(program.requests.valid)
        assert (request.address, request.beats) == (0x8000, len(beats))
        for beat in beats:
            ctx.set(program.i.payload, beat)
            ctx.set(program.i.valid, 1)
            await ctx.tick().until(program.i.ready)
            ctx.set(program.i.valid, 0)
        assert ctx.get(program.loaded)
        while True:
            ctx.set(decoder.o.ready, rng.random() >= stall)
            _, _, valid, ready, op = await ctx.tick().sample(decoder.o.valid, decoder.o.ready, decoder.o.payload)
            cycles[0] += 1
            if valid and ready:
                got.append(op)
                if op.error == Error.PROGRAM:
                    return

    sim = Simulator(m)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()
    return got, cycles[0]


def word_of(instruction):
    return int.from_bytes(instruction.encode(), "little")


@pytest.mark.parametrize("count", [1, 4, 5, 31, 32])
def test_order_and_rate(count):
    words = [word_of(Instruction(Opcode.LOAD, slot=k % 32, offset=64 * k)) for k in range(count)]
    got, cycles = fetch_and_decode(words)
    assert [op.index for op in got] == [*range(count), count - 1]
    assert [op.error for op in got] == [Error.NONE] * count + [Error.PROGRAM]
    assert [op.word.slot for op in got[:count]] == [k % 32 for k in range(count)]
    assert [op.beat for op in got[:count]] == [BASES["input_base"] // 64 + k for k in range(count)]
    assert cycles == count + 4  # three stages and the missing one
    stalled, _ = fetch_and_decode(words, stall=0.5, seed=count)
    assert [op.index for op in stalled] == [op.index for op in got]


def static_error(word):
    """The decoder's verdict from the definitions."""
    try:
        i = Instruction.decode(word.to_bytes(16, "little"))
    except ValueError:
        return Error.OPCODE
    used = sum(((1 << FIELDS[n][1]) - 1) << FIELDS[n][0] for n in ("opcode", *USED[i.opcode]))
    if word & ~used:
        return Error.OPCODE
    if i.slot > 31:
        return Error.SLOT
    if i.opcode == Opcode.LAYER and not (0 < i.hidden_blocks <= 9 and 0 < i.intermediate_blocks <= 700):
        return Error.SHAPE
    if i.opcode == Opcode.SCORES and not 0 < i.count <= 20:
        return Error.SHAPE
    return Error.NONE


@pytest.mark.parametrize("seed", range(3))
def test_static_checks_and_addresses_on_random_words(seed):
    rng = random.Random(seed)
    words = []
    for _ in range(32):
        opcode = rng.choice(list(Opcode))
        word = int(opcode)
        for name in USED[opcode]:
            low, width = FIELDS[name]
            word |= rng.choice([0, 1, rng.getrandbits(5), rng.getrandbits(width), 64 * rng.getrandbits(10)]) % (
                1 << width) << low
        if rng.random() < 0.2:
            word ^= 1 << rng.randrange(128)
        words.append(word)
    got, _ = fetch_and_decode(words, stall=0.3, seed=seed)
    for word, op in zip(words, got):
        where = f"seed {seed}, word {word:#034x}"
        assert Error(op.error) == static_error(word), where
        opcode = word & 0xFF
        if op.error == Error.NONE and opcode in (Opcode.WEIGHTS, Opcode.SCORES, Opcode.LOAD, Opcode.STORE):
            base = {Opcode.SCORES: "scores_base", Opcode.LOAD: "input_base", Opcode.STORE: "output_base"}.get(opcode)
            address = (word >> 64) + (BASES[base] if base else 0)
            unit = 4096 if opcode == Opcode.WEIGHTS else 64
            assert op.misplaced == int(address % unit != 0 or address >= 2 << 20), where
            if not op.misplaced:
                assert op.beat == address // 64, where


@pytest.mark.parametrize("base, count, error", [
    (0x8000, 0, Error.PROGRAM), (0x8000, 33, Error.PROGRAM), (0x8000, 1 << 31, Error.PROGRAM),
    (0x8010, 1, Error.ADDRESS), (1 << 63, 1, Error.ADDRESS), ((2 << 20) - 64, 5, Error.ADDRESS),
    ((2 << 20) - 64, 4, Error.NONE),
])
def test_programs_are_refused_before_they_are_read(base, count, error):
    dut = Program(CONFIG)

    async def bench(ctx):
        ctx.set(dut.base, base)
        ctx.set(dut.count, count)
        for _ in range(4):
            await ctx.tick()
        assert ctx.get(dut.error) == error
        assert ctx.get(dut.requests.valid) == (error == Error.NONE)

    sim = Simulator(dut)
    sim.add_clock(1e-8)
    sim.add_testbench(bench)
    sim.run()

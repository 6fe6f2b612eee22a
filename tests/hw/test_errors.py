"""Every error code is provoked on the whole accelerator: clean halt, right instruction, and the next job is right."""

from dataclasses import replace

import pytest

from hw.config import PORT_BYTES, preset
from hw.isa import Error, Opcode
from hw.registers import CONTROL_RESET, CONTROL_START, SOURCE_TAS, STATUS_BUSY
from tests.hw.axi_model import FAST, Timing
from tests.hw.test_top import check_outputs
from tests.hw.top_bench import INPUTS, OUTPUTS, PROGRAM, SCORES, WEIGHTS, Bench, Layer

CONFIG = preset("tiny")
MEMORY = CONFIG.ports * CONFIG.channel_bytes
LAYER = Layer(11, 32, 32, (0, 1))
GOOD = LAYER.program(CONFIG)
OPCODES = [i.opcode for i in GOOD]
AT = {opcode: OPCODES.index(opcode) for opcode in Opcode}
"""Index of the first instruction of each kind."""


def changed(opcode, **fields):
    """The good program with the first ``opcode`` altered."""
    return [replace(i, **fields) if k == AT[opcode] else i for k, i in enumerate(GOOD)]


def without(opcode):
    return [i for k, i in enumerate(GOOD) if k != AT[opcode]]


def word(value):
    return value.to_bytes(16, "little")


REFUSED = {
    "opcode 0": ([word(0), *GOOD], {}, Error.OPCODE, 0),
    "unknown opcode": ([*GOOD[:3], word(0x22), *GOOD[3:]], {}, Error.OPCODE, 3),
    "unused bit of DECIDE": ([*GOOD[:4], word(Opcode.DECIDE | 1 << 127), *GOOD[5:]], {}, Error.OPCODE, 4),
    "unused bit of LAYER": ([word(int.from_bytes(GOOD[0].encode(), "little") | 1 << 8), *GOOD[1:]], {},
                            Error.OPCODE, 0),
    "slot 32": (changed(Opcode.STORE, slot=32), {}, Error.SLOT, AT[Opcode.STORE]),
    "no hidden block": (changed(Opcode.LAYER, hidden_blocks=0), {}, Error.SHAPE, 0),
    "too many hidden blocks": (changed(Opcode.LAYER, hidden_blocks=CONFIG.max_hidden_blocks + 1), {}, Error.SHAPE, 0),
    "no intermediate block": (changed(Opcode.LAYER, intermediate_blocks=0), {}, Error.SHAPE, 0),
    "intermediate blocks of 16 bits": (changed(Opcode.LAYER, intermediate_blocks=0x8001), {}, Error.SHAPE, 0),
    "no score": (changed(Opcode.SCORES, count=0), {}, Error.SHAPE, AT[Opcode.SCORES]),
    "too many scores": (changed(Opcode.SCORES, count=CONFIG.max_heads + 1), {}, Error.SHAPE, AT[Opcode.SCORES]),
    "too few weight beats": (changed(Opcode.WEIGHTS, count=GOOD[1].count - 1), {}, Error.STREAM, 1),
    "too many weight beats": (changed(Opcode.WEIGHTS, count=GOOD[1].count + (1 << 31)), {}, Error.STREAM, 1),
    "weights misaligned": (changed(Opcode.WEIGHTS, offset=WEIGHTS + PORT_BYTES), {}, Error.ADDRESS, 1),
    "weights beyond the channel": (changed(Opcode.WEIGHTS, offset=CONFIG.channel_bytes), {},
                                   Error.ADDRESS, 1),
    "scores misaligned": (changed(Opcode.SCORES, offset=4), {"SOURCE": SOURCE_TAS}, Error.ADDRESS, AT[Opcode.SCORES]),
    "input beyond memory": (changed(Opcode.LOAD, offset=MEMORY - INPUTS - PORT_BYTES), {},
                            Error.ADDRESS, AT[Opcode.LOAD]),
    "input address over 64 bits": (changed(Opcode.LOAD, offset=(1 << 64) - INPUTS), {}, Error.ADDRESS, AT[Opcode.LOAD]),
    "output misaligned": (changed(Opcode.STORE, offset=32), {}, Error.ADDRESS, AT[Opcode.STORE]),
    "output beyond memory": (changed(Opcode.STORE, offset=MEMORY - OUTPUTS), {}, Error.ADDRESS, AT[Opcode.STORE]),
    "program misaligned": (GOOD, {"PROGRAM_BASE": PROGRAM + 16}, Error.ADDRESS, 0),
    "program beyond memory": (GOOD, {"PROGRAM_BASE": MEMORY - PORT_BYTES}, Error.ADDRESS, 0),
    "program base of 64 bits": (GOOD, {"PROGRAM_BASE": PROGRAM | 1 << 63}, Error.ADDRESS, 0),
    "empty program": (GOOD, {"PROGRAM_COUNT": 0}, Error.PROGRAM, 0),
    "program too long": (GOOD, {"PROGRAM_COUNT": CONFIG.program_length + 1}, Error.PROGRAM, 0),
    "no END": (GOOD[:-1], {}, Error.PROGRAM, len(GOOD) - 2),
    "WEIGHTS before LAYER": (GOOD[1:], {}, Error.ORDER, 0),
    "DECIDE before WEIGHTS": (without(Opcode.WEIGHTS), {}, Error.ORDER, 1),
    "DECIDE twice": ([*GOOD[:5], GOOD[4], *GOOD[5:]], {}, Error.ORDER, 5),
    "DECIDE before the scores of slot 0": (without(Opcode.SCORES), {"SOURCE": SOURCE_TAS}, Error.ORDER, 3),
    "SCORES twice": ([*GOOD[:3], *GOOD[2:]], {}, Error.ORDER, 3),
    "LOAD before DECIDE": ([*GOOD[:2], GOOD[AT[Opcode.LOAD]]], {}, Error.ORDER, 2),
    "LOAD twice": (changed(Opcode.LOAD, slot=1), {}, Error.ORDER, AT[Opcode.LOAD] + 1),
    "RUN without a LOAD": (without(Opcode.LOAD), {}, Error.ORDER, AT[Opcode.RUN] - 1),
    "RUN without a STORE": (without(Opcode.STORE), {}, Error.ORDER, AT[Opcode.RUN] - 1),
    "RUN twice": ([*GOOD[:-1], *GOOD[-2:]], {}, Error.ORDER, AT[Opcode.RUN] + 1),
    "END without RUN": (without(Opcode.RUN), {}, Error.ORDER, AT[Opcode.RUN]),
    "LAYER after DECIDE": ([*GOOD[:5], *GOOD], {}, Error.ORDER, 5),
    "END between SCORES and DECIDE": ([*GOOD[:4], GOOD[-1]], {"SOURCE": SOURCE_TAS}, Error.ORDER, 4),
    "LAYER between SCORES and DECIDE": ([*GOOD[:4], *GOOD], {"SOURCE": SOURCE_TAS}, Error.ORDER, 4),
}


def settings(**changes):
    return LAYER.settings(SOURCE=0, HOST_MASK=3, THRESHOLD=0) | changes


async def good_job(board):
    board.store_layer(LAYER)
    await board.job(GOOD, settings())
    await board.expect_done()
    check_outputs(board, LAYER, [0, 1])


def test_refused_programs_halt_at_their_instruction_and_the_next_job_is_right():
    bench = Bench(CONFIG, 11)
    bench.store_layer(LAYER)

    async def script(board):
        for number, (name, (program, changes, code, index)) in enumerate(REFUSED.items()):
            await board.job(program, settings(**changes))
            try:
                await board.expect_error(code, index)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error
            if number % 8 == 0:
                await good_job(board)
        await good_job(board)

    bench.run(script)


BAD_BEATS = {
    "program": (PROGRAM, Error.READ, {0}),
    "scores": (SCORES, Error.READ, {AT[Opcode.DECIDE]}),
    "input": (INPUTS + PORT_BYTES, Error.READ, {AT[Opcode.RUN]}),
    "weights": (WEIGHTS + 5 * PORT_BYTES, Error.READ, set(range(AT[Opcode.LOAD], AT[Opcode.END]))),
    "output": (OUTPUTS, Error.WRITE, {AT[Opcode.RUN]}),
}


@pytest.mark.parametrize("timing", [FAST, Timing()], ids=["fast", "random"])
def test_memory_errors_halt_and_the_next_job_is_right(timing):
    bench = Bench(CONFIG, 12, timing)
    bench.store_layer(LAYER)

    async def script(board):
        for name, (address, code, indices) in BAD_BEATS.items():
            board.memory.errors = {address}
            await board.job(GOOD, settings(SOURCE=SOURCE_TAS, THRESHOLD=(1 << 63) - 1))
            index = await board.read("ERROR_INDEX")
            assert index in indices, f"{name}: error at instruction {index}, expected one of {indices}"
            await board.expect_error(code, index)
            board.memory.errors = set()
            await good_job(board)

    bench.run(script)


def test_a_silent_memory_ends_in_the_watchdog_and_a_reset_forgets_it():
    bench = Bench(CONFIG, 13)
    bench.store_layer(LAYER)

    async def script(board):
        board.memory.timing = Timing(silent=True)
        await board.job(GOOD, settings(WATCHDOG=300))
        assert 300 <= board.cycles < 340
        await board.expect_error(Error.WATCHDOG, 0)
        board.memory.timing = FAST
        await good_job(board)

    bench.run(script)


def test_reset_aborts_a_running_job_without_a_watchdog():
    bench = Bench(CONFIG, 14)
    bench.store_layer(LAYER)

    async def script(board):
        board.store_program(GOOD)
        for name, value in settings(PROGRAM_COUNT=len(GOOD), WATCHDOG=0).items():
            await board.write(name, value)
        await board.write("CONTROL", CONTROL_START)
        for _ in range(60):
            await board.tick()
        assert await board.read("STATUS") == STATUS_BUSY
        await board.write("CONTROL", CONTROL_RESET)
        for _ in range(100):
            await board.tick()
        assert await board.read("STATUS") == 0
        await good_job(board)

        # Memory that never answers: the first reset waits for it, the second does not.
        board.memory.timing = Timing(silent=True)
        await board.write("WATCHDOG", 0)
        await board.write("CONTROL", CONTROL_START)
        for expected in (STATUS_BUSY, STATUS_BUSY, 0):
            for _ in range(50):
                await board.tick()
            assert await board.read("STATUS") == expected
            await board.write("CONTROL", CONTROL_RESET)
        board.memory.timing = FAST
        await good_job(board)

    bench.run(script)

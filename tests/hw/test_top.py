"""The whole accelerator (tiny preset) against the integer model, on real jobs out of memory."""

import numpy as np
import pytest

from hw.config import PORT_BYTES, preset
from hw.layout import layer_beats, output_bytes
from hw.registers import CONTROL_START, SOURCE_MASK, SOURCE_TAS, STATUS_DONE, STATUS_NAN
from model.integer import BF16_NAN, mlp
from tests.hw.axi_model import FAST, Timing
from tests.hw.top_bench import PROGRAM, Bench, Layer

CONFIG = preset("tiny")


def check_outputs(bench: Bench, layer: Layer, computing: list[int]) -> None:
    """Rows of ``computing`` slots equal the model bit for bit, the others were not touched."""
    y = mlp(layer.x, layer.weights).y
    for row, slot in enumerate(layer.slots):
        got = bench.output(layer, row)
        expected = y[row] if slot in computing else np.full(layer.hidden, 0xA5A5, dtype=np.uint16)
        wrong = np.flatnonzero(got != expected)
        assert not wrong.size, (f"seed {layer.seed}: slot {slot}, element {wrong[0]} of {layer.hidden}: "
                                f"{got[wrong[0]]:#06x}, expected {expected[wrong[0]]:#06x} ({wrong.size} differ)")


@pytest.mark.parametrize("seed, hidden, intermediate, slots, mask, timing", [
    (1, 64, 96, (0, 3, 7), 0x89, FAST),
    (2, 96, 64, (0, 1, 30, 31), 0xC0000001, Timing()),
])
def test_masked_job_is_bit_exact(seed, hidden, intermediate, slots, mask, timing):
    layer = Layer(seed, hidden, intermediate, slots)
    bench = Bench(CONFIG, seed, timing)
    bench.store_layer(layer)
    computing = [s for s in slots if mask >> s & 1]

    async def script(board):
        await board.job(layer.program(CONFIG), layer.settings(SOURCE=SOURCE_MASK, HOST_MASK=mask))
        await board.expect_done()
        assert await board.read("INDEX") == sum(1 << s for s in computing)
        for rank, slot in enumerate(computing):
            assert await board.read("MAPPING", slot) == rank % CONFIG.cores
        beats = layer_beats(CONFIG, hidden, intermediate)
        busiest = -(-len(computing) // CONFIG.cores)
        expected = {
            "WEIGHT_BEATS": beats, "WEIGHT_BYTES": beats * CONFIG.ports * PORT_BYTES,
            "OUTPUT_BYTES": len(computing) * output_bytes(hidden), "ROWS_COMPUTED": len(computing),
            "ROWS_REPLAYED": len(slots) - len(computing), "BUSIEST_ROWS": busiest, "SCORE_CYCLES": 0,
        }
        got = {name: await board.counter(name) for name in expected}
        assert got == expected, f"seed {seed}"
        cycles = await board.counter("CYCLES")
        assert abs(board.cycles - cycles) <= 2, f"seed {seed}: {cycles} counted, {board.cycles} seen"
        assert 0 < await board.counter("FETCH_CYCLES") < cycles
        assert 0 < await board.counter("INPUT_CYCLES") < cycles
        macs, exposed = await board.counter("MAC_CYCLES"), await board.counter("EXPOSED_CYCLES")
        assert macs == busiest * 3 * hidden * intermediate // (32 * CONFIG.rows)
        assert 0 < exposed < cycles - macs
        assert await board.counter("STALL_DRAIN_CYCLES") > 0  # the gate/up drain before the down phase
        if timing is FAST:
            assert await board.counter("DRS_CYCLES") == 3

    bench.run(script)
    check_outputs(bench, layer, computing)


@pytest.mark.parametrize("seed", [5])
def test_scores_decide_and_the_first_dispatch_comes_within_eight_cycles(seed):
    layer = Layer(seed, 32, 32, (2, 4, 5, 9), heads=16)
    bench = Bench(CONFIG, seed)
    bench.store_layer(layer)
    sums = layer.scores.sum(axis=1, dtype=np.int64)
    threshold = int(np.sort(sums)[1])
    computing = [s for s, total in zip(layer.slots, sums) if total < threshold]

    async def script(board):
        await board.job(layer.program(CONFIG), layer.settings(SOURCE=SOURCE_TAS, THRESHOLD=threshold & (1 << 64) - 1))
        await board.expect_done()
        assert await board.read("INDEX") == sum(1 << s for s in computing), f"seed {seed}"
        assert await board.counter("ROWS_REPLAYED") == 3
        assert 0 < await board.counter("DRS_CYCLES") <= 8
        assert await board.counter("SCORE_CYCLES") > 0

    bench.run(script)
    check_outputs(bench, layer, computing)


def test_all_rows_replay_reads_no_weights():
    layer = Layer(6, 64, 64, (0, 1, 2))
    bench = Bench(CONFIG, 6)
    bench.store_layer(layer)

    async def script(board):
        await board.job(layer.program(CONFIG), layer.settings(SOURCE=SOURCE_TAS, THRESHOLD=1 << 63))
        await board.expect_done()
        assert await board.read("INDEX") == 0
        for name in ("WEIGHT_BYTES", "WEIGHT_BEATS", "OUTPUT_BYTES", "MAC_CYCLES", "ROWS_COMPUTED", "INPUT_CYCLES"):
            assert await board.counter(name) == 0, name
        assert await board.counter("ROWS_REPLAYED") == 3
        assert await board.counter("DRS_CYCLES") <= 8
        assert not any(address < PROGRAM for address, _ in board.memory.reads)  # where the weights are
        # The same board computes the next job; an interrupt of the last one does not linger.
        await board.job(layer.program(CONFIG), layer.settings(SOURCE=SOURCE_MASK, HOST_MASK=0b10))
        await board.expect_done()
        assert await board.counter("ROWS_COMPUTED") == 1

    bench.run(script)
    check_outputs(bench, layer, [1])


def test_a_nan_block_makes_its_slot_nan_and_raises_the_flag():
    layer = Layer(9, 64, 32, (3, 4))
    layer.x.scales[1, 0] = 255
    bench = Bench(CONFIG, 9)
    bench.store_layer(layer)

    async def script(board):
        for mask, flag in ((1 << 4, STATUS_NAN), (1 << 3, 0)):  # the next job without that slot is clean
            await board.job(layer.program(CONFIG), layer.settings(HOST_MASK=mask))
            await board.expect_done()
            assert await board.read("STATUS") == STATUS_DONE | flag

    bench.run(script)
    check_outputs(bench, layer, [3, 4])
    assert (bench.output(layer, 1) == BF16_NAN).all()


def test_two_layers_in_one_job():
    layer = Layer(7, 32, 64, (0, 1))
    bench = Bench(CONFIG, 7)
    bench.store_layer(layer)
    program = layer.program(CONFIG)

    async def script(board):
        await board.job(program[:-1] + program, layer.settings(HOST_MASK=0b11))
        await board.expect_done()
        assert await board.counter("ROWS_COMPUTED") == 4
        assert await board.counter("OUTPUT_BYTES") == 4 * output_bytes(32)

    bench.run(script)
    check_outputs(bench, layer, [0, 1])


def test_start_is_ignored_while_a_job_runs():
    layer = Layer(8, 32, 32, (0,))
    bench = Bench(CONFIG, 8)
    bench.store_layer(layer)

    async def script(board):
        async def late_start(name, value):
            await type(board).write(board, name, value)
            if name == "CONTROL":
                await type(board).write(board, "CONTROL", CONTROL_START)

        board.write = late_start
        await board.job(layer.program(CONFIG), layer.settings(HOST_MASK=1))
        await board.expect_done()
        assert await board.counter("ROWS_COMPUTED") == 1

    bench.run(script)
    check_outputs(bench, layer, [0])

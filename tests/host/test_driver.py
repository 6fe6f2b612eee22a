import pytest

from host.board import BoardError
from host.driver import Driver
from host.golden import GoldenBoard
from hw.registers import BY_NAME, address


class SpyBoard(GoldenBoard):
    """Counts register writes and can answer some registers with other values."""

    def __init__(self, answers: dict[str, int] | None = None):
        super().__init__("tiny")
        self.answers = {address(name): value for name, value in (answers or {}).items()}
        self.writes: list[tuple[int, int]] = []

    def read_csr(self, address: int) -> int:
        return self.answers.get(address, super().read_csr(address))

    def write_csr(self, address: int, value: int) -> None:
        self.writes.append((address, value))
        super().write_csr(address, value)


def test_a_dead_link_and_another_build_are_named():
    with pytest.raises(BoardError, match="no accelerator answers: MAGIC reads 0xffffffff, not 0x46435231"):
        Driver(SpyBoard({"MAGIC": 0xFFFFFFFF}))
    with pytest.raises(BoardError, match="register CORES reads 0x7, preset 'tiny' has 0x2"):
        Driver(SpyBoard({"CORES": 7}))
    with pytest.raises(BoardError, match="register VERSION reads 0x9"):
        Driver(SpyBoard({"VERSION": 9}))


def test_a_register_is_written_when_it_changes_only():
    board = SpyBoard()
    driver = Driver(board)
    driver.write("ACTIVE", 3)
    driver.write("ACTIVE", 3)
    driver.write("ACTIVE", 1)
    driver.write("OUTPUT_BASE", 0x1_0000_0040)
    driver.write("OUTPUT_BASE", 0x1_0000_0080)
    low = BY_NAME["OUTPUT_BASE"].address
    assert board.writes == [(BY_NAME["ACTIVE"].address, 3), (BY_NAME["ACTIVE"].address, 1),
                            (low, 0x40), (low + 4, 1), (low, 0x80)]
    assert driver.read("OUTPUT_BASE") == 0x1_0000_0080


def test_negative_thresholds_are_written_in_twos_complement():
    board = SpyBoard()
    Driver(board).write("THRESHOLD", -2)
    assert [value for _, value in board.writes] == [0xFFFFFFFE, 0xFFFFFFFF]


def test_counters_of_a_long_job_are_read_in_full():
    board = SpyBoard({"CYCLES": 1 << 20})
    board.answers[address("WEIGHT_BYTES", 1)] = 2
    assert Driver(board).counters()["weight_bytes"] == 2 << 32
    board.answers[address("CYCLES")] = 5
    assert Driver(board).counters()["weight_bytes"] == 0

"""Registers by name, jobs, and counters: the lowest layer of the host that knows what a board is."""

from host.board import Board, BoardError
from hw.config import PRESETS
from hw.identification import build_id, identification
from hw.isa import Error
from hw.registers import (
    BY_NAME,
    CONTROL_RESET,
    CONTROL_START,
    COUNTERS,
    MAGIC,
    PROTOCOL_VERSION,
    STATUS_ERROR,
    address,
)

WIDE_CYCLES = 1 << 20
"""A job shorter than this has no counter above 32 bits: the widest build moves 2 KiB of weights a cycle."""
TIMEOUT_CYCLES = 1 << 32
"""How long a job may take. The board's own watchdog ends one that makes no progress long before, and a job that may
not take longer needs no look at the upper half of CYCLES."""


class JobError(BoardError):
    """A job stopped with an error: ``code`` (hw/isa.py) at instruction ``index``."""

    def __init__(self, code: Error, index: int):
        super().__init__(f"the board stopped with error {code.name} ({int(code)}) at instruction {index}; "
                         "hw/isa.py says what it means, Driver.reset() readies the board for the next job")
        self.code, self.index = code, index


class Driver:
    """Talks to one board.

    Registers that already hold a value are not written again: on a real link, and on the simulated one, a write costs
    more than the rest of a small job.

    Raises
    ------
    BoardError
        The identification registers are not those of a board of this configuration.
    """

    def __init__(self, board: Board):
        self.board = board
        self._written: dict[int, int] = {}
        self._addresses = {(name, word): address(name, word) for name, r in BY_NAME.items() for word in range(r.words)}
        self.identification = self._identify()

    def _identify(self) -> dict[str, int]:
        expected = identification(self.board.config)
        magic = self.read("MAGIC")
        if magic != MAGIC:
            raise BoardError(f"no accelerator answers: MAGIC reads {magic:#010x}, not {MAGIC:#010x}; check that the "
                             "board is there and holds the design")
        found = {name: self.read(name) for name in expected}
        if found["VERSION"] != PROTOCOL_VERSION:
            raise BoardError(f"the board speaks another protocol: register VERSION reads {found['VERSION']:#x}, this "
                             f"host speaks {PROTOCOL_VERSION:#x}; take a bitstream and a host of the same version")
        # Shapes say more than the hash of all of them, so BUILD is named where nothing else differs.
        wrong = [name for name, value in expected.items() if found[name] != value]
        if wrong:
            name = next((name for name in wrong if name != "BUILD"), "BUILD")
            built = next((f"it was built with preset {other.name}" for other in PRESETS.values()
                          if build_id(other) == found["BUILD"]), "name the preset it was built with")
            raise BoardError(f"the board is another build: register {name} reads {found[name]:#x}, preset "
                             f"{self.board.config.name!r} has {expected[name]:#x} (they differ in {', '.join(wrong)}); "
                             f"{built}")
        return found

    def read(self, name: str) -> int:
        """Value of a register, 64-bit ones in two reads."""
        return sum(self.board.read_csr(self._addresses[name, word]) << 32 * word for word in range(BY_NAME[name].words))

    def write(self, name: str, value: int) -> None:
        """Set a register unless it holds ``value`` already; negative values in two's complement."""
        for word in range(BY_NAME[name].words):
            where, part = self._addresses[name, word], value >> 32 * word & 0xFFFFFFFF
            if self._written.get(where) != part:
                self.board.write_csr(where, part)
                self._written[where] = part

    def run(self) -> int:
        """Start the job and wait for its end; returns STATUS. Raises :exc:`JobError`."""
        self.board.write_csr(self._addresses["CONTROL", 0], CONTROL_START)
        self.board.wait(TIMEOUT_CYCLES)
        status = self.read("STATUS")
        if status & STATUS_ERROR:
            raise JobError(Error(self.read("ERROR")), self.read("ERROR_INDEX"))
        return status

    def reset(self) -> None:
        """Ready the board for the next job after an error."""
        self.board.write_csr(self._addresses["CONTROL", 0], CONTROL_RESET)
        self._written.clear()

    def counters(self) -> dict[str, int]:
        """Counters of the last job by their names in hw/registers.py, lower case."""
        low = {name: self.board.read_csr(self._addresses[name, 0]) for name in COUNTERS}
        if low["CYCLES"] >= WIDE_CYCLES:
            low = {name: self.read(name) for name in COUNTERS}
        return {name.lower(): value for name, value in low.items()}

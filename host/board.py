"""The transport interface: all that the host needs of a board. numpy only.

A board is a register window (hw/registers.py), a byte-addressed memory (hw/layout.py) and a way to wait for the end of
a job. The simulated board (sim/board.py), the golden board (host/golden.py) and a card behind PCIe look the same.
"""

from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import numpy as np

from hw.config import AcceleratorConfig


class BoardError(Exception):
    """A board could not be opened, or it broke the contract of its interface."""


class BoardTimeout(BoardError):
    """A job, or an access to a register, did not finish within the cycles allowed."""


@runtime_checkable
class Board(Protocol):
    """One accelerator with its memory.

    Attributes
    ----------
    config : the build of the accelerator; the identification registers must agree with it.
    kind : what it really is, for reports, e.g. ``"simulated (Verilator RTL)"``. Figures are labelled with it.
    cycles : clock cycles since the board was opened; 0 on a board that has no clock.
    """

    config: AcceleratorConfig
    kind: str

    @property
    def cycles(self) -> int: ...

    def read_csr(self, address: int) -> int:
        """The 32-bit register at byte ``address`` (a multiple of 4 inside the window)."""
        ...

    def write_csr(self, address: int, value: int) -> None:
        """Write the 32-bit ``value`` (0..2**32-1) to the register at byte ``address``."""
        ...

    def read_memory(self, address: int, size: int) -> np.ndarray:
        """A copy of ``size`` bytes of board memory, uint8 ``[size]``. ValueError when beyond the memory."""
        ...

    def write_memory(self, address: int, array: np.ndarray) -> None:
        """Copy the bytes of ``array`` (any dtype, C order) into board memory. ValueError when beyond the memory."""
        ...

    def wait(self, timeout_cycles: int) -> None:
        """Return once STATUS is done or error (read it to know which). BoardTimeout after ``timeout_cycles``."""
        ...

    def close(self) -> None:
        """Give the board back; closing twice is allowed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None: ...


def check_range(address: int, size: int, memory_bytes: int) -> None:
    """Raise ValueError unless ``address .. address + size`` lies inside a memory of ``memory_bytes``."""
    if size < 0 or not 0 <= address <= memory_bytes - size:
        raise ValueError(f"memory access {address:#x} + {size:#x} bytes is outside 0..{memory_bytes:#x} of this board")


def memory_bytes(config: AcceleratorConfig) -> int:
    """Bytes of board memory: one region of ``channel_bytes`` per weight port, one after the other."""
    return config.ports * config.channel_bytes

"""What every board can do for the host, whatever carries it out: registers, memory, and waiting for a job."""

from types import TracebackType
from typing import Protocol, Self

import numpy as np

from hw.config import AcceleratorConfig


class BoardError(Exception):
    """The board or the way to it failed: an access out of range, a wrong answer, a job that stopped with an error."""


class BoardTimeout(BoardError):
    """A job neither finished nor failed in the time it was given."""


class Board(Protocol):
    """One accelerator with its memory.

    Attributes
    ----------
    kind : :class:`str`
        What stands behind the interface, for reports: ``"simulated (Verilator RTL)"``, ``"golden (integer model)"``,
        ``"XDMA card 0"``.
    config : :class:`~hw.config.AcceleratorConfig`
        Sizes that the board was built with. The identification registers say the same, or it is another build.
    cycles : :class:`int`
        Clock cycles since the board was opened, register accesses included; 0 for ever where there is no clock, or
        nobody counts it outside of jobs.
    """

    kind: str
    config: AcceleratorConfig

    @property
    def cycles(self) -> int: ...

    def read_csr(self, address: int) -> int:
        """The 32-bit register at byte ``address`` (hw/registers.py)."""

    def write_csr(self, address: int, value: int) -> None:
        """Write ``value`` (0 .. 2**32 - 1) to the register at byte ``address``."""

    def read_memory(self, address: int, size: int) -> np.ndarray:
        """A copy of ``size`` bytes, uint8 ``[size]``. Raises :exc:`BoardError` beyond the memory."""

    def write_memory(self, address: int, array: np.ndarray) -> None:
        """Store the bytes of ``array`` (any dtype, C order) from ``address`` on. Raises :exc:`BoardError` beyond it."""

    def wait(self, timeout_cycles: int) -> None:
        """Return once the started job is done or has stopped with an error.

        Raises
        ------
        BoardTimeout
            Neither happened within ``timeout_cycles`` clock cycles.
        """

    def close(self) -> None:
        """Free what the board holds. Closing twice is harmless."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...


def memory_bytes(config: AcceleratorConfig) -> int:
    """Bytes of board memory: one region of ``channel_bytes`` per weight port, one after the other."""
    return config.ports * config.channel_bytes


def check_range(address: int, size: int, limit: int) -> None:
    """Raise :exc:`BoardError` unless ``address .. address + size`` lies inside a memory of ``limit`` bytes."""
    if size < 0 or not 0 <= address <= limit - size:
        raise BoardError(f"memory access at {address:#x}, {size:#x} bytes: this board's memory is 0..{limit:#x}")

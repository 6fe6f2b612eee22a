"""The simulated board: the generated Verilog, compiled by Verilator, with a memory whose behaviour the caller sets."""

import ctypes
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from host.board import BoardError, BoardTimeout, check_range, memory_bytes
from hw.config import AcceleratorConfig, preset
from hw.registers import WINDOW_BYTES
from sim import build
from sim.memory import MemoryConfig, Settings

CSR_LIMIT = 10_000
"""Cycles a register access may take before it counts as a hang."""


class ProtocolViolation(BoardError):
    """The accelerator broke a rule of AXI on a memory port; raised at ``close`` and by ``check``."""


class SimulatedBoard:
    """RTL behind the board interface (host/board.py).

    ``config``: a preset's name or a configuration. ``memory``: latency, bandwidth and stalls, see ``MemoryConfig``.
    ``trace``: write a waveform to this path (FST or VCD, see ``build.library``; a separate, slower build).
    ``library``: a compiled board to use instead of the one made from ``config``.

    Attributes
    ----------
    config : the build of the accelerator.
    memory : uint8, all of board memory without a copy; what the RTL writes appears in it.
    """

    kind = "simulated (Verilator RTL)"

    def __init__(self, config: str | AcceleratorConfig = "sim", memory: MemoryConfig | None = None, *,
                 trace: Path | None = None, library: Path | None = None):
        self.config = preset(config) if isinstance(config, str) else config
        self._library = _load(library or build.library(self.config, trace=trace is not None))
        size = memory_bytes(self.config)
        self._handle = self._library.board_open(size)
        if not self._handle:
            raise BoardError(f"cannot reserve {size:#x} bytes of address space for the memory of preset "
                             f"{self.config.name!r}; use a smaller preset")
        self.memory = np.ctypeslib.as_array(self._library.board_memory(self._handle), shape=(size,))
        self.configure(memory or MemoryConfig())
        if trace is not None and not self._library.board_trace(self._handle, str(trace).encode()):
            raise BoardError(f"this library was built without tracing, so {trace} cannot be written")
        self._library.board_reset(self._handle)

    def configure(self, memory: MemoryConfig) -> None:
        """Change the memory's behaviour from the next cycle on; also restarts its random stalls."""
        self.memory_config = memory
        self._library.board_settings(self._handle, ctypes.byref(Settings.of(memory)))

    @property
    def cycles(self) -> int:
        """Clock cycles since the board was opened, register accesses included."""
        return self._library.board_cycles(self._handle)

    def read_csr(self, address: int) -> int:
        value = ctypes.c_uint32()
        _check_csr(address)
        if not self._library.board_read_csr(self._handle, address, ctypes.byref(value), CSR_LIMIT):
            raise BoardTimeout(f"no answer to a read of register {address:#x} within {CSR_LIMIT} cycles")
        return value.value

    def write_csr(self, address: int, value: int) -> None:
        _check_csr(address)
        if not 0 <= value < 1 << 32:
            raise BoardError(f"register {address:#x} = {value!r}: 32-bit registers take 0..{(1 << 32) - 1}")
        if not self._library.board_write_csr(self._handle, address, value, CSR_LIMIT):
            raise BoardTimeout(f"no answer to a write of register {address:#x} within {CSR_LIMIT} cycles")

    def read_memory(self, address: int, size: int) -> np.ndarray:
        check_range(address, size, len(self.memory))
        return self.memory[address:address + size].copy()

    def write_memory(self, address: int, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        check_range(address, len(data), len(self.memory))
        self.memory[address:address + len(data)] = data

    def wait(self, timeout_cycles: int) -> None:
        if not self._library.board_wait(self._handle, timeout_cycles):
            raise BoardTimeout(f"the job neither finished nor failed within {timeout_cycles} cycles")

    def run(self, cycles: int) -> None:
        """Let the clock run on for ``cycles``."""
        self._library.board_run(self._handle, cycles)

    def add_fault(self, begin: int, end: int, *, reads: bool = False, writes: bool = False,
                  silent: bool = False) -> None:
        """Bursts that touch ``begin <= address < end`` are answered with SLVERR, or, if ``silent``, never."""
        self._library.board_add_fault(self._handle, begin, end, reads, writes, silent)

    def clear_faults(self) -> None:
        """Remove all faults and reset the memory: bursts that a silent fault swallowed are forgotten."""
        self._library.board_clear_faults(self._handle)

    def beats(self, port: int) -> tuple[int, int]:
        """Beats (read, written) that port ``port`` moved so far: 0 is the data port, 1 + p weight port p."""
        if not 0 <= port <= self.config.ports:
            raise ValueError(f"port must be in 0..{self.config.ports}, not {port!r}")
        return (self._library.board_read_beats(self._handle, port), self._library.board_write_beats(self._handle, port))

    def check(self) -> None:
        """Raise :exc:`ProtocolViolation` when the accelerator has broken a rule of AXI so far."""
        count = self._library.board_violations(self._handle)
        if count:
            first = self._library.board_violation(self._handle).decode()
            raise ProtocolViolation(f"{count} AXI violations by the accelerator; the first: {first}")

    def close(self) -> None:
        """Free the simulation. Raises :exc:`ProtocolViolation` where ``check`` would."""
        if self._handle is None:
            return
        handle, self._handle, self.memory = self._handle, None, np.empty(0, dtype=np.uint8)
        count, first = self._library.board_violations(handle), self._library.board_violation(handle).decode()
        self._library.board_close(handle)
        if count:
            raise ProtocolViolation(f"{count} AXI violations by the accelerator; the first: {first}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            self.close()
        except ProtocolViolation:
            if kind is None:
                raise


def _check_csr(address: int) -> None:
    if address % 4 or not 0 <= address < WINDOW_BYTES:
        raise BoardError(f"register address {address!r} must be a multiple of 4 in 0..{WINDOW_BYTES - 4:#x}")


@cache
def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, u64, u32, flag = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_bool
    signatures = {
        "board_open": (pointer, u64), "board_close": (None, pointer), "board_reset": (None, pointer),
        "board_trace": (flag, pointer, ctypes.c_char_p),
        "board_settings": (None, pointer, ctypes.POINTER(Settings)),
        "board_add_fault": (None, pointer, u64, u64, flag, flag, flag), "board_clear_faults": (None, pointer),
        "board_memory": (ctypes.POINTER(ctypes.c_uint8), pointer), "board_cycles": (u64, pointer),
        "board_read_beats": (u64, pointer, ctypes.c_int), "board_write_beats": (u64, pointer, ctypes.c_int),
        "board_violations": (u64, pointer), "board_violation": (ctypes.c_char_p, pointer),
        "board_write_csr": (flag, pointer, u32, u32, u64),
        "board_read_csr": (flag, pointer, u32, ctypes.POINTER(u32), u64),
        "board_wait": (flag, pointer, u64), "board_run": (None, pointer, u64),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

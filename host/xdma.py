"""A board behind the character devices of Xilinx' XDMA driver (github.com/Xilinx/dma_ip_drivers, XDMA/linux-kernel).

Registers are 32-bit accesses to ``/dev/xdmaN_user``; board memory is read and written through ``_c2h_0`` and
``_h2c_0``, where the file offset is the AXI address; ``_events_0``, where it is there, tells of the interrupt.
"""

import errno
import mmap
import os
import time
from types import TracebackType
from typing import Any, Self

import numpy as np

from host.board import BoardError, BoardTimeout, check_range, memory_bytes
from host.deadline import Courier, Overdue
from host.device_files import DeviceFiles, SystemFiles
from hw.config import AcceleratorConfig, preset
from hw.registers import MAGIC, STATUS_DONE, STATUS_ERROR, WINDOW_BYTES, address

ALL_ONES = 0xFFFFFFFF
"""What a read of a device that has left the bus gives."""
PIECE_BYTES = 4 << 20
"""Most bytes of one call: the driver splits at about 8 MiB and counts its own timeout per part."""
READ_BACK_BYTES = 1024
"""Writes of this size and more are read back and compared. Weights and programs are, which are written once and used
for long; inputs and scores of a job of a few rows are not."""
LONGEST_PAUSE = 0.01
"""Seconds between two looks at STATUS at most, so that an interrupt that gets lost costs no more."""
ERESTARTSYS = 512
"""What older drivers report when their own timeout has passed."""

_REASONS = {
    errno.EIO: "the DMA engine reported a failure: nothing answers at this address, or the link went down",
    errno.ETIMEDOUT: "the DMA engine did not finish within the driver's own timeout: nothing answers at this address, "
                     "or the board's memory is not ready",
    ERESTARTSYS: "the DMA engine did not finish within the driver's own timeout: nothing answers at this address, "
                 "or the board's memory is not ready",
    errno.EBUSY: "the driver has taken the device offline",
    errno.ENODEV: "the device has gone",
    errno.ENXIO: "the device has gone",
    errno.EFAULT: "the driver could not pin memory for the transfer; free some memory",
    errno.EPROTO: "the driver refuses this kind of access",
    errno.EINVAL: "the driver refuses this alignment or direction",
}


class XdmaBoard:
    """A :class:`~host.board.Board` on a PCIe card.

    Transfers of any size and alignment are exact: they go in pieces through page-aligned buffers at the address modulo
    a page, whatever alignment the engine was built with; source arrays may be read-only (the driver would refuse those)
    or not contiguous. A short count is followed by another call for the rest, which then meets the error if there is
    one. Nothing waits for ever: a driver that does not come back is given up.

    Parameters
    ----------
    config : of the build that the card should hold
    card : :class:`int`
        N in ``/dev/xdmaN_user``.
    files : :class:`~host.device_files.DeviceFiles`
    transfer_seconds, register_seconds : :class:`float`
        Longest wait for one piece of a transfer and for one register access. The driver's own timeout for a transfer is
        10 s unless it was loaded with another; this one should be longer, for its message says more.

    Attributes
    ----------
    short_transfers : :class:`int`
        Calls that moved fewer bytes than they were asked to.

    Raises
    ------
    BoardError
        A node is missing or cannot be opened.
    """

    cycles = 0

    def __init__(self, config: AcceleratorConfig | str, card: int = 0, files: DeviceFiles | None = None, *,
                 transfer_seconds: float = 30.0, register_seconds: float = 10.0):
        self.config = preset(config) if isinstance(config, str) else config
        self.kind = f"XDMA card {card}"
        self.short_transfers = 0
        self._prefix = f"/dev/xdma{card}_"
        self._files = SystemFiles() if files is None else files
        self._transfer_seconds, self._register_seconds = transfer_seconds, register_seconds
        self._size = memory_bytes(self.config)
        self._courier = Courier()
        self._nodes: dict[str, int] = {}
        # One buffer a direction, so that what was written can be compared with what is read back.
        self._buffers = {node: mmap.mmap(-1, PIECE_BYTES + mmap.PAGESIZE) for node in ("h2c_0", "c2h_0")}
        try:
            for node, flags in (("user", os.O_RDWR), ("h2c_0", os.O_WRONLY), ("c2h_0", os.O_RDONLY)):
                self._open(node, flags)
            self._open("events_0", os.O_RDONLY, required=False)
        except BoardError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        while self._nodes:
            node, descriptor = self._nodes.popitem()
            try:
                self._courier.call(self._register_seconds, self._files.close, descriptor)
            except (OSError, Overdue):
                pass  # nothing more can be done for a device that does not even close
        self._courier.close()

    def read_csr(self, address: int) -> int:
        value = self._read_register(address)
        if value == ALL_ONES and self._read_register(_MAGIC_ADDRESS) == ALL_ONES:
            raise BoardError(f"{self.kind} is gone: register {address:#x} and the identification both read "
                             f"{ALL_ONES:#x}, not {MAGIC:#x}, which is what a device that left the bus gives; "
                             + _check(self._prefix))
        return value

    def write_csr(self, address: int, value: int) -> None:
        _check_register(address)
        if not 0 <= value <= ALL_ONES:
            raise BoardError(f"register {address:#x} = {value!r}: 32-bit registers take 0..{ALL_ONES:#x}")
        data = memoryview(value.to_bytes(4, "little"))
        count = self._access("user", "write", address, 4, self._register_seconds, self._files.pwrite, data, address)
        self._whole("user", "write", address, count)

    def read_memory(self, address: int, size: int) -> np.ndarray:
        check_range(address, size, self._size)
        result = np.empty(size, dtype=np.uint8)
        for start in range(0, size, PIECE_BYTES):
            piece = result[start:start + PIECE_BYTES]
            piece[:] = self._move("c2h_0", address + start, len(piece))
        return result

    def write_memory(self, address: int, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        check_range(address, data.size, self._size)
        for start in range(0, data.size, PIECE_BYTES):
            piece = data[start:start + PIECE_BYTES]
            self._staged("h2c_0", address + start, len(piece))[:] = piece
            self._move("h2c_0", address + start, len(piece))
            if data.size >= READ_BACK_BYTES:
                self._compare(address + start, piece, self._move("c2h_0", address + start, len(piece)))

    def wait(self, timeout_cycles: int) -> None:
        seconds = timeout_cycles / self.config.clock_hz + 1
        end = time.monotonic() + seconds
        pause = 1e-5
        while not self.read_csr(_STATUS_ADDRESS) & (STATUS_DONE | STATUS_ERROR):
            left = end - time.monotonic()
            if left <= 0:
                raise BoardTimeout(f"{self.kind}: the job neither finished nor failed within {timeout_cycles} cycles "
                                   f"({seconds:.1f} s at {self.config.clock_hz / 1e6:g} MHz and one for the link); "
                                   "the board's own watchdog should have ended it: load the bitstream again")
            self._pause(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pause(self, seconds: float) -> None:
        """Wait for the interrupt, or ``seconds``."""
        if "events_0" not in self._nodes:
            time.sleep(seconds)
        elif self._access("events_0", "poll", 0, 0, seconds + self._register_seconds, self._files.poll, seconds):
            self._access("events_0", "read", 0, 4, self._register_seconds, self._files.read, 4)

    def _open(self, node: str, flags: int, *, required: bool = True) -> None:
        path = self._prefix + node
        try:
            self._nodes[node] = self._courier.call(self._register_seconds, self._files.open, path, flags)
        except Overdue as error:
            raise BoardError(f"cannot open {path}: {error}; {_check(self._prefix)}") from error
        except OSError as error:
            if required:
                raise BoardError(f"cannot open {path}: {error.strerror or error}; {_DOCTOR}") from error

    def _read_register(self, address: int) -> int:
        _check_register(address)
        data = bytearray(4)
        count = self._access("user", "read", address, 4, self._register_seconds, self._files.pread, memoryview(data),
                             address)
        self._whole("user", "read", address, count)
        return int.from_bytes(data, "little")

    def _whole(self, node: str, what: str, address: int, count: int) -> None:
        if count != 4:
            raise BoardError(f"{what} of register {address:#x} on {self._prefix}{node}: {count} bytes of 4; "
                             + _check(self._prefix))

    def _staged(self, node: str, address: int, size: int) -> np.ndarray:
        """Place of a piece in the buffer of ``node``, uint8 ``[size]``, at the address modulo a page."""
        return np.frombuffer(self._buffers[node], dtype=np.uint8, count=size, offset=address % mmap.PAGESIZE)

    def _move(self, node: str, address: int, size: int) -> np.ndarray:
        """Carry out one piece; returns its place in the buffer."""
        place = self._staged(node, address, size)
        what, function = ("write", self._files.pwrite) if node == "h2c_0" else ("read", self._files.pread)
        done = 0
        while done < size:
            count = self._access(node, what, address + done, size - done, self._transfer_seconds, function,
                                 memoryview(place.data)[done:], address + done)
            if not 0 < count <= size - done:
                raise BoardError(self._failed(node, what, address + done, size - done, f"{count} bytes moved"))
            self.short_transfers += count < size - done
            done += count
        return place

    def _compare(self, address: int, written: np.ndarray, found: np.ndarray) -> None:
        wrong = np.flatnonzero(written != found)
        if len(wrong):
            first = wrong[0]
            raise BoardError(self._failed(
                "h2c_0", "write", address, len(written),
                f"reading back gives {found[first]:#04x} at {address + first:#x}, not {written[first]:#04x} "
                f"({len(wrong)} bytes differ): the link or the board's memory is faulty"))

    def _access(self, node: str, what: str, address: int, size: int, seconds: float, function: Any,
                *arguments: Any) -> Any:
        if node not in self._nodes:
            raise BoardError(f"{self.kind} is closed")
        try:
            return self._courier.call(seconds, function, self._nodes[node], *arguments)
        except Overdue as error:
            raise BoardError(self._failed(node, what, address, size, f"{error}: the driver or the device "
                                          "hangs")) from error
        except OSError as error:
            reason = _REASONS.get(error.errno or 0, "the driver failed")
            raise BoardError(self._failed(node, what, address, size, f"{error.strerror or error} "
                                          f"(errno {error.errno}): {reason}")) from error

    def _failed(self, node: str, what: str, address: int, size: int, why: str) -> str:
        direction = {"h2c_0": " to the board", "c2h_0": " from the board"}.get(node, "")
        return (f"{what}{direction} of {size:#x} bytes at {address:#x} on {self._prefix}{node}: {why}; "
                + _check(self._prefix))


_MAGIC_ADDRESS, _STATUS_ADDRESS = address("MAGIC"), address("STATUS")
_DOCTOR = "fastcar-host doctor says what is wrong"


def _check(prefix: str) -> str:
    return f"look at dmesg for xdma, check that the card is on the bus (lspci) and that {prefix}* are there; {_DOCTOR}"


def _check_register(address: int) -> None:
    if address % 4 or not 0 <= address < WINDOW_BYTES:
        raise BoardError(f"register address must be a multiple of 4 below {WINDOW_BYTES:#x}, not {address!r}")

"""A stand-in for a card and its driver: a process that speaks the character devices of XDMA before a golden board.

It follows what the driver's source says of sizes, offsets, alignment, errors and events; it is no kernel and no link,
and pins no pages. Faults are ordered through a connection of their own.
"""

import errno
import os
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener

import numpy as np

from host.golden import GoldenBoard
from hw.registers import STATUS_DONE, STATUS_ERROR, address

ENGINE_ALIGNMENT = 64
"""Host and board addresses must agree modulo this; the driver's engines tell theirs."""
ALL_ONES = 0xFFFFFFFF


@dataclass
class Fault:
    """What goes wrong at ``node``, after ``after`` accesses to it, ``times`` times.

    ``kind``: ``short`` moves half of the bytes, ``nothing`` none; ``error`` fails with errno ``value``; ``delay``
    answers after ``value`` seconds; ``hang`` never; ``flip`` inverts bit 0 of byte ``value``; ``gone`` takes the card
    off the bus for good; ``exit`` ends the process.
    """

    node: str
    kind: str
    after: int = 0
    times: int = 1
    value: float = 0


class StandIn:
    """The server: one connection per open node, accesses one at a time."""

    def __init__(self, preset: str, registers: dict[str, int], missing: tuple[str, ...]):
        self._board = GoldenBoard(preset)
        self._registers = {address(name): value for name, value in registers.items()}
        self._missing = missing
        self._faults: list[Fault] = []
        self._gone = False
        self._lock = threading.Lock()
        self._events = 0
        self.calls: list[tuple[str, str, int, int]] = []

    def serve(self, path: str) -> None:
        listener = Listener(path, family="AF_UNIX", backlog=16)
        while True:
            threading.Thread(target=self._connection, args=(listener.accept(),), daemon=True).start()

    def _connection(self, link: Connection) -> None:
        name = link.recv()
        if name != "control" and (self._gone or name in self._missing):
            link.send((errno.ENODEV if self._gone else errno.ENOENT, None))
            return
        link.send((0, None))
        while True:
            try:
                request = link.recv()
            except EOFError:
                return
            if name == "control":
                link.send((0, self._control(*request)))
                continue
            try:
                answer = 0, self._access(name, *request)
            except OSError as error:
                answer = error.errno, None
            link.send(answer)

    def _control(self, what: str, value: Fault | None = None) -> list:
        with self._lock:
            if what == "fault":
                self._faults.append(value)
            return list(self.calls)

    def _fault(self, node: str) -> Fault | None:
        for fault in self._faults:
            if fault.node == node:
                if fault.after:
                    fault.after -= 1
                elif fault.times:
                    fault.times -= 1
                    return fault
        return None

    def _access(self, node: str, what: str, *arguments):
        with self._lock:
            fault = self._fault(node)
        kind, value = (fault.kind, fault.value) if fault else ("", 0)
        if kind == "hang":
            threading.Event().wait()
        if kind == "exit":
            os._exit(1)
        if kind == "delay":
            time.sleep(value)
        if kind == "error":
            raise OSError(int(value), "")
        self._gone |= kind == "gone"
        if node.startswith("events"):
            return self._event(what, *arguments)
        with self._lock:
            carry_out = self._register if node == "user" else self._transfer
            return carry_out(node, what, kind, int(value), *arguments)

    def _event(self, what: str, value: float):
        if what == "read":
            if value != 4:
                raise OSError(errno.EPROTO, "")
            count, self._events = self._events, 0
            return count.to_bytes(4, "little")
        end = time.monotonic() + value
        while not self._events and time.monotonic() < end:
            time.sleep(1e-4)
        return bool(self._events)

    def _register(self, node: str, what: str, kind: str, value: int, offset: int, data, host_address: int):
        """One 32-bit access, whatever was asked for."""
        self.calls.append((node, what, offset, 4))
        if offset % 4:
            raise OSError(errno.EPROTO, "")
        if what == "read":
            word = ALL_ONES if self._gone else self._registers.get(offset, self._board.read_csr(offset))
            return (word ^ (kind == "flip")).to_bytes(4, "little")
        if not self._gone:
            self._board.write_csr(offset, int.from_bytes(data[:4], "little"))
            done = self._board.read_csr(address("STATUS")) & (STATUS_DONE | STATUS_ERROR)
            self._events += bool(offset == address("CONTROL") and done)
        return 4

    def _transfer(self, node: str, what: str, kind: str, value: int, offset: int, data, host_address: int):
        size = data if what == "read" else len(data)
        self.calls.append((node, what, offset, size))
        if self._gone:
            raise OSError(errno.EIO, "")
        if node.startswith("h2c") != (what == "write") or (offset - host_address) % ENGINE_ALIGNMENT:
            raise OSError(errno.EINVAL, "")
        size = {"short": (size + 1) // 2, "nothing": 0}.get(kind, size)
        if what == "read":
            found = self._board.read_memory(offset, size)
            if kind == "flip":
                found[value] ^= 1
            return found.tobytes()
        stored = np.frombuffer(data, dtype=np.uint8)[:size].copy()
        if kind == "flip":
            stored[value] ^= 1
        self._board.write_memory(offset, stored)
        return size


def main(path: str, preset: str, registers: dict[str, int], missing: tuple[str, ...]) -> None:
    """Serve until killed."""
    StandIn(preset, registers, missing).serve(path)


class StandInFiles:
    """:class:`~host.device_files.DeviceFiles` whose nodes are those of the stand-ins at ``sockets``, one per card."""

    def __init__(self, *sockets: str):
        self._sockets = sockets
        self._links: dict[int, Connection] = {}
        self._next = 1000

    def open(self, path: str, flags: int) -> int:
        card, _, node = path.removeprefix("/dev/xdma").partition("_")
        if int(card) >= len(self._sockets):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            link = Client(self._sockets[int(card)], family="AF_UNIX")
        except (ConnectionError, FileNotFoundError):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from None
        self._next += 1
        self._links[self._next] = link
        self._ask(self._next, node)
        return self._next

    def close(self, descriptor: int) -> None:
        self._links.pop(descriptor).close()

    def pread(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        data = self._ask(descriptor, ("read", offset, len(buffer), _address(buffer)))
        buffer[:len(data)] = data
        return len(data)

    def pwrite(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        if buffer.readonly and len(buffer) > 4:  # the driver pins the pages of a transfer for writing
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return self._ask(descriptor, ("write", offset, bytes(buffer), _address(buffer)))

    def poll(self, descriptor: int, seconds: float) -> bool:
        return self._ask(descriptor, ("poll", seconds))

    def read(self, descriptor: int, size: int) -> bytes:
        return self._ask(descriptor, ("read", size))

    def _ask(self, descriptor: int, request):
        link = self._links[descriptor]
        try:
            link.send(request)
            code, value = link.recv()
        except (EOFError, ConnectionError):
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV)) from None
        if code:
            raise OSError(code, os.strerror(code))
        return value


def _address(buffer: memoryview) -> int:
    return np.frombuffer(buffer, dtype=np.uint8).ctypes.data


class Control:
    """Orders faults at the stand-in behind ``path`` and tells what accesses it has seen."""

    def __init__(self, path: str, seconds: float = 60):
        end = time.monotonic() + seconds
        while True:
            try:
                self._link = Client(path, family="AF_UNIX")
                break
            except (FileNotFoundError, ConnectionError):
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self._ask("control")

    def fault(self, node: str, kind: str, **more) -> None:
        self._ask(("fault", Fault(node, kind, **more)))

    def calls(self) -> list[tuple[str, str, int, int]]:
        """Node, direction, offset and size of every access to registers or memory so far."""
        return self._ask(("calls",))

    def _ask(self, request):
        self._link.send(request)
        return self._link.recv()[1]

"""The calls of the operating system that a board on character devices needs, behind an interface that tests replace."""

import io
import os
import select
from typing import Protocol


class DeviceFiles(Protocol):
    """Opens nodes and moves bytes; every method raises :exc:`OSError` as the call of the same name does."""

    def open(self, path: str, flags: int) -> int:
        """A descriptor of the node."""

    def close(self, descriptor: int) -> None: ...

    def pread(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset`` on; returns the bytes that were read, which may be fewer."""

    def pwrite(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Write ``buffer`` at ``offset``; returns the bytes that were written, which may be fewer."""

    def poll(self, descriptor: int, seconds: float) -> bool:
        """Whether the node became readable within ``seconds``."""

    def read(self, descriptor: int, size: int) -> bytes: ...


class SystemFiles:
    """The operating system itself."""

    def open(self, path: str, flags: int) -> int:
        return os.open(path, flags | os.O_CLOEXEC)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def pread(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        # Neither os.pread, which reads into memory of an alignment of its own, nor os.preadv, whose path through the
        # driver is reported unsafe: a seek and one plain read into the caller's buffer.
        os.lseek(descriptor, offset, os.SEEK_SET)
        return io.FileIO(descriptor, closefd=False).readinto(buffer) or 0

    def pwrite(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        return os.pwrite(descriptor, buffer, offset)

    def poll(self, descriptor: int, seconds: float) -> bool:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def read(self, descriptor: int, size: int) -> bytes:
        return os.read(descriptor, size)

"""Memory of a board that lives in the host process: sparse, so that untouched gigabytes cost nothing."""

import mmap

import numpy as np

from host.board import check_range

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Linux flag, named by Python from 3.13 on: boards have more memory than the machine that stands in for them."""


class SparseMemory:
    """``size`` bytes of zeros; pages are taken from the operating system when they are first written."""

    def __init__(self, size: int):
        self.size = size
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        self._bytes = np.frombuffer(self._map, dtype=np.uint8)

    def view(self, address: int, size: int) -> np.ndarray:
        """The bytes themselves, uint8 ``[size]``. Raises :exc:`~host.board.BoardError` beyond the memory."""
        check_range(address, size, self.size)
        return self._bytes[address:address + size]

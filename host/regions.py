"""Places in board memory: weights at one offset of every port's region, everything else in what they leave free."""

from host.board import BoardError
from hw.config import PORT_BYTES, AcceleratorConfig
from hw.layout import round_up

WEIGHT_ALIGNMENT = 4096


class Regions:
    """Hands out addresses, first fit, never freed. Raises :exc:`~host.board.BoardError` when nothing is left."""

    def __init__(self, config: AcceleratorConfig):
        self.config = config
        self._weights_end = 0
        self._next: list[int] | None = None

    def weights(self, size: int) -> int:
        """Offset of ``size`` bytes at the same place of every port's region. Before the first :meth:`data` only."""
        if self._next is not None:
            raise RuntimeError("weights must be placed before data")
        offset = self._weights_end
        if offset + size > self.config.channel_bytes:
            raise BoardError(f"the weights need {offset + size:#x} bytes and more of every port's region; preset "
                             f"{self.config.name!r} has {self.config.channel_bytes:#x}; use a smaller model")
        self._weights_end = round_up(offset + size, WEIGHT_ALIGNMENT)
        return offset

    def data(self, size: int) -> int:
        """Address of ``size`` bytes, 64-byte aligned, inside one port's region."""
        if self._next is None:
            self._next = [port * self.config.channel_bytes + self._weights_end for port in range(self.config.ports)]
        for port, start in enumerate(self._next):
            if start + size <= (port + 1) * self.config.channel_bytes:
                self._next[port] = round_up(start + size, PORT_BYTES)
                return start
        raise BoardError(f"no room for {size:#x} more bytes in the memory of preset {self.config.name!r}; use "
                         "fewer rows or a smaller model")

    def release_data(self) -> None:
        """Forget all places of :meth:`data`; the weights stay."""
        self._next = None

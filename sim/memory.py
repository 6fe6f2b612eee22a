"""Behaviour of the memory behind the simulated board's AXI ports, mirrored by ``Settings`` in harness.cpp."""

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """Memory of every port.

    ``latency``: cycles from an accepted read address to its first beat, and from the last written beat to its response.
    ``bytes_per_cycle``: what one port can move in a cycle, reads and writes together; 64 is one beat a cycle, fractions
    are kept (token bucket of one beat). ``outstanding``: bursts a port accepts in one direction before it has
    answered the first. ``stall_probability``: chance that a ready or valid of the memory, or of the register master,
    stays low in a cycle; 0 = never. ``seed``: of those stalls.
    """

    latency: int = 60
    bytes_per_cycle: float = 64.0
    stall_probability: float = 0.0
    seed: int = 0
    outstanding: int = 16

    def __post_init__(self):
        if not 1 <= self.latency <= 1_000_000:
            raise ValueError(f"latency must be in 1..1000000 cycles, not {self.latency!r}")
        if not 0 < self.bytes_per_cycle <= 4096:
            raise ValueError(f"bytes_per_cycle must be above 0 and at most 4096, not {self.bytes_per_cycle!r}")
        if not 0 <= self.stall_probability <= 0.95:
            raise ValueError(f"stall_probability must be in 0..0.95, not {self.stall_probability!r}")
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be in 0..2**63-1, not {self.seed!r}")
        if not 1 <= self.outstanding <= 1024:
            raise ValueError(f"outstanding must be in 1..1024 bursts, not {self.outstanding!r}")


class Settings(ctypes.Structure):
    """``MemoryConfig`` as the harness reads it."""

    _fields_ = [("bytes_per_cycle", ctypes.c_double), ("stall_probability", ctypes.c_double),
                ("seed", ctypes.c_uint64), ("latency", ctypes.c_uint32), ("outstanding", ctypes.c_uint32)]

    @classmethod
    def of(cls, memory: MemoryConfig) -> "Settings":
        return cls(**{field[0]: getattr(memory, field[0]) for field in cls._fields_})

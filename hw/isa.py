"""Instruction encoding: 128-bit little-endian words, four to a 64-byte beat. One definition for RTL, host, docs.

A program describes one job (one MLP layer for up to 32 slots) and is compiled once per layer; addresses of what changes
from step to step are offsets from base registers. Instructions that carry a slot are discarded when that slot replays
or is inactive; the others go to the core that the slot is mapped to.

=========  ====================================================================================================
LAYER      shape and largest weight scale bytes of the layer
WEIGHTS    where the layer's weight stream lies (same offset on every port) and how many beats it has
SCORES     read ``count`` per-head scores of ``slot`` from SCORES_BASE + offset, add them up (TAS source only)
DECIDE     form the index bits, map rows to cores, start the weight prefetch if any row computes
LOAD       read the MLP input of ``slot`` from INPUT_BASE + offset into its core
STORE      bind the output of ``slot`` to OUTPUT_BASE + offset (its replay cache entry: a replay writes nothing)
RUN        stream the weights through the cores; nothing happens when no row computes
END        finish the job once every output is acknowledged
=========  ====================================================================================================

Order: LAYER, WEIGHTS, SCORES*, DECIDE, then LOAD and STORE in any order, RUN, END. The job may repeat it.
"""

from dataclasses import dataclass
from enum import IntEnum

INSTRUCTION_BYTES = 16


class Opcode(IntEnum):
    """0 is illegal on purpose: memory that was never written is not a program."""

    LAYER = 0x10
    WEIGHTS = 0x11
    SCORES = 0x20
    DECIDE = 0x21
    LOAD = 0x30
    STORE = 0x31
    RUN = 0x40
    END = 0x7F


FIELDS: dict[str, tuple[int, int]] = {
    "opcode": (0, 8),
    "slot": (8, 8),
    "hidden_blocks": (16, 16),
    "intermediate_blocks": (32, 16),
    "gate_scale": (48, 8),
    "up_scale": (56, 8),
    "down_scale": (64, 8),
    "count": (32, 32),
    "offset": (64, 64),
}
"""Field name -> (least significant bit, width). ``count``/``offset`` overlap the fields of LAYER only."""

USED: dict[Opcode, tuple[str, ...]] = {
    Opcode.LAYER: ("hidden_blocks", "intermediate_blocks", "gate_scale", "up_scale", "down_scale"),
    Opcode.WEIGHTS: ("count", "offset"),
    Opcode.SCORES: ("slot", "count", "offset"),
    Opcode.DECIDE: (),
    Opcode.LOAD: ("slot", "offset"),
    Opcode.STORE: ("slot", "offset"),
    Opcode.RUN: (),
    Opcode.END: (),
}
"""Fields that an opcode reads. Bits outside them must be zero."""


class Error(IntEnum):
    """Code in the ERROR register; ERROR_INDEX holds the index of the instruction (see hw/registers.py)."""

    NONE = 0
    OPCODE = 1        # unknown opcode
    SLOT = 2          # slot above 31
    SHAPE = 3         # zero or more blocks than this build holds, or a score count of 0 or over max_heads
    ADDRESS = 4       # misaligned (64 bytes; weights 4096) or beyond the memory of this board
    ORDER = 5         # an instruction before what it needs (DECIDE before WEIGHTS, RUN before a LOAD), or twice
    PROGRAM = 6       # program length 0 or above the instruction memory, or no END
    READ = 7          # AXI read error response
    WRITE = 8         # AXI write error response
    WATCHDOG = 9      # no progress for WATCHDOG cycles
    STREAM = 10       # WEIGHTS count differs from what the shape needs


@dataclass(frozen=True)
class Instruction:
    """One decoded instruction; only the fields of its opcode (see ``USED``) may be non-zero."""

    opcode: Opcode
    slot: int = 0
    hidden_blocks: int = 0
    intermediate_blocks: int = 0
    gate_scale: int = 0
    up_scale: int = 0
    down_scale: int = 0
    count: int = 0
    offset: int = 0

    def encode(self) -> bytes:
        """The 16 bytes of the instruction. Raises ValueError when a field does not fit or is not of this opcode."""
        word = int(self.opcode)
        for name in FIELDS:
            value = getattr(self, name)
            if name == "opcode" or value == 0:
                continue
            low, width = FIELDS[name]
            if name not in USED[self.opcode] or not 0 <= value < 1 << width:
                raise ValueError(f"{self.opcode.name}.{name} = {value!r}: fields are {USED[self.opcode]}, {width} bits")
            word |= value << low
        return word.to_bytes(INSTRUCTION_BYTES, "little")

    @classmethod
    def decode(cls, data: bytes) -> "Instruction":
        """Inverse of ``encode``. Raises ValueError for an unknown opcode."""
        word = int.from_bytes(data[:INSTRUCTION_BYTES], "little")
        opcode = Opcode(word & 0xFF)
        return cls(opcode, **{n: word >> FIELDS[n][0] & ((1 << FIELDS[n][1]) - 1) for n in USED[opcode]})

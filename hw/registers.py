"""Register map of the AXI4-Lite control port. One definition for the RTL decoder, the host, and docs/registers.md.

32-bit registers, byte addresses; a 64-bit register takes two words, low first. Every read in the 64 KiB window answers
without side effects: unlisted addresses read 0 (0xFFFFFFFF never appears as an identification, so a dead link shows).
Writes to read-only or unlisted addresses are ignored.
"""

from dataclasses import dataclass

from hw.config import SLOTS

MAGIC = 0x46435231
"""ASCII "FCR1"."""
PROTOCOL_VERSION = 1
WINDOW_BYTES = 1 << 16

CONTROL_START, CONTROL_RESET = 1, 2
STATUS_BUSY, STATUS_DONE, STATUS_ERROR, STATUS_NAN = 1, 2, 4, 8
SOURCE_MASK, SOURCE_TAS = 0, 1


@dataclass(frozen=True)
class Register:
    """``access``: "r" constant or status, "rw" host-written. ``words``: 1, 2 (64 bits), or an array of 1-word items."""

    name: str
    address: int
    access: str
    words: int
    doc: str


def _map() -> list[Register]:
    r = Register
    registers = [
        r("MAGIC", 0x000, "r", 1, 'identification, "FCR1" = 0x46435231'),
        r("VERSION", 0x004, "r", 1, "protocol version of this register map and instruction set"),
        r("BUILD", 0x008, "r", 1, "first 32 bits of the SHA-256 of the configuration JSON"),
        r("CORES", 0x010, "r", 1, "accelerator cores"),
        r("PORTS", 0x014, "r", 1, "512-bit weight read ports"),
        r("GROUPS", 0x018, "r", 1, "row groups of one pass"),
        r("MAX_HIDDEN_BLOCKS", 0x01C, "r", 1, "largest hidden size / 32"),
        r("MAX_INTERMEDIATE_BLOCKS", 0x020, "r", 1, "largest intermediate size / 32"),
        r("MAX_HEADS", 0x024, "r", 1, "most per-head scores of a slot"),
        r("PROGRAM_LENGTH", 0x028, "r", 1, "size of the instruction memory, in instructions"),
        r("CHANNEL_BITS", 0x02C, "r", 1, "log2 of the address distance between two weight ports' regions"),
        r("CLOCK_HZ", 0x030, "r", 1, "nominal clock"),
        r("CONTROL", 0x040, "rw", 1, "write 1: start the job; write 2: reset after an error; reads 0"),
        r("STATUS", 0x044, "r", 1, "bit 0 busy, 1 done, 2 error, 3 a NaN block was seen; 1 and 3 clear on start"),
        r("ERROR", 0x048, "r", 1, "error code (hw/isa.py Error), kept until reset"),
        r("ERROR_INDEX", 0x04C, "r", 1, "index of the instruction that failed"),
        r("WATCHDOG", 0x050, "rw", 1, "cycles without progress before error WATCHDOG; 0 = off; 1,000,000 after reset"),
        r("SOURCE", 0x054, "rw", 1, "index bits from: 0 HOST_MASK, 1 the TAS comparator"),
        r("ACTIVE", 0x058, "rw", 1, "bit s: slot s takes part in the job"),
        r("HOST_MASK", 0x05C, "rw", 1, "bit s: 1 = slot s computes, 0 = replays (SOURCE 0)"),
        r("THRESHOLD", 0x060, "rw", 2, "signed, 16 fraction bits: a slot replays if its head scores sum to >= this"),
        r("PROGRAM_BASE", 0x068, "rw", 2, "address of the program, 64-byte aligned"),
        r("PROGRAM_COUNT", 0x070, "rw", 1, "instructions in the program"),
        r("SCORES_BASE", 0x078, "rw", 2, "base address of SCORES"),
        r("INPUT_BASE", 0x080, "rw", 2, "base address of LOAD"),
        r("OUTPUT_BASE", 0x088, "rw", 2, "base address of STORE"),
        r("INDEX", 0x090, "r", 1, "Index Register: bit s 1 = slot s computed, 0 = it replayed or was inactive"),
        r("MAPPING", 0x100, "r", SLOTS, "Mapping Registers: core of slot s"),
    ]
    address = 0x200
    for name, doc in COUNTERS.items():
        registers.append(r(name, address, "r", 2, doc))
        address += 8
    return registers


COUNTERS = {
    "CYCLES": "cycles from start to done",
    "FETCH_CYCLES": "cycles of them until the program was in the instruction memory",
    "SCORE_CYCLES": "cycles from there until the last score was added",
    "DRS_CYCLES": "cycles from the last score (or DECIDE) to the first dispatch",
    "INPUT_CYCLES": "cycles in which LOADs were outstanding",
    "WEIGHT_BEATS": "beats (data and scale) taken by the cores",
    "WEIGHT_BYTES": "bytes read on all weight ports",
    "MAC_CYCLES": "cycles in which the cores took or held a data beat",
    "STALL_WEIGHT_CYCLES": "cycles in which the cores waited for a weight beat",
    "STALL_DRAIN_CYCLES": "cycles in which a beat waited for the epilogue (both drains)",
    "EXPOSED_CYCLES": "cycles from the first dispatch to done in which no beat was taken or held and no LOAD waited",
    "OUTPUT_BYTES": "bytes written to memory",
    "ROWS_COMPUTED": "rows that computed",
    "ROWS_REPLAYED": "active rows that replayed",
    "BUSIEST_ROWS": "rows of the busiest core",
}
"""64-bit counters of the last job, cleared on start."""

REGISTERS = _map()
BY_NAME = {register.name: register for register in REGISTERS}


def address(name: str, index: int = 0) -> int:
    """Byte address of a register, or of word ``index`` of an array or 64-bit register."""
    register = BY_NAME[name]
    if not 0 <= index < register.words:
        raise ValueError(f"register {name} has {register.words} words, not index {index!r}")
    return register.address + 4 * index

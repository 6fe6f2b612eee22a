"""Accelerator presets: the one place that fixes sizes at elaboration time. Knows no model; imports nothing heavy."""

from dataclasses import asdict, dataclass

from model.mx import BLOCK

PORT_BYTES = 64
"""Width of every AXI4 memory port: 512 bits."""
ROWS_PER_PORT = PORT_BYTES // BLOCK
"""Weight rows (one block of 32 codes each) that a port delivers per beat."""
CHUNK_BEATS = PORT_BYTES // ROWS_PER_PORT
"""Data beats covered by one scale beat: it holds a scale byte for each of their rows."""
SLOTS = 32
"""Batch rows a job can carry: one Index Register bit and one Mapping Register each."""


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Elaboration-time sizes.

    ``cores`` (power of two): accelerator cores, each computing ``rows`` x 32 MACs a cycle for one slot.
    ``ports``: 512-bit weight read ports; a beat brings ``rows = 2 * ports`` weight rows of 32 codes.
    ``max_hidden_blocks``, ``max_intermediate_blocks``: largest layer in blocks of 32, sizes the activation memories.
    ``max_heads``: largest number of per-head scores of a slot. ``clock_hz``: nominal clock, for reports only.
    ``channel_bytes``: address distance between the memory regions of two weight ports (power of two).
    ``fifo_beats``: prefetch depth of a weight port (power of two, at least two bursts).
    """

    name: str
    cores: int
    ports: int
    max_hidden_blocks: int
    max_intermediate_blocks: int
    clock_hz: int
    channel_bytes: int
    max_heads: int = 64
    fifo_beats: int = 256
    program_length: int = 256

    def __post_init__(self):
        for field in ("cores", "ports", "channel_bytes", "fifo_beats", "program_length"):
            value = getattr(self, field)
            if value < 1 or value & (value - 1):
                raise ValueError(f"{field} must be a power of two, not {value!r}")
        if self.cores > SLOTS:
            raise ValueError(f"cores must be at most {SLOTS} (one slot each), not {self.cores!r}")
        if self.ports > 32:
            raise ValueError(f"ports must be at most 32, not {self.ports!r}")
        for field in ("max_hidden_blocks", "max_intermediate_blocks"):
            if not 1 <= getattr(self, field) <= 1024:
                raise ValueError(f"{field} must be in 1..1024, not {getattr(self, field)!r}")
        if self.fifo_beats < 2 * BURST_BEATS:
            raise ValueError(f"fifo_beats must hold two bursts ({2 * BURST_BEATS}), not {self.fifo_beats!r}")

    @property
    def rows(self) -> int:
        """Weight rows a beat brings to every core."""
        return ROWS_PER_PORT * self.ports

    @property
    def pairs(self) -> int:
        """Gate/up pairs in a beat: even rows are gate rows, odd rows are up rows."""
        return self.rows // 2

    @property
    def groups(self) -> int:
        """Row groups of one pass: consecutive beats that share one block of the activations."""
        return max(8, 2 * BLOCK // self.rows)

    @property
    def pass_rows(self) -> int:
        """Weight rows of one full pass; a pass of the gate/up phase yields ``pass_rows / 2`` hidden values."""
        return self.groups * self.rows

    @property
    def locals(self) -> int:
        """Slots that one core can hold: ceil(SLOTS / cores)."""
        return -(-SLOTS // self.cores)

    @property
    def macs(self) -> int:
        return self.cores * self.rows * BLOCK

    def to_dict(self) -> dict:
        """All fields and derived sizes, for reports and JSON sidecars."""
        return asdict(self) | {"rows": self.rows, "groups": self.groups, "pass_rows": self.pass_rows,
                               "locals": self.locals, "macs": self.macs, "slots": SLOTS}


BURST_BEATS = 4096 // PORT_BYTES
"""Longest AXI4 burst: 4 KiB, which it must not cross."""

_LLAMA_7B = {"max_hidden_blocks": 128, "max_intermediate_blocks": 344}

PRESETS = {c.name: c for c in (
    AcceleratorConfig(name="tiny", cores=2, ports=1, max_hidden_blocks=4, max_intermediate_blocks=8, max_heads=16,
                      clock_hz=100_000_000, channel_bytes=1 << 20, fifo_beats=128),
    AcceleratorConfig(name="sim", cores=4, ports=4, clock_hz=300_000_000, channel_bytes=1 << 28, **_LLAMA_7B),
    AcceleratorConfig(name="xcvu9p", cores=16, ports=4, clock_hz=300_000_000, channel_bytes=1 << 34, **_LLAMA_7B),
    AcceleratorConfig(name="u280", cores=4, ports=32, clock_hz=225_000_000, channel_bytes=1 << 28, **_LLAMA_7B),
)}


def preset(name: str) -> AcceleratorConfig:
    """Look a preset up by name; raises ValueError naming the known ones."""
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(PRESETS)}")
    return PRESETS[name]

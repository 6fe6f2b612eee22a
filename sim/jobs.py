"""One job as bytes in board memory and register values: what the tests give to the simulated board and to cocotb."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.isa import Instruction, Opcode
from hw.layout import (
    activation_bytes,
    layer_beats,
    layer_scale,
    output_bytes,
    pack_activations,
    pack_layer,
    round_up,
    scores_bytes,
)
from hw.registers import BY_NAME, CONTROL_START, COUNTERS, SOURCE_MASK, SOURCE_TAS, STATUS_ERROR, address
from model.integer import MlpWeights, MxMatrix, mlp
from model.mx import BLOCK

PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Job:
    """A layer and the rows of a step.

    ``x``: inputs of all slots, in slot order from 0. ``active``, ``mask``: bit s for slot s. ``scores``: int32
    ``[slots, heads]`` switches to the TAS source with ``threshold``. ``old``: BF16 words ``[slots, hidden]`` that
    the replay cache holds before the job. ``offset``: of the weights in every port's region. ``base``: of all else,
    behind the weights of port 0 when None.
    """

    config: AcceleratorConfig
    weights: MlpWeights
    x: MxMatrix
    old: np.ndarray
    active: int
    mask: int = 0
    scores: np.ndarray | None = None
    threshold: int = 0
    offset: int = 0
    base: int | None = None

    def __post_init__(self):
        if not 1 <= self.slots <= SLOTS:
            raise ValueError(f"a job has 1..{SLOTS} slots, not {self.slots!r}")
        if self.active >> self.slots:
            raise ValueError(f"active {self.active:#x} names slots beyond the {self.slots} of x")

    @property
    def slots(self) -> int:
        return len(self.x.codes)

    @property
    def start(self) -> int:
        """Address of the program; scores, inputs and outputs follow, each on a page of its own."""
        if self.base is not None:
            return self.base
        beats = layer_beats(self.config, self.weights.hidden, self.weights.intermediate)
        return round_up(self.offset + PORT_BYTES * beats, PAGE)

    @property
    def scores_base(self) -> int:
        return self.start + round_up(16 * (3 * SLOTS + 5), PAGE)

    @property
    def input_base(self) -> int:
        return self.scores_base + round_up(SLOTS * scores_bytes(self.config.max_heads), PAGE)

    @property
    def output_base(self) -> int:
        return self.input_base + round_up(SLOTS * activation_bytes(self.weights.hidden), PAGE)

    @property
    def index(self) -> int:
        """Index bits that the board must form."""
        if self.scores is None:
            return self.active & self.mask
        computes = self.scores.astype(np.int64).sum(axis=1) < self.threshold
        return self.active & sum(int(bit) << slot for slot, bit in enumerate(computes))

    def program(self) -> list[Instruction]:
        """Instructions of all slots, active or not: the board discards what is not needed."""
        w = self.weights
        heads = 0 if self.scores is None else self.scores.shape[1]
        slots = range(self.slots)
        return [
            Instruction(Opcode.LAYER, hidden_blocks=w.hidden // BLOCK, intermediate_blocks=w.intermediate // BLOCK,
                        gate_scale=layer_scale(w.gate), up_scale=layer_scale(w.up), down_scale=layer_scale(w.down)),
            Instruction(Opcode.WEIGHTS, count=layer_beats(self.config, w.hidden, w.intermediate), offset=self.offset),
            *(Instruction(Opcode.SCORES, slot=s, count=heads, offset=s * scores_bytes(heads)) for s in slots if heads),
            Instruction(Opcode.DECIDE),
            *(Instruction(Opcode.LOAD, slot=s, offset=s * activation_bytes(w.hidden)) for s in slots),
            *(Instruction(Opcode.STORE, slot=s, offset=s * output_bytes(w.hidden)) for s in slots),
            Instruction(Opcode.RUN),
            Instruction(Opcode.END),
        ]

    def image(self, *, weights: bool = True) -> Iterator[tuple[int, np.ndarray]]:
        """(address, bytes) to write before the start; ``weights`` False leaves the weights out."""
        if weights:
            for port, stream in enumerate(pack_layer(self.config, self.weights)):
                yield port * self.config.channel_bytes + self.offset, stream
        yield self.start, encode(self.program())
        yield self.input_base, pack_activations(self.x).reshape(-1)
        yield self.output_base, _padded(self.old.astype(np.uint16), output_bytes(self.weights.hidden))
        if self.scores is not None:
            yield self.scores_base, _padded(self.scores.astype(np.int32), scores_bytes(self.scores.shape[1]))

    def registers(self) -> Iterator[tuple[int, int]]:
        """(address, 32-bit value) to write before CONTROL."""
        values = {
            "SOURCE": SOURCE_MASK if self.scores is None else SOURCE_TAS, "ACTIVE": self.active, "HOST_MASK": self.mask,
            "THRESHOLD": self.threshold, "PROGRAM_BASE": self.start, "PROGRAM_COUNT": len(self.program()),
            "SCORES_BASE": self.scores_base, "INPUT_BASE": self.input_base, "OUTPUT_BASE": self.output_base,
        }
        for name, value in values.items():
            for word in range(BY_NAME[name].words):
                yield address(name, word), value >> 32 * word & 0xFFFFFFFF

    def expected(self) -> np.ndarray:
        """Replay cache after the job, uint16 ``[slots, hidden]``: computed rows new, all others as they were."""
        rows = [slot for slot in range(self.slots) if self.index >> slot & 1]
        result = self.old.astype(np.uint16).copy()
        if rows:
            result[rows] = mlp(MxMatrix(self.x.codes[rows], self.x.scales[rows]), self.weights).y
        return result

    def outputs(self, memory: np.ndarray) -> np.ndarray:
        """Replay cache in ``memory``, uint8 of the ``slots * output_bytes`` from ``output_base`` on."""
        row = output_bytes(self.weights.hidden)
        return memory.reshape(self.slots, row)[:, :2 * self.weights.hidden].copy().view(np.uint16)


def encode(program: list[Instruction]) -> np.ndarray:
    """The program's bytes, uint8."""
    return np.frombuffer(b"".join(instruction.encode() for instruction in program), dtype=np.uint8)


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows as bytes, each padded with zeros to ``size``, one after the other."""
    data = np.ascontiguousarray(rows).view(np.uint8)
    return np.pad(data, ((0, 0), (0, size - data.shape[1]))).reshape(-1)


def load(board, job: Job, *, weights: bool = True) -> None:
    """Write memory and registers of ``job``."""
    for at, data in job.image(weights=weights):
        board.write_memory(at, data)
    for register, value in job.registers():
        board.write_csr(register, value)


def run(board, limit: int = 10_000_000) -> int:
    """Start and wait for the end; STATUS."""
    board.write_csr(address("CONTROL"), CONTROL_START)
    board.wait(limit)
    return board.read_csr(address("STATUS"))


def results(board, job: Job) -> np.ndarray:
    """Replay cache of ``job`` on ``board``, uint16 ``[slots, hidden]``."""
    return job.outputs(board.read_memory(job.output_base, job.slots * output_bytes(job.weights.hidden)))


def read(board, name: str) -> int:
    """Register by name, 64-bit ones in two reads."""
    return sum(board.read_csr(address(name, word)) << 32 * word for word in range(BY_NAME[name].words))


def counters(board) -> dict[str, int]:
    return {name: read(board, name) for name in COUNTERS}


def check(board, job: Job, context: str) -> None:
    """Run ``job`` and compare what it leaves: status, index bits, outputs. AssertionError with the first difference."""
    load(board, job)
    status = run(board)
    error = read(board, "ERROR"), read(board, "ERROR_INDEX")
    assert not status & STATUS_ERROR, f"{context}: error {error[0]} at instruction {error[1]}"
    index = read(board, "INDEX")
    assert index == job.index, f"{context}: index bits {index:#010x}, not {job.index:#010x}"
    compare(results(board, job), job.expected(), context)
    board.check()


def compare(got: np.ndarray, want: np.ndarray, context: str) -> None:
    """AssertionError naming the first differing element of two ``[slots, hidden]`` arrays."""
    wrong = np.argwhere(got != want)
    if len(wrong):
        slot, element = wrong[0]
        raise AssertionError(f"{context}: slot {slot}, element {element} is {got[slot, element]:#06x}, not "
                             f"{want[slot, element]:#06x} ({len(wrong)} of {want.size} differ)")

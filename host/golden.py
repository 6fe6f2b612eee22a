"""Golden board: the interface of every board in front of the integer model. It has no clock: cycle counters stay 0."""

from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from host.board import BoardError, memory_bytes
from host.interpreter import Interpreter, JobResult, JobSettings, ProgramError
from host.memory import SparseMemory
from hw.config import PORT_BYTES, AcceleratorConfig, preset
from hw.identification import identification
from hw.isa import INSTRUCTION_BYTES, Error, Instruction
from hw.layout import layer_beats, unpack_layer
from hw.registers import (
    BY_NAME,
    CONTROL_RESET,
    CONTROL_START,
    REGISTERS,
    STATUS_DONE,
    STATUS_ERROR,
    STATUS_NAN,
    WINDOW_BYTES,
    address,
)
from model.integer import MlpWeights, MxMatrix
from model.mx import BLOCK
from model.prepared import PreparedMlp

WATCHDOG_CYCLES = 1_000_000
"""WATCHDOG after reset. Kept as a register only: without a clock nothing expires."""


@dataclass(frozen=True)
class _BoundMatrix(MxMatrix):
    """A matrix aligned to the largest scale byte that the program states, as the hardware does."""

    bound: int = 0

    @property
    def largest_scale(self) -> int:
        return self.bound


class GoldenBoard:
    """A :class:`~host.board.Board` that computes jobs with model/integer.py when they are started.

    Weights are read from board memory like everything else. Prepared layers are kept, and forgotten as soon as a byte
    of their stream is written.
    """

    kind = "golden (integer model)"
    cycles = 0

    def __init__(self, config: AcceleratorConfig | str = "sim"):
        self.config = preset(config) if isinstance(config, str) else config
        self._memory = SparseMemory(memory_bytes(self.config))
        self._registers = {r.address + 4 * word: 0 for r in REGISTERS for word in range(r.words)}
        self._writable = {r.address + 4 * word for r in REGISTERS if r.access == "rw" for word in range(r.words)}
        for name, value in identification(self.config).items():
            self._set(name, value)
        self._set("WATCHDOG", WATCHDOG_CYCLES)
        self._prepared: dict[tuple[int, int, Instruction], PreparedMlp] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._prepared.clear()

    def read_csr(self, address: int) -> int:
        return self._registers.get(_checked(address), 0)

    def write_csr(self, address: int, value: int) -> None:
        if _checked(address) == BY_NAME["CONTROL"].address:
            self._control(value)
        elif address in self._writable:
            self._registers[address] = value & 0xFFFFFFFF

    def read_memory(self, address: int, size: int) -> np.ndarray:
        return self._memory.view(address, size).copy()

    def write_memory(self, address: int, array: np.ndarray) -> None:
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._memory.view(address, data.size)[:] = data
        self._forget_weights(address, data.size)

    def wait(self, timeout_cycles: int) -> None:
        if not self._get("STATUS") & (STATUS_DONE | STATUS_ERROR):
            raise BoardError("no job was started on the golden board; write CONTROL start first")

    def _get(self, name: str) -> int:
        return sum(self._registers[address(name, word)] << 32 * word for word in range(BY_NAME[name].words))

    def _set(self, name: str, value: int) -> None:
        for word in range(BY_NAME[name].words):
            self._registers[address(name, word)] = value >> 32 * word & 0xFFFFFFFF

    def _control(self, value: int) -> None:
        if value & CONTROL_RESET:
            for name in ("STATUS", "ERROR", "ERROR_INDEX"):
                self._set(name, 0)
        elif value & CONTROL_START and not self._get("STATUS") & STATUS_ERROR:
            self._start()

    def _start(self) -> None:
        threshold = self._get("THRESHOLD")
        interpreter = Interpreter(
            self.config,
            JobSettings(source=self._get("SOURCE"), active=self._get("ACTIVE"), host_mask=self._get("HOST_MASK"),
                        threshold=threshold - (threshold >> 63 << 64), scores_base=self._get("SCORES_BASE"),
                        input_base=self._get("INPUT_BASE"), output_base=self._get("OUTPUT_BASE")),
            self.read_memory, self.write_memory, self._mlp)
        status = STATUS_DONE
        try:
            interpreter.run(self._program())
        except ProgramError as error:
            status = STATUS_ERROR
            self._set("ERROR", error.code)
            self._set("ERROR_INDEX", error.index)
        self._publish(interpreter.result, status)

    def _program(self) -> bytes:
        count, base = self._get("PROGRAM_COUNT"), self._get("PROGRAM_BASE")
        if not 0 < count <= self.config.program_length:
            raise ProgramError(Error.PROGRAM, 0)
        size = count * INSTRUCTION_BYTES
        if base % PORT_BYTES or base + size > self._memory.size:
            raise ProgramError(Error.ADDRESS, 0)
        return self._memory.view(base, size).tobytes()

    def _publish(self, result: JobResult, status: int) -> None:
        self._set("STATUS", status | (STATUS_NAN if result.nan else 0))
        self._set("INDEX", result.index)
        for slot, core in enumerate(result.mapping):
            self._registers[address("MAPPING", slot)] = core
        self._set("WEIGHT_BEATS", result.weight_beats)
        self._set("WEIGHT_BYTES", result.weight_beats * self.config.ports * PORT_BYTES)
        self._set("OUTPUT_BYTES", result.output_bytes)
        self._set("ROWS_COMPUTED", result.rows_computed)
        self._set("ROWS_REPLAYED", result.rows_replayed)
        self._set("BUSIEST_ROWS", result.busiest_rows)

    def _mlp(self, offset: int, layer: Instruction) -> PreparedMlp:
        hidden, intermediate = layer.hidden_blocks * BLOCK, layer.intermediate_blocks * BLOCK
        size = layer_beats(self.config, hidden, intermediate) * PORT_BYTES
        key = (offset, size, layer)
        if key not in self._prepared:
            stream = np.stack([self._memory.view(port * self.config.channel_bytes + offset, size)
                               for port in range(self.config.ports)])
            raw = unpack_layer(self.config, stream, hidden, intermediate)
            self._prepared[key] = PreparedMlp(MlpWeights(
                _BoundMatrix(raw.gate.codes, raw.gate.scales, layer.gate_scale),
                _BoundMatrix(raw.up.codes, raw.up.scales, layer.up_scale),
                _BoundMatrix(raw.down.codes, raw.down.scales, layer.down_scale)))
        return self._prepared[key]

    def _forget_weights(self, address: int, size: int) -> None:
        """Drop prepared layers whose stream overlaps the written bytes."""
        first = address % self.config.channel_bytes
        crosses = first + size > self.config.channel_bytes
        for key in [key for key in self._prepared if crosses or (first < key[0] + key[1] and key[0] < first + size)]:
            del self._prepared[key]


def _checked(register: int) -> int:
    if register % 4 or not 0 <= register < WINDOW_BYTES:
        raise BoardError(f"register address must be a multiple of 4 below {WINDOW_BYTES:#x}, not {register!r}")
    return register

"""Runs a program of hw/isa.py on the integer model: what the accelerator computes, without its timing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.isa import FIELDS, INSTRUCTION_BYTES, USED, Error, Instruction, Opcode
from hw.layout import activation_bytes, layer_beats, output_bytes, scores_bytes, unpack_activations
from hw.registers import SOURCE_TAS
from model.integer import MlpResult, MxMatrix
from model.mx import BLOCK

WEIGHT_ALIGNMENT = 4096

Mlp = Callable[[MxMatrix], MlpResult]


class ProgramError(Exception):
    """The program stopped: ``code`` and the ``index`` of the instruction."""

    def __init__(self, code: Error, index: int):
        super().__init__(f"{code.name} at instruction {index}")
        self.code, self.index = code, index


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """Registers that a job reads when it starts."""

    source: int
    active: int
    host_mask: int
    threshold: int
    scores_base: int
    input_base: int
    output_base: int


@dataclass
class JobResult:
    """Registers that a job leaves behind: Index and Mapping Registers, the NaN flag, and counters."""

    index: int = 0
    mapping: list[int] = field(default_factory=lambda: [0] * SLOTS)
    nan: bool = False
    rows_computed: int = 0
    rows_replayed: int = 0
    busiest_rows: int = 0
    weight_beats: int = 0
    output_bytes: int = 0


_MISSING = Instruction(Opcode.LAYER)


@dataclass
class _Layer:
    """What the instructions since the last LAYER have set up."""

    shape: Instruction = _MISSING
    weights: Instruction = _MISSING
    scored: set[int] = field(default_factory=set)
    sums: dict[int, int] = field(default_factory=dict)
    decided: bool = False
    inputs: dict[int, np.ndarray] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)

    @property
    def has_weights(self) -> bool:
        return self.weights is not _MISSING

    @property
    def hidden(self) -> int:
        return self.shape.hidden_blocks * BLOCK

    @property
    def intermediate(self) -> int:
        return self.shape.intermediate_blocks * BLOCK


class Interpreter:
    """Executes one program.

    Parameters
    ----------
    config : :class:`~hw.config.AcceleratorConfig`
    settings : :class:`JobSettings`
    read : (address, size) -> uint8 ``[size]``
    write : (address, uint8 array) -> None
    mlp : (offset, LAYER instruction) -> function of MxMatrix ``[rows, hidden]`` to :class:`~model.integer.MlpResult`
        The layer of that shape whose weight stream starts at ``offset`` of every port's region.
    """

    def __init__(self, config: AcceleratorConfig, settings: JobSettings, read: Callable[[int, int], np.ndarray],
                 write: Callable[[int, np.ndarray], None], mlp: Callable[[int, Instruction], Mlp]):
        self.config, self.settings, self.result = config, settings, JobResult()
        self._read, self._write, self._mlp = read, write, mlp
        self._at = 0
        self._layer = _Layer()
        self._steps = {Opcode.LAYER: self._set_layer, Opcode.WEIGHTS: self._set_weights,
                       Opcode.SCORES: self._add_scores, Opcode.DECIDE: self._decide,
                       Opcode.LOAD: self._load, Opcode.STORE: self._store, Opcode.RUN: self._run}

    def run(self, program: bytes) -> None:
        """Execute ``program``; ``result`` holds what it got to. Raises :exc:`ProgramError`."""
        count = len(program) // INSTRUCTION_BYTES
        for self._at in range(count):
            instruction = self._decode(program[self._at * INSTRUCTION_BYTES:(self._at + 1) * INSTRUCTION_BYTES])
            if instruction.opcode == Opcode.END:
                self._require(not self._layer.decided and not self._layer.scored, Error.ORDER)
                return
            self._steps[instruction.opcode](instruction)
        self._fail(Error.PROGRAM)

    def _fail(self, code: Error) -> NoReturn:
        raise ProgramError(code, self._at)

    def _require(self, condition: bool, code: Error) -> None:
        if not condition:
            self._fail(code)

    def _decode(self, data: bytes) -> Instruction:
        word = int.from_bytes(data, "little")
        try:
            instruction = Instruction.decode(data)
        except ValueError:
            self._fail(Error.OPCODE)
        used = sum(((1 << FIELDS[n][1]) - 1) << FIELDS[n][0] for n in ("opcode", *USED[instruction.opcode]))
        self._require(word & ~used == 0, Error.OPCODE)
        self._require(instruction.slot < SLOTS, Error.SLOT)
        return instruction

    def _address(self, base: int, offset: int, size: int) -> int:
        address = base + offset
        fits = address + size <= self.config.ports * self.config.channel_bytes
        self._require(address % PORT_BYTES == 0 and fits, Error.ADDRESS)
        return address

    def _set_layer(self, i: Instruction) -> None:
        self._require(0 < i.hidden_blocks <= self.config.max_hidden_blocks, Error.SHAPE)
        self._require(0 < i.intermediate_blocks <= self.config.max_intermediate_blocks, Error.SHAPE)
        self._require(not self._layer.decided and not self._layer.scored, Error.ORDER)
        self._layer = _Layer(shape=i)

    def _set_weights(self, i: Instruction) -> None:
        layer = self._layer
        self._require(layer.shape is not _MISSING and not layer.decided, Error.ORDER)
        self._require(i.count == layer_beats(self.config, layer.hidden, layer.intermediate), Error.STREAM)
        fits = i.offset + i.count * PORT_BYTES <= self.config.channel_bytes
        self._require(i.offset % WEIGHT_ALIGNMENT == 0 and fits, Error.ADDRESS)
        layer.weights = i

    def _add_scores(self, i: Instruction) -> None:
        layer = self._layer
        self._require(0 < i.count <= self.config.max_heads, Error.SHAPE)
        self._require(layer.has_weights and not layer.decided and i.slot not in layer.scored, Error.ORDER)
        layer.scored.add(i.slot)
        if self.settings.source != SOURCE_TAS or not self.settings.active >> i.slot & 1:
            return
        address = self._address(self.settings.scores_base, i.offset, scores_bytes(i.count))
        scores = self._read(address, 4 * i.count).view("<i4")
        layer.sums[i.slot] = int(scores.sum(dtype=np.int64))

    def _decide(self, i: Instruction) -> None:
        layer, settings, result = self._layer, self.settings, self.result
        self._require(layer.has_weights and not layer.decided, Error.ORDER)
        active = [slot for slot in range(SLOTS) if settings.active >> slot & 1]
        if settings.source == SOURCE_TAS:
            self._require(all(slot in layer.sums for slot in active), Error.ORDER)
            computing = [slot for slot in active if layer.sums[slot] < settings.threshold]
        else:
            computing = [slot for slot in active if settings.host_mask >> slot & 1]
        layer.decided = True
        result.index = sum(1 << slot for slot in computing)
        result.mapping = [0] * SLOTS
        for rank, slot in enumerate(computing):
            result.mapping[slot] = rank % self.config.cores
        result.rows_computed += len(computing)
        result.rows_replayed += len(active) - len(computing)
        result.busiest_rows = max(result.busiest_rows, -(-len(computing) // self.config.cores))

    def _computes(self, slot: int) -> bool:
        return bool(self.result.index >> slot & 1)

    def _load(self, i: Instruction) -> None:
        self._require(self._layer.decided and i.slot not in self._layer.inputs, Error.ORDER)
        if self._computes(i.slot):
            size = activation_bytes(self._layer.hidden)
            self._layer.inputs[i.slot] = self._read(self._address(self.settings.input_base, i.offset, size), size)

    def _store(self, i: Instruction) -> None:
        self._require(self._layer.decided and i.slot not in self._layer.outputs, Error.ORDER)
        if self._computes(i.slot):
            size = output_bytes(self._layer.hidden)
            self._layer.outputs[i.slot] = self._address(self.settings.output_base, i.offset, size)

    def _run(self, i: Instruction) -> None:
        layer, result = self._layer, self.result
        self._require(layer.decided, Error.ORDER)
        slots = [slot for slot in range(SLOTS) if self._computes(slot)]
        self._require(all(slot in layer.inputs and slot in layer.outputs for slot in slots), Error.ORDER)
        if slots:
            x = unpack_activations(np.stack([layer.inputs[slot] for slot in slots]), layer.hidden)
            outcome = self._mlp(layer.weights.offset, layer.shape)(x)
            for slot, y in zip(slots, outcome.y):
                self._write(layer.outputs[slot], y.view(np.uint8))
            result.nan |= bool(outcome.nan.any())
            result.weight_beats += layer.weights.count
            result.output_bytes += len(slots) * output_bytes(layer.hidden)
        self._layer = _Layer()

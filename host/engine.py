"""The MLPs of a model on a board: an engine (model/engine.py) whose replay cache lies in board memory."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from host.board import Board, BoardError
from host.compile import CompiledLayer, program
from host.driver import Driver
from host.regions import Regions
from hw.config import SLOTS
from hw.isa import INSTRUCTION_BYTES
from hw.layout import activation_bytes, output_bytes, pack_activations, scores_bytes
from hw.registers import SOURCE_MASK, SOURCE_TAS
from model.frames import FrameLayout
from model.gates import Decision
from model.integer import MxMatrix, bf16_to_float
from model.replay import StepResult

PREFILL, DECODE = "prefill", "decode"

OnJob = Callable[[str, int, dict[str, int]], None]
"""Told of every job: ``PREFILL`` or ``DECODE``, the layer, and the board's counters."""


class BoardMlp:
    """Runs every MLP of a generation as a job on ``board``.

    Weights are written once, when the engine is made; programs when a generation begins. Which rows computed is what
    the board's Index Register says, whatever the decision asked for.

    Parameters
    ----------
    board : :class:`~host.board.Board`
    layers : compiled for the board's configuration
    heads : :class:`int`
        Attention heads: scores per row that a TAS decision brings.
    on_job : called after every job
    """

    def __init__(self, board: Board, layers: Sequence[CompiledLayer], heads: int, on_job: OnJob | None = None):
        if heads > board.config.max_heads:
            raise BoardError(f"the model has {heads} attention heads; preset {board.config.name!r} adds up "
                             f"at most {board.config.max_heads}")
        self.driver = Driver(board)
        self._board, self._layers, self._heads, self._on_job = board, list(layers), heads, on_job
        self._hidden = layers[0].hidden
        self._row_bytes = output_bytes(self._hidden)
        self._regions = Regions(board.config)
        self.weight_offsets = [self._regions.weights(layer.stream.shape[1]) for layer in layers]
        for layer, offset in zip(layers, self.weight_offsets):
            for port, stream in enumerate(layer.stream):
                board.write_memory(port * board.config.channel_bytes + offset, stream)
        self._rows = 0

    def begin(self, rows: int, layout: FrameLayout) -> None:
        """A new generation of ``rows`` rows. Raises :exc:`~host.board.BoardError` for more rows than slots."""
        if not 1 <= rows <= SLOTS:
            raise BoardError(f"{rows} rows do not fit: the board has {SLOTS} slots, one for each row (a video and its "
                             f"unconditional twin are two); generate at most {SLOTS // 2} videos at once with guidance")
        self._rows = rows
        self._all = (1 << rows) - 1
        self._regions.release_data()
        place = self._regions.data
        self._inputs = place(SLOTS * activation_bytes(self._hidden))
        self._scores = place(SLOTS * scores_bytes(self._heads))
        self._scratch = place(SLOTS * self._row_bytes)
        self._step_bytes = rows * self._row_bytes
        self._cache = [place(layout.stride * self._step_bytes) for _ in self._layers]
        self._programs: dict[tuple[int, int], tuple[int, int]] = {}
        self._score_words = np.zeros((rows, scores_bytes(self._heads) // 4), dtype=np.int32)
        self.driver.write("INPUT_BASE", self._inputs)
        self.driver.write("SCORES_BASE", self._scores)

    def prefill(self, layer: int, x: Tensor) -> Tensor:
        """MLP outputs of prelude tokens ``x`` ``[tokens, hidden]``: up to 32 in a job, nothing cached."""
        outputs = []
        for part in np.array_split(x.detach().numpy(), range(SLOTS, len(x), SLOTS)):
            everyone = (1 << len(part)) - 1
            self.driver.write("SOURCE", SOURCE_MASK)
            self.driver.write("HOST_MASK", everyone)
            self._job(PREFILL, layer, part, self._scratch, everyone)
            outputs.append(self._outputs(self._scratch, len(part)))
        return torch.cat(outputs)

    def step(self, layer: int, index: int, x: Tensor, decision: Decision) -> StepResult:
        """MLP outputs of ``x`` ``[rows, hidden]``: computed now, or what the replay cache in board memory holds."""
        if not self._rows:
            raise RuntimeError("step before begin; begin(rows, layout) starts a generation")
        if x.shape != (self._rows, self._hidden):
            raise ValueError(f"MLP inputs must be {[self._rows, self._hidden]} in this generation, not {list(x.shape)}")
        rule = decision.rule
        if rule is not None and rule.tas_scores is not None and not (rule.change_thresholds or rule.groups
                                                                     or rule.max_age):
            self._score_words[:, :self._heads] = rule.tas_scores
            self._board.write_memory(self._scores, self._score_words)
            self.driver.write("SOURCE", SOURCE_TAS)
            self.driver.write("THRESHOLD", rule.tas_threshold)
        else:
            mask = _bits(decision.compute.numpy()) if decision.eligible else self._all
            self.driver.write("SOURCE", SOURCE_MASK)
            self.driver.write("HOST_MASK", mask)
        where = self._cache[layer] + index * self._step_bytes
        self._job(DECODE, layer, x.detach().numpy(), where, self._all)
        index_bits = self.driver.read("INDEX")
        computed = torch.tensor([bool(index_bits >> row & 1) for row in range(self._rows)])
        return StepResult(y=self._outputs(where, self._rows), computed=computed)

    def _job(self, kind: str, layer: int, x: np.ndarray, outputs: int, active: int) -> None:
        self._board.write_memory(self._inputs, pack_activations(MxMatrix.from_float(x)))
        base, count = self._program(layer, len(x))
        self.driver.write("PROGRAM_BASE", base)
        self.driver.write("PROGRAM_COUNT", count)
        self.driver.write("ACTIVE", active)
        self.driver.write("OUTPUT_BASE", outputs)
        self.driver.run()
        if self._on_job is not None:
            self._on_job(kind, layer, self.driver.counters())

    def _program(self, layer: int, slots: int) -> tuple[int, int]:
        """Address and length of the program of ``layer`` for ``slots`` rows, written when it is first needed."""
        if (layer, slots) not in self._programs:
            code = program(self._layers[layer], self.weight_offsets[layer], slots, self._heads)
            address = self._regions.data(code.size)
            self._board.write_memory(address, code)
            self._programs[layer, slots] = address, code.size // INSTRUCTION_BYTES
        return self._programs[layer, slots]

    def _outputs(self, address: int, rows: int) -> Tensor:
        words = self._board.read_memory(address, rows * self._row_bytes).view(np.uint16).reshape(rows, -1)
        return torch.from_numpy(bf16_to_float(words[:, :self._hidden]))


def _bits(flags: np.ndarray) -> int:
    """Bool ``[rows]`` as a word, row 0 in bit 0."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")

"""Random jobs for the tests of the host: weights, inputs and scores from a seed, placed by the host's own code."""

from dataclasses import dataclass

import numpy as np

from host.board import Board
from host.compile import CompiledLayer, compile_layer, program
from host.driver import Driver
from host.regions import Regions
from hw.layout import activation_bytes, output_bytes, pack_activations, scores_bytes
from model.integer import MlpWeights, MxMatrix

EVERY_SLOT = 0xFFFFFFFF


def random_weights(rng: np.random.Generator, hidden: int, intermediate: int) -> MlpWeights:
    shapes = ((intermediate, hidden), (intermediate, hidden), (hidden, intermediate))
    return MlpWeights(*(MxMatrix.from_float(rng.standard_normal(s) * np.exp2(rng.integers(-6, 3))) for s in shapes))


@dataclass
class PlacedJob:
    """A layer in board memory with room for ``slots`` rows, ready to be started through ``driver``."""

    driver: Driver
    layer: CompiledLayer
    weights: MlpWeights
    weights_offset: int
    slots: int
    heads: int
    program: int
    inputs: int
    scores: int
    outputs: int

    @classmethod
    def place(cls, board: Board, weights: MlpWeights, slots: int, heads: int = 2) -> "PlacedJob":
        driver, layer, regions = Driver(board), compile_layer(board.config, weights), Regions(board.config)
        offset = regions.weights(layer.stream.shape[1])
        code = program(layer, offset, slots, heads)
        at = [regions.data(size) for size in (code.size, slots * activation_bytes(layer.hidden),
                                              slots * scores_bytes(heads), slots * output_bytes(layer.hidden))]
        for port, stream in enumerate(layer.stream):
            board.write_memory(port * board.config.channel_bytes + offset, stream)
        board.write_memory(at[0], code)
        for name, value in (("PROGRAM_BASE", at[0]), ("PROGRAM_COUNT", code.size // 16), ("INPUT_BASE", at[1]),
                            ("SCORES_BASE", at[2]), ("OUTPUT_BASE", at[3]), ("ACTIVE", (1 << slots) - 1),
                            ("HOST_MASK", EVERY_SLOT), ("SOURCE", 0)):
            driver.write(name, value)
        return cls(driver, layer, weights, offset, slots, heads, *at)

    def write_inputs(self, x: MxMatrix) -> None:
        self.driver.board.write_memory(self.inputs, pack_activations(x))

    def write_scores(self, scores: np.ndarray) -> None:
        padded = np.zeros((self.slots, scores_bytes(self.heads) // 4), dtype=np.int32)
        padded[:, :self.heads] = scores
        self.driver.board.write_memory(self.scores, padded)

    def outputs_words(self) -> np.ndarray:
        size = output_bytes(self.layer.hidden)
        data = self.driver.board.read_memory(self.outputs, self.slots * size).view(np.uint16)
        return data.reshape(self.slots, -1)[:, :self.layer.hidden]

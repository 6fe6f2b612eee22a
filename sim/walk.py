"""The order of operations of one layer in plain Python, from the rules of hw/layout.py and nothing of the RTL."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hw.config import CHUNK_BEATS, PORT_BYTES, ROWS_PER_PORT, AcceleratorConfig
from hw.ops import Phase
from model.integer import MlpWeights, MxMatrix
from model.mx import BLOCK


@dataclass(frozen=True)
class Pass:
    """``phase``: of hw.ops.Phase; ``macs``: (operation, index of its data beat in the layer); ``drains``: likewise."""

    phase: int
    macs: list[tuple[dict[str, Any], int]]
    drains: list[dict[str, Any]]


def passes(config: AcceleratorConfig, hidden_blocks: int, intermediate_blocks: int, rows: int) -> list[Pass]:
    """Passes of a layer for a busiest core with ``rows`` rows; fields as in hw/ops.py."""
    result: list[Pass] = []
    beat = 0
    for phase in (Phase.GATE_UP, Phase.DOWN):
        gate_up = phase == Phase.GATE_UP
        weight_rows = (2 * intermediate_blocks if gate_up else hidden_blocks) * BLOCK
        blocks = hidden_blocks if gate_up else intermediate_blocks
        values = config.rows // 2 if gate_up else config.rows
        groups = -(-weight_rows // config.rows)
        for first in range(0, groups, config.groups):
            bank, macs, drains = len(result) % 2, [], []
            size = min(config.groups, groups - first)
            for block in range(blocks):
                for group in range(size):
                    for local in range(rows):
                        macs.append(({"phase": phase, "bank": bank, "group": group, "local": local, "block": block,
                                      "first": block == 0}, beat))
                    beat += 1
            for local in range(rows):
                for group in range(size):
                    value = (first + group) * values
                    drains.append({"phase": phase, "bank": bank, "group": group, "local": local,
                                   "block": value // BLOCK, "first": value % BLOCK == 0,
                                   "last": (value + values) % BLOCK == 0})
            result.append(Pass(phase, macs, drains))
    return result


def raw_beats(config: AcceleratorConfig, stream: np.ndarray) -> list[int]:
    """Beats of all ports side by side, port 0 lowest, from a packed layer uint8 ``[ports, beats * 64]``."""
    beats = stream.reshape(config.ports, -1, PORT_BYTES).transpose(1, 0, 2)
    return [int.from_bytes(beat.tobytes(), "little") for beat in beats]


def weight_beats(config: AcceleratorConfig, stream: np.ndarray, phase_beats: list[int]) -> list[int]:
    """Data beats with their scales, as payloads of ``hw.ops.weight_beat``; ``phase_beats``: beats of each phase."""
    result: list[int] = []
    at = 0
    beats = stream.reshape(config.ports, -1, PORT_BYTES)
    for count in phase_beats:
        phase = beats[:, at:at + count]
        at += count
        for chunk in range(0, count, CHUNK_BEATS + 1):
            scales, data = phase[:, chunk], phase[:, chunk + 1:chunk + 1 + CHUNK_BEATS]
            for position in range(data.shape[1]):
                bytes_ = data[:, position].tobytes() + scales[:, position * ROWS_PER_PORT:][:, :ROWS_PER_PORT].tobytes()
                result.append(int.from_bytes(bytes_, "little"))
    return result


def random_layer(rng: np.random.Generator, hidden: int, intermediate: int, *, spread: int = 6) -> MlpWeights:
    """Random codes (extremes included) and scales of ``spread`` octaves around 1/16."""
    def matrix(rows: int, columns: int) -> MxMatrix:
        return random_matrix(rng, rows, columns, 120, spread)
    return MlpWeights(matrix(intermediate, hidden), matrix(intermediate, hidden), matrix(hidden, intermediate))


def random_matrix(rng: np.random.Generator, rows: int, columns: int, scale: int, spread: int) -> MxMatrix:
    """Codes -127..127, a few blocks of zeros and of extremes; scale bytes from ``scale - spread`` to ``scale``."""
    codes = rng.integers(-127, 128, (rows, columns // BLOCK, BLOCK), dtype=np.int8)
    kind = rng.random(codes.shape[:2])
    codes[kind < 0.05] = 0
    codes[kind > 0.95] = rng.choice(np.array([-127, 127], dtype=np.int8), codes[kind > 0.95].shape)
    scales = rng.integers(scale - spread, scale + 1, codes.shape[:2]).astype(np.uint8)
    return MxMatrix(codes.reshape(rows, columns), scales)

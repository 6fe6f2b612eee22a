"""Memory layout: how weights, activations, scores and outputs lie in board memory. numpy only.

Weights. A layer is one contiguous run of 64-byte beats per port, at the same offset in every port's region
(``port * channel_bytes + offset``), 4 KiB aligned: first the gate/up phase, then the down phase. Inside a phase:

    for each pass (groups * rows weight rows; the last may have fewer groups):
        for each block k of the reduction:
            for each row group g of the pass:
                one data beat: port p brings rows g*rows + 2p and g*rows + 2p + 1 of the pass, 32 codes each

Gate/up rows are interleaved: row 2j of the phase is gate row j, row 2j + 1 is up row j. Down rows are the output rows,
padded with zero rows to a whole group. The data beats of a phase are cut into chunks of 32; a scale beat precedes each
chunk (the last may be shorter): byte 2*b + r of port p is the scale of row 2p + r in the chunk's data beat b.

Activations of a slot: scale bytes (padded to 64), then codes (padded to 64). Scores of a slot: int32, padded to 64.
Output of a slot: BF16, hidden * 2 bytes (padded to 64).
"""

import numpy as np

from hw.config import CHUNK_BEATS, PORT_BYTES, ROWS_PER_PORT, AcceleratorConfig
from model.integer import MlpWeights, MxMatrix
from model.mx import BLOCK, SCALE_NAN


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def phase_beats(config: AcceleratorConfig, rows: int, blocks: int) -> int:
    """Beats (data and scale) per port of a phase with ``rows`` weight rows and ``blocks`` blocks of reduction."""
    data = round_up(rows, config.rows) // config.rows * blocks
    return data + -(-data // CHUNK_BEATS)


def layer_scale(matrix: MxMatrix) -> int:
    """Scale byte of a matrix in LAYER: 255 when one of its blocks is NaN, which makes every output of the layer NaN.

    A core meets a NaN block of the down matrix only when earlier outputs have left; the stated scale tells it in time.
    """
    return SCALE_NAN if (matrix.scales == SCALE_NAN).any() else matrix.largest_scale


def layer_beats(config: AcceleratorConfig, hidden: int, intermediate: int) -> int:
    """Beats per port of one layer's weight stream."""
    return (phase_beats(config, 2 * intermediate, hidden // BLOCK)
            + phase_beats(config, hidden, intermediate // BLOCK))


def pack_layer(config: AcceleratorConfig, weights: MlpWeights) -> np.ndarray:
    """Weight stream of a layer: uint8 ``[ports, beats * 64]``, one row per port region."""
    gate_up = MxMatrix(_interleave(weights.gate.codes, weights.up.codes),
                       _interleave(weights.gate.scales, weights.up.scales))
    return np.concatenate([_pack_phase(config, gate_up), _pack_phase(config, weights.down)], axis=1)


def unpack_layer(config: AcceleratorConfig, stream: np.ndarray, hidden: int, intermediate: int) -> MlpWeights:
    """Inverse of ``pack_layer`` for a board that interprets memory."""
    split = phase_beats(config, 2 * intermediate, hidden // BLOCK) * PORT_BYTES
    gate_up = _unpack_phase(config, stream[:, :split], 2 * intermediate, hidden // BLOCK)
    down = _unpack_phase(config, stream[:, split:], hidden, intermediate // BLOCK)
    return MlpWeights(MxMatrix(gate_up.codes[0::2], gate_up.scales[0::2]),
                      MxMatrix(gate_up.codes[1::2], gate_up.scales[1::2]), down)


def activation_bytes(hidden: int) -> int:
    """Bytes of one slot's quantised MLP input."""
    return round_up(hidden // BLOCK, PORT_BYTES) + round_up(hidden, PORT_BYTES)


def pack_activations(x: MxMatrix) -> np.ndarray:
    """Quantised inputs of all slots: uint8 ``[slots, activation_bytes(hidden)]``."""
    slots, hidden = x.codes.shape
    packed = np.zeros((slots, activation_bytes(hidden)), dtype=np.uint8)
    start = round_up(hidden // BLOCK, PORT_BYTES)
    packed[:, :hidden // BLOCK] = x.scales
    packed[:, start:start + hidden] = x.codes.view(np.uint8)
    return packed


def unpack_activations(packed: np.ndarray, hidden: int) -> MxMatrix:
    """Inverse of ``pack_activations``."""
    start = round_up(hidden // BLOCK, PORT_BYTES)
    return MxMatrix(packed[:, start:start + hidden].copy().view(np.int8), packed[:, :hidden // BLOCK].copy())


def scores_bytes(heads: int) -> int:
    """Bytes of one slot's per-head scores (int32)."""
    return round_up(4 * heads, PORT_BYTES)


def output_bytes(hidden: int) -> int:
    """Bytes of one slot's MLP output (BF16)."""
    return round_up(2 * hidden, PORT_BYTES)


def _interleave(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.stack([gate, up], axis=1).reshape(-1, gate.shape[1])


def _beat_order(config: AcceleratorConfig, rows: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Row group (of the whole phase) and block of every data beat, in stream order."""
    group_count = round_up(rows, config.rows) // config.rows
    group, block = [], []
    for first in range(0, group_count, config.groups):
        size = min(config.groups, group_count - first)
        group.append(np.tile(np.arange(first, first + size), blocks))
        block.append(np.repeat(np.arange(blocks), size))
    return np.concatenate(group), np.concatenate(block)


def _pack_phase(config: AcceleratorConfig, matrix: MxMatrix) -> np.ndarray:
    rows, blocks = matrix.scales.shape
    padded = round_up(rows, config.rows)
    group, block = _beat_order(config, rows, blocks)
    codes = np.zeros((padded, blocks, BLOCK), dtype=np.uint8)
    codes[:rows] = matrix.codes.view(np.uint8).reshape(rows, blocks, BLOCK)
    scales = np.zeros((padded, blocks), dtype=np.uint8)
    scales[:rows] = matrix.scales
    shape = (-1, config.ports, ROWS_PER_PORT)
    data = codes.reshape(-1, config.rows, blocks, BLOCK)[group, :, block].reshape(len(group), config.ports, PORT_BYTES)
    scale = scales.reshape(-1, config.rows, blocks)[group, :, block].reshape(shape)
    stream = np.zeros((config.ports, phase_beats(config, rows, blocks), PORT_BYTES), dtype=np.uint8)
    for chunk, first in enumerate(range(0, len(group), CHUNK_BEATS)):
        beats = slice(first, min(first + CHUNK_BEATS, len(group)))
        size, at = beats.stop - first, first + chunk
        stream[:, at, :size * ROWS_PER_PORT] = scale[beats].transpose(1, 0, 2).reshape(config.ports, -1)
        stream[:, at + 1:at + 1 + size] = data[beats].transpose(1, 0, 2)
    return stream.reshape(config.ports, -1)


def _unpack_phase(config: AcceleratorConfig, stream: np.ndarray, rows: int, blocks: int) -> MxMatrix:
    group, block = _beat_order(config, rows, blocks)
    beats = stream.reshape(config.ports, -1, PORT_BYTES)
    index = np.arange(len(group))
    chunk, inside = index // CHUNK_BEATS, index % CHUNK_BEATS
    data = beats[:, index + chunk + 1].transpose(1, 0, 2).reshape(len(group), config.rows, BLOCK)
    pick = inside[:, None] * ROWS_PER_PORT + np.arange(ROWS_PER_PORT)
    scale = beats[:, (chunk * (CHUNK_BEATS + 1))[:, None], pick].transpose(1, 0, 2).reshape(len(group), config.rows)
    padded = round_up(rows, config.rows) // config.rows
    codes = np.zeros((padded, config.rows, blocks, BLOCK), dtype=np.uint8)
    scales = np.zeros((padded, config.rows, blocks), dtype=np.uint8)
    codes[group, :, block] = data
    scales[group, :, block] = scale
    return MxMatrix(codes.reshape(-1, blocks * BLOCK)[:rows].view(np.int8), scales.reshape(-1, blocks)[:rows])

"""Compiles MLP layers for an accelerator: weights to weight streams, a layer to a program. Cached on disk.

The cache lies in the user's cache folder, one file per (configuration, weights, layout code), named by their hash.
"""

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hw.layout
from hw.config import PORT_BYTES, SLOTS, AcceleratorConfig
from hw.isa import Instruction, Opcode
from hw.layout import activation_bytes, layer_scale, output_bytes, pack_layer, scores_bytes
from model.integer import MlpWeights
from model.mx import BLOCK

_FIELDS = ("hidden", "intermediate", "gate_scale", "up_scale", "down_scale")


class CompileError(ValueError):
    """A layer that this accelerator cannot hold."""


@dataclass(frozen=True, kw_only=True)
class CompiledLayer:
    """A layer as the board takes it: ``stream`` uint8 ``[ports, bytes]`` and what LAYER says of it."""

    hidden: int
    intermediate: int
    gate_scale: int
    up_scale: int
    down_scale: int
    stream: np.ndarray

    @property
    def beats(self) -> int:
        return self.stream.shape[1] // PORT_BYTES


def compile_layer(config: AcceleratorConfig, weights: MlpWeights) -> CompiledLayer:
    """Pack one layer. Raises :exc:`CompileError` when it is larger than ``config`` allows."""
    for name, size, limit in (("hidden", weights.hidden, config.max_hidden_blocks),
                              ("intermediate", weights.intermediate, config.max_intermediate_blocks)):
        if size > limit * BLOCK:
            raise CompileError(f"{name} size {size} is more than the {limit * BLOCK} that preset {config.name!r} "
                               "holds; take a larger one")
    return CompiledLayer(
        hidden=weights.hidden, intermediate=weights.intermediate, gate_scale=layer_scale(weights.gate),
        up_scale=layer_scale(weights.up), down_scale=layer_scale(weights.down), stream=pack_layer(config, weights))


def program(layer: CompiledLayer, offset: int, slots: int, heads: int) -> np.ndarray:
    """Program of a job with slots 0 .. ``slots - 1`` on weights at ``offset`` of every port, uint8.

    Inputs, scores and outputs lie one slot after the other from their base registers on.
    """
    if not 1 <= slots <= SLOTS:
        raise CompileError(f"a job carries 1..{SLOTS} slots, not {slots!r}")
    numbers = range(slots)
    instructions = [
        Instruction(Opcode.LAYER, hidden_blocks=layer.hidden // BLOCK, intermediate_blocks=layer.intermediate // BLOCK,
                    gate_scale=layer.gate_scale, up_scale=layer.up_scale, down_scale=layer.down_scale),
        Instruction(Opcode.WEIGHTS, count=layer.beats, offset=offset),
        *(Instruction(Opcode.SCORES, slot=s, count=heads, offset=s * scores_bytes(heads)) for s in numbers if heads),
        Instruction(Opcode.DECIDE),
        *(Instruction(Opcode.LOAD, slot=s, offset=s * activation_bytes(layer.hidden)) for s in numbers),
        *(Instruction(Opcode.STORE, slot=s, offset=s * output_bytes(layer.hidden)) for s in numbers),
        Instruction(Opcode.RUN),
        Instruction(Opcode.END),
    ]
    return np.frombuffer(b"".join(i.encode() for i in instructions), dtype=np.uint8)


def cache_folder() -> Path:
    """Where compiled models are kept: ``fastcar`` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastcar"


def compile_model(config: AcceleratorConfig, layers: Sequence[MlpWeights],
                  folder: Path | None = None) -> list[CompiledLayer]:
    """Compile all layers, or take them from the cache in ``folder`` (``None``: :func:`cache_folder`).

    A cache that cannot be read or written is passed over: the result is the same, it only takes longer.
    """
    path = (cache_folder() if folder is None else folder) / f"{_key(config, layers)}.npz"
    cached = _load(path, len(layers))
    if cached is not None:
        return cached
    compiled = [compile_layer(config, layer) for layer in layers]
    _save(path, compiled)
    return compiled


def _key(config: AcceleratorConfig, layers: Sequence[MlpWeights]) -> str:
    """Hash of all that the compiled layers depend on, the code that packs them included."""
    digest = hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode())
    digest.update(Path(hw.layout.__file__).read_bytes())
    for layer in layers:
        for matrix in (layer.gate, layer.up, layer.down):
            digest.update(str(matrix.codes.shape).encode())
            digest.update(np.ascontiguousarray(matrix.codes).data)
            digest.update(np.ascontiguousarray(matrix.scales).data)
    return digest.hexdigest()[:32]


def _load(path: Path, count: int) -> list[CompiledLayer] | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            return [CompiledLayer(**dict(zip(_FIELDS, file[f"layer{n}"].tolist())), stream=file[f"stream{n}"])
                    for n in range(count)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _save(path: Path, layers: Sequence[CompiledLayer]) -> None:
    arrays: dict[str, Any] = {}
    for n, layer in enumerate(layers):
        arrays[f"layer{n}"] = np.array([getattr(layer, name) for name in _FIELDS], dtype=np.int64)
        arrays[f"stream{n}"] = layer.stream
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as temporary:
            np.savez(temporary, **arrays)
        os.replace(temporary.name, path)
    except OSError:
        if temporary is not None:
            Path(temporary.name).unlink(missing_ok=True)

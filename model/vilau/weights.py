"""Weight files of one folder of a published checkpoint: safetensors or torch, in one file or in shards."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.checkpoint import CheckpointError

NAMES = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""Files that are looked for, the first one found is read."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its ``shape``, and ``read()``, which loads it."""

    file: Path
    shape: tuple[int, ...]
    read: Callable[[], Tensor]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Tensors of ``folder`` by name; nothing is loaded yet.

    Raises
    ------
    CheckpointError
        No weight file, a shard that is missing or damaged, an index that names what its shard lacks.
    """
    found = next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if found is None:
        raise CheckpointError(f"no weights in {folder}: one of {', '.join(NAMES)} is needed")
    if found.suffix != ".json":
        return _read_file(found)
    try:
        shard_of = json.loads(found.read_text())["weight_map"]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{found} is no index of weight files: {error!r}") from error
    missing = sorted({shard for shard in shard_of.values() if not (folder / shard).is_file()})
    if missing:
        raise CheckpointError(f"{found} names {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
                              "there; download the missing files")
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(set(shard_of.values())):
        tensors |= _read_file(folder / shard)
    lost = sorted(set(shard_of) - set(tensors))
    if lost:
        raise CheckpointError(f"{found} names tensors that its files lack: {', '.join(lost[:5])}"
                              f"{f' and {len(lost) - 5} more' if len(lost) > 5 else ''}; download the files again")
    return tensors


def _read_file(path: Path) -> dict[str, StoredTensor]:
    try:
        return _safetensors(path) if path.suffix == ".safetensors" else _torch_file(path)
    except CheckpointError:
        raise
    except Exception as error:  # safetensors, zip and torch raise several kinds, all meaning the same to the caller
        raise CheckpointError(f"{path} is damaged or no weight file: {error}") from error


def _safetensors(path: Path) -> dict[str, StoredTensor]:
    handle = safe_open(path, framework="pt")

    def reader(name: str) -> Callable[[], Tensor]:
        def read() -> Tensor:
            try:
                return handle.get_tensor(name)
            except SafetensorError as error:
                raise CheckpointError(f"{path}: {name} cannot be read: {error}") from error
        return read

    return {name: StoredTensor(path, tuple(handle.get_slice(name).get_shape()), reader(name))
            for name in handle.keys()}


def _torch_file(path: Path) -> dict[str, StoredTensor]:
    # weights_only: a published checkpoint is a stranger's file, and must not run code.
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{path} must hold tensors by name, as torch.save(model.state_dict()) writes them")
    return {name: StoredTensor(path, tuple(tensor.shape), tensor.clone) for name, tensor in state.items()}

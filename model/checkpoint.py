"""A trained model on disk: one JSON configuration and two safetensors files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from model.config import ModelConfig
from model.transformer import Transformer
from model.visual import VisualConfig, VisualTokenizer

CONFIG_FILE = "config.json"
VISUAL_CONFIG_FILE = "visual.json"
TRANSFORMER_FILE = "transformer.safetensors"
VISUAL_FILE = "visual.safetensors"

Module = TypeVar("Module", bound=nn.Module)


class CheckpointError(Exception):
    """A model folder that is missing, incomplete or does not fit its configuration."""


def default_dir() -> Path:
    """Folder of the model that is shipped with the project."""
    return Path(__file__).resolve().parent.parent / "weights"


def save_visual(folder: Path, visual: VisualTokenizer, dtype: torch.dtype = torch.float32) -> None:
    """Write the visual tokenizer into ``folder``, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / VISUAL_CONFIG_FILE).write_text(json.dumps(dataclasses.asdict(visual.config), indent=2) + "\n")
    _save_tensors(visual, folder / VISUAL_FILE, dtype)


def load_visual(folder: Path) -> VisualTokenizer:
    """The visual tokenizer in ``folder``, ready for inference. Raises :exc:`CheckpointError`."""
    visual = VisualTokenizer(VisualConfig(**json.loads(_existing(folder, VISUAL_CONFIG_FILE).read_text())))
    return _load_tensors(visual, _existing(folder, VISUAL_FILE))


def save(folder: Path, config: ModelConfig, transformer: Transformer, visual: VisualTokenizer,
         dtype: torch.dtype = torch.float32) -> None:
    """Write a whole model into ``folder``; ``dtype`` is that of the stored floating-point tensors."""
    folder = Path(folder)
    save_visual(folder, visual, dtype)
    (folder / CONFIG_FILE).write_text(config.to_json() + "\n")
    _save_tensors(transformer, folder / TRANSFORMER_FILE, dtype)


def load(folder: Path | None = None) -> tuple[ModelConfig, Transformer, VisualTokenizer]:
    """Read a model for inference: float32, gradients off. ``None`` is :func:`default_dir`.

    Raises
    ------
    CheckpointError
        A file is missing or does not fit the configuration.
    """
    folder = default_dir() if folder is None else Path(folder)
    try:
        config = ModelConfig.from_json(_existing(folder, CONFIG_FILE).read_text())
    except ValueError as error:
        raise CheckpointError(f"{folder / CONFIG_FILE}: {error}") from error
    transformer = _load_tensors(Transformer(config), _existing(folder, TRANSFORMER_FILE))
    return config, transformer, load_visual(folder)


def _existing(folder: Path, name: str) -> Path:
    path = Path(folder) / name
    if not path.is_file():
        raise CheckpointError(f"no model file {path}; name a folder that holds a trained model, "
                              "or train one with python -m model.train")
    return path


def _save_tensors(module: nn.Module, path: Path, dtype: torch.dtype) -> None:
    partial = path.with_suffix(".new")  # a training run rewrites the file while others read it
    save_file({name: tensor.detach().to(dtype).contiguous() for name, tensor in module.state_dict().items()}, partial)
    partial.replace(path)


def _load_tensors(module: Module, path: Path) -> Module:
    try:
        module.load_state_dict({name: tensor.float() for name, tensor in load_file(path).items()})
    except Exception as error:  # safetensors and torch raise several kinds, all meaning the same to the caller
        raise CheckpointError(f"{path} does not fit its configuration or is damaged: {error}") from error
    return module.eval().requires_grad_(False)

"""Finds the decoder of a Hugging Face model and says clearly when replay cannot work on it."""

from __future__ import annotations

import re
from typing import Any

import transformers
from torch import nn
from transformers import PreTrainedModel

from model.hf.errors import ReplayError

TESTED = ((4, 57), (5, 24))
"""First and last minor version of ``transformers`` that the tests were run with."""
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def check_version(version: str = transformers.__version__) -> None:
    """Raise :exc:`ReplayError` for a version of ``transformers`` outside the tested range."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not TESTED[0] <= numbers <= TESTED[1]:
        first, last = (".".join(map(str, bound)) for bound in TESTED)
        raise ReplayError(f"transformers {version} is outside the tested range {first} to {last}; "
                          f"pip install 'transformers>={first},<{TESTED[1][0]}.{TESTED[1][1] + 1}'")


def find_decoder(model: nn.Module) -> PreTrainedModel:
    """The one module of ``model`` with decoder layers. Raises :exc:`ReplayError` if there is not exactly one."""
    found = [module for module in model.modules() if isinstance(module, PreTrainedModel)
             and isinstance(layers := getattr(module, "layers", None), nn.ModuleList)
             and all(hasattr(layer, "self_attn") and hasattr(layer, "mlp") for layer in layers)]
    if len(found) != 1:
        raise ReplayError(f"{type(model).__name__} has {len(found)} decoders of layers with self_attn and mlp; replay "
                          "needs one, as in Llama, Mistral, Qwen2, Qwen3 or Emu3's text model; pass that submodule")
    decoder = found[0]
    if not getattr(decoder, "_supports_attention_backend", False):
        raise ReplayError(f"{type(decoder).__name__} does not choose its attention by the registry of transformers; "
                          "only decoders of the LLaMA family that do are supported")
    return decoder


def layers_of(decoder: PreTrainedModel) -> list[Any]:
    """The decoder layers of ``decoder``; each has ``self_attn`` and ``mlp``."""
    layers = decoder.layers
    assert isinstance(layers, nn.ModuleList)
    return list(layers)


def participating(decoder: PreTrainedModel, excluded: tuple[int, ...]) -> tuple[int, ...]:
    """Layers that replay. Raises :exc:`ReplayError` for a layer that cannot, or if none is left."""
    there = layers_of(decoder)
    layers = tuple(layer for layer in range(len(there)) if layer not in excluded)
    for layer in layers:
        mlp = there[layer].mlp
        if not all(hasattr(mlp, name) for name in PROJECTIONS):
            raise ReplayError(f"layer {layer} has a {type(mlp).__name__}, not a gated MLP with "
                              f"{', '.join(PROJECTIONS)}; put {layer} into exclude_layers")
    if not layers:
        raise ReplayError("exclude_layers leaves no layer to replay")
    return layers

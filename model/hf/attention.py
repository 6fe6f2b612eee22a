"""The registered attention functions: those of ``transformers``, with a look at query and key before.

Registered under names of their own, with the masks of the functions they wrap, so that no model code is touched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from model.hf.errors import ReplayError

PREFIX = "fastcar_replay_"
WRAPPED = ("sdpa", "eager")
SLOT = "_fastcar_replay"
"""Attribute under which a module finds its part of replay."""


def replay_attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                     **kwargs: object) -> tuple[Tensor, Tensor | None]:
    """The attention that was set before, after its layer has seen query and key (both after RoPE)."""
    found = module.__dict__.get(SLOT)
    if found is None:
        raise ReplayError(f"{type(module).__name__} was given a replaying attention without enable_replay; "
                          "call enable_replay(model, config), or set_attn_implementation('sdpa')")
    attention, layer = found
    if layer is not None:
        layer.observe(query, key, kwargs.get("sliding_window"))
    return attention(module, query, key, value, attention_mask, **kwargs)


def register() -> None:
    """Make the names known; once or many times."""
    for name in WRAPPED:
        AttentionInterface.register(PREFIX + name, replay_attention)
        AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])


def original(module: nn.Module, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """The attention function ``name`` of an attention ``module``. Raises :exc:`ReplayError` if there is none."""
    if name not in WRAPPED:
        raise ReplayError(f"the model uses {name!r} attention; replay works with {' and '.join(WRAPPED)}: "
                          f"call model.set_attn_implementation('{WRAPPED[0]}') first")
    if name != "eager":
        return ALL_ATTENTION_FUNCTIONS[name]
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise ReplayError(f"{type(module).__name__} does not choose its attention by the registry of transformers; "
                          "only decoders of the LLaMA family that do are supported")
    return eager

"""Tiny random models of every supported family, and runs over given tokens."""

import inspect

import numpy as np
import torch
from transformers import (
    DynamicCache,
    Emu3ForCausalLM,
    Emu3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "mistral": (MistralConfig, MistralForCausalLM),
            "qwen2": (Qwen2Config, Qwen2ForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM),
            "emu3": (Emu3TextConfig, Emu3ForCausalLM)}
VOCABULARY = 40
SEPARATOR = 39


def make(family="llama", attention="sdpa", **sizes):
    """A random model in evaluation mode; scores are spread widely, as weights are large."""
    config_type, model_type = FAMILIES[family]
    torch.manual_seed(5)
    settings = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
                "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "pad_token_id": 0,
                "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, **sizes}
    if family == "qwen3":
        settings["head_dim"] = 8
    model = model_type(config_type(**settings)).eval()
    model.set_attn_implementation(attention)
    return model


def tokens(rows, prelude, frames, per_frame, separators=1, seed=0):
    """Token ids ``[rows, ...]``: a prompt, then frames of random codes, each followed by separators."""
    rng = np.random.default_rng(seed)
    parts = [rng.integers(3, SEPARATOR, (rows, prelude))]
    for _ in range(frames):
        parts += [rng.integers(3, SEPARATOR, (rows, per_frame)), np.full((rows, separators), SEPARATOR)]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def cache_name(model):
    """What this version of transformers calls the cache."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def feed(model, ids, prelude, cache=None, **kwargs):
    """Logits of every single-token step ``[steps, rows, vocabulary]`` after one call with the prelude."""
    logits = []
    with torch.no_grad():
        given = {cache_name(model): DynamicCache() if cache is None else cache, "use_cache": True, **kwargs}
        model(input_ids=ids[:, :prelude], **given)
        for at in range(prelude, ids.shape[1]):
            out = model(input_ids=ids[:, at:at + 1], **given)
            logits.append(out.logits[:, -1].clone())
    return torch.stack(logits)


class MlpOutputs:
    """Records what hooks on the MLPs see: ``y`` of every single-token call, and the calls of their projections."""

    def __init__(self, model):
        layers = model.get_decoder().layers
        self.seen = [[] for _ in layers]
        self.evaluations = 0
        self._handles = [layer.mlp.register_forward_hook(self._output(number)) for number, layer in enumerate(layers)]
        self._handles += [layer.mlp.down_proj.register_forward_hook(self._evaluated) for layer in layers]

    def _output(self, layer):
        def hook(module, args, output):
            if output.shape[1] == 1:
                self.seen[layer].append(output[:, 0].clone())
        return hook

    def _evaluated(self, module, args, output):
        self.evaluations += output.shape[1] == 1

    def replayed(self, stride):
        """Bool ``[layers, steps, rows]``: outputs that equal those of one stride before."""
        y = torch.stack([torch.stack(layer) for layer in self.seen])
        same = torch.zeros(y.shape[:3], dtype=torch.bool)
        same[:, stride:] = (y[:, stride:] == y[:, :-stride]).all(-1)
        return same.numpy()

    def close(self):
        for handle in self._handles:
            handle.remove()

"""Attention, scores and replay against vectors made by the published code (../shared/reference, where it is there)."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from model.config import ModelConfig
from model.frames import FrameLayout
from model.gates import Decision, Rows, TasGate
from model.generate import Decoder
from model.replay import FloatMlp
from model.transformer import Transformer

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
NAMES = {"self_attn": "attention", "input_layernorm": "input_norm", "post_attention_layernorm": "post_norm"}


class RecordedGate:
    """Replays what a recorded run replayed: ``skip`` bool ``[layers, steps, rows]``."""

    name, needs_scores = "recorded", True

    def __init__(self, skip: np.ndarray):
        self.skip = torch.from_numpy(skip)

    def begin(self, config, rows):
        pass

    def decide(self, layer, step, x, scores):
        return Decision(eligible=step.eligible, compute=~self.skip[layer, step.number])

    def update(self, layer, step, x, computed):
        pass


def load(name: str):
    """Vectors, and a transformer with their weights whose logits are the final hidden states."""
    path = REFERENCE / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no reference vectors {path.name}")
    with np.load(path) as file:
        arrays = dict(file)
    sizes = json.loads(bytes(arrays["config_json"]))
    hidden, stride = sizes["hidden_size"], sizes["tokens_per_frame"]
    prelude = arrays["input/prefill_embeds"].shape[1]
    config = ModelConfig(
        hidden=hidden, intermediate=sizes["intermediate_size"], layers=sizes["num_hidden_layers"],
        heads=sizes["num_attention_heads"], codebook=hidden, window=len(arrays["input/decode_embeds"]) + 1,
        layout=FrameLayout(prelude=prelude, tokens_per_frame=stride, frames=2, stride=stride),
        rope_theta=sizes["rope_theta"], rms_eps=sizes["rms_norm_eps"])
    transformer = Transformer(config).requires_grad_(False)
    state = {"head.weight": torch.eye(hidden)}
    for key, value in arrays.items():
        if key.startswith("weights/"):
            words = key.removeprefix("weights/").removeprefix("layers.").split(".")
            prefix = "blocks." if words[0].isdigit() else ""
            state[prefix + ".".join(NAMES.get(word, word) for word in words)] = torch.from_numpy(value).float()
    missing, unexpected = transformer.load_state_dict(state, strict=False)
    assert not unexpected and all(key.startswith("embed") for key in missing)
    return arrays, transformer


def decode(arrays, transformer, gate):
    """Final hidden states ``[steps, rows, hidden]`` and mean scores ``[layers, steps, rows]``."""
    prefill = torch.from_numpy(arrays["input/prefill_embeds"]).float()
    inputs = torch.from_numpy(arrays["input/decode_embeds"]).float()
    transformer.embed_text = nn.Identity()
    transformer.embed_visual = lambda step, indices: inputs[step]
    scores = torch.full((transformer.config.layers, *inputs.shape[:2]), torch.nan)

    def observe(item):
        if item.step.eligible:
            scores[item.layer, item.step.number] = item.scores.mean(dim=1)

    rows = Rows(seeds=tuple(range(prefill.shape[0])), guided=False)
    decoder = Decoder(transformer, rows, gate, FloatMlp(transformer), observer=observe)
    decoder.prefill(prefill)
    return torch.stack([decoder.step(number, torch.tensor(number)) for number in range(len(inputs))]), scores


@pytest.mark.parametrize("name, run", [("llm_tpf16", "dense"), ("llm_tpf16", "replay20"), ("llm_tpf16", "replay80"),
                                       ("llm_tpf16", "all"), ("llm_tpf16", "perlayer"),
                                       ("llm_tpf16_longprompt", "replay50")])
def test_hidden_states_and_scores_under_recorded_replay(name, run):
    arrays, transformer = load(name)
    skip = arrays[f"run/{run}/skip"]
    hidden, scores = decode(arrays, transformer, RecordedGate(skip))
    np.testing.assert_allclose(hidden.numpy(), arrays[f"run/{run}/decode_hidden_final"], atol=1e-4)
    np.testing.assert_allclose(scores.numpy(), arrays[f"run/{run}/tas_eq5"], atol=1e-4)


def test_threshold_minus_infinity_is_their_run_that_replays_all():
    arrays, transformer = load("llm_tpf16")
    hidden, _ = decode(arrays, transformer, TasGate(-np.inf))
    np.testing.assert_allclose(hidden.numpy(), arrays["run/all/decode_hidden_final"], atol=1e-4)

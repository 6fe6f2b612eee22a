"""The LLaMA of VILA-U against a slow definition: whole sequences, no cache, no padding, explicit masks."""

import math

import pytest
import torch

from model.frames import FrameLayout
from model.gates import Rows
from model.vilau.llm import Llama, LlamaConfig, LlamaRun, published_name

CONFIG = LlamaConfig(hidden=32, intermediate=48, layers=2, heads=2, vocab=7, rope_factor=2.0)
STRIDE, STEPS, SEED = 4, 14, 5
PUBLISHED = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
             "rms_norm_eps": 1e-5}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(SEED)
    return Llama(CONFIG).requires_grad_(False)


def rotate(x, positions):
    """Definition of RoPE: pairs (i, i + d/2) of ``x`` ``[heads, n, d]`` as complex numbers, turned."""
    half = x.shape[-1] // 2
    turns = torch.outer(positions.double() / CONFIG.rope_factor,
                        CONFIG.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half))
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(turns), turns)
    return torch.cat((turned.real, turned.imag), dim=-1)


def slow(llama, embeds, prelude, window):
    """Hidden states ``[n, hidden]`` and, per layer, scores ``{variant: [steps]}`` of one row, in float64."""
    x, n = embeds.double(), len(embeds)
    position = torch.arange(n)
    distance = position[:, None] - position[None, :]
    mask = (distance >= 0) & ((distance < window) | (position[None, :] < prelude))
    scores = []
    for block in llama.blocks:
        normed = norm(x, block.input_norm)
        q, k, v = (apply(normed, proj).unflatten(-1, (CONFIG.heads, -1)).transpose(0, 1) for proj in (
            block.attention.q_proj, block.attention.k_proj, block.attention.v_proj))
        rq, rk = rotate(q, position), rotate(k, position)
        logits = (rq @ rk.transpose(1, 2) / math.sqrt(CONFIG.head_dim)).masked_fill(~mask, -torch.inf)
        x = x + apply((logits.softmax(-1) @ v).transpose(0, 1).flatten(1), block.attention.o_proj)
        first = prelude + STRIDE
        pairs = [(a[:, first:] * rk[:, prelude:n - STRIDE]).sum(-1).mean(0) / math.sqrt(CONFIG.head_dim)
                 for a in (q, rq)]
        scores.append(pairs)
        inner = norm(x, block.post_norm)
        gate = apply(inner, block.mlp.gate_proj)
        x = x + apply(gate * gate.sigmoid() * apply(inner, block.mlp.up_proj), block.mlp.down_proj)
    return norm(x, llama.norm), scores


def apply(x, linear):
    return x @ linear.weight.double().T


def norm(x, module):
    return x / (x.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight.double()


@pytest.mark.parametrize("window", [1, 3, STRIDE, STRIDE + 2, STEPS])
def test_steps_are_whole_sequences_for_every_window_and_padding(llama, window):
    generator = torch.Generator().manual_seed(SEED)
    lengths, prelude = [3, 5], 5
    prompts = torch.randn(2, prelude, CONFIG.hidden, generator=generator)
    steps = torch.randn(STEPS, 2, CONFIG.hidden, generator=generator)
    real = torch.tensor([[prelude - place <= length for place in range(prelude)] for length in lengths])
    seen = {}

    def observe(item):
        if item.aligned_key is not None:
            for number, query in enumerate((item.raw_query, item.query)):
                score = (query * item.aligned_key).sum(-1).mean(1) / math.sqrt(CONFIG.head_dim)
                seen.setdefault((item.layer, number), []).append(score)

    run = LlamaRun(llama, Rows(seeds=(0, 1), guided=False), FrameLayout(
        prelude=prelude, tokens_per_frame=STRIDE, frames=4, stride=STRIDE), window=window, observer=observe)
    last = run.prefill(prompts, real)[:, -1]
    hidden = torch.stack([last, *(run.step(number, steps[number]) for number in range(STEPS))], dim=1)
    for row, length in enumerate(lengths):
        whole = torch.cat((prompts[row, prelude - length:], steps[:, row]))
        expected, scores = slow(llama, whole, length, window)
        torch.testing.assert_close(hidden[row].double(), expected[length - 1:], atol=2e-5, rtol=0)
        for layer, pairs in enumerate(scores):
            for number, pair in enumerate(pairs):
                got = torch.stack(seen[layer, number])[:, row]
                torch.testing.assert_close(got.double(), pair, atol=2e-5, rtol=0)


def test_names_of_published_checkpoints():
    names = [published_name(name) for name in Llama(CONFIG).state_dict()]
    assert names[:2] == ["model.embed_tokens.weight", "model.layers.0.input_layernorm.weight"]
    assert "model.layers.1.self_attn.o_proj.weight" in names and "model.layers.0.mlp.up_proj.weight" in names
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize("fields, message", [
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "must be absent or linear"),
    ({"num_key_value_heads": 1}, "num_key_value_heads must be 2 in a LLaMA of VILA-U, not 1"),
    ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
    ({"attention_bias": True}, "attention_bias must be False"),
    ({"num_attention_heads": 3}, "heads must divide hidden = 32 into even widths, not 3"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_factor must be positive, not 0"),
])
def test_configurations_it_cannot_do_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_published(PUBLISHED | fields)


def test_missing_field_is_named():
    with pytest.raises(ValueError, match="lacks 'rms_norm_eps'"):
        LlamaConfig.from_published({key: value for key, value in PUBLISHED.items() if key != "rms_norm_eps"})


def test_published_rope_scaling_is_honoured():
    assert LlamaConfig.from_published(PUBLISHED | {"rope_scaling": {"type": "linear", "factor": 2}}).rope_factor == 2
    assert LlamaConfig.from_published(PUBLISHED).rope_factor == 1

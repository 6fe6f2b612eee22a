"""Attention with sinks and a window by its definition: keys are kept before RoPE, and every step rotates all anew."""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.transformer import Transformer


@dataclass
class Rollout:
    """``logits`` ``[steps + 1, codebook]``; ``scores`` (paper's) and ``computed`` per layer, one entry a visual step,
    scores of steps after frame 0 only."""

    logits: Tensor
    scores: list[list[float]]
    computed: list[list[bool]]


def turned(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """``x`` ``[n, heads, head_dim]`` rotated to ``positions`` ``[n]``."""
    half = x.shape[-1] // 2
    angles = positions.double()[:, None, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    spun = torch.complex(x[..., :half].double(), x[..., half:].double()) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((spun.real, spun.imag), dim=-1)


def slow_rollout(transformer: Transformer, text_ids: Tensor, codes: Tensor, window: int, positions: str,
                 threshold: float) -> Rollout:
    """Feed ``codes`` ``[steps]`` of one row after the prelude ``text_ids``; replay where the score reaches
    ``threshold``. Positions are places in the sequence, or in the list of what is kept (``"cache"``)."""
    config, layout = transformer.config, transformer.config.layout
    layers = config.layers
    keys, values, outputs = ([[] for _ in range(layers)] for _ in range(3))
    found = Rollout(torch.empty(0), [[] for _ in range(layers)], [[] for _ in range(layers)])
    logits = []
    for place in range(layout.prelude + len(codes)):
        step = place - layout.prelude
        if step < 0:
            x = transformer.embed_text(text_ids[place])
        else:
            x = transformer.embed_visual(codes[step], torch.tensor(step % layout.stride))
        kept = [j for j in range(place + 1) if j < layout.prelude or j > place - window]
        where = torch.arange(len(kept)) if positions == "cache" else torch.tensor(kept)
        for layer, block in enumerate(transformer.blocks):
            normed = block.input_norm(x)
            attention = block.attention
            query, key, value = (projection(normed).view(config.heads, -1)
                                 for projection in (attention.q_proj, attention.k_proj, attention.v_proj))
            keys[layer].append(key)
            values[layer].append(value)
            seen = turned(torch.stack([keys[layer][j] for j in kept]), where, config.rope_theta)
            asked = turned(query[None], where[-1:], config.rope_theta)
            weight = ((asked * seen).sum(-1) / config.head_dim ** 0.5).softmax(dim=0).float()
            mixed = (weight[..., None] * torch.stack([values[layer][j] for j in kept])).sum(dim=0)
            x = x + attention.o_proj(mixed.flatten())
            mlp_input = block.post_norm(x)
            replay = False
            if step >= layout.stride:
                # A score depends on the distance only, which is one stride whatever was evicted between.
                pair = turned(torch.stack((keys[layer][place - layout.stride], query)),
                              torch.tensor([0, layout.stride]), config.rope_theta)
                found.scores[layer].append(float((pair[0] * pair[1]).sum(-1).mean() / config.head_dim ** 0.5))
                replay = found.scores[layer][-1] >= threshold
            if step < 0:
                x = x + block.mlp(mlp_input)
                continue
            found.computed[layer].append(not replay)
            outputs[layer].append(outputs[layer][step - layout.stride] if replay else block.mlp(mlp_input))
            x = x + outputs[layer][-1]
        if step >= -1:
            logits.append(transformer.logits(x))
    found.logits = torch.stack(logits)
    return found

"""Replay the plainest way: one row and one token at a time, everything kept for ever, the MLP always evaluated."""

import numpy as np
import torch


def slow_replay(model, ids, prelude, stride, tau, cosine=False, limit=None):
    """Logits ``[steps, rows, vocabulary]`` and replay decisions bool ``[layers, steps, rows]``."""
    decoder = model.get_decoder()
    steps = ids.shape[1] - prelude
    logits = torch.zeros(steps, len(ids), model.config.vocab_size)
    masks = np.zeros((len(decoder.layers), steps, len(ids)), dtype=bool)
    with torch.no_grad():
        for row, sequence in enumerate(ids):
            memory = [{"k": [], "v": [], "y": {}, "age": {}} for _ in decoder.layers]
            for position, token in enumerate(sequence):
                x = decoder.embed_tokens(token)
                for number, (layer, kept) in enumerate(zip(decoder.layers, memory)):
                    x, replayed = _layer(decoder, layer, kept, x, position, position - prelude, stride, tau, cosine,
                                         limit)
                    if position >= prelude:
                        masks[number, position - prelude, row] = replayed
                if position >= prelude:
                    logits[position - prelude, row] = model.lm_head(decoder.norm(x))
    return logits, masks


def _layer(decoder, layer, kept, x, position, step, stride, tau, cosine, limit):
    attention = layer.self_attn
    width = attention.head_dim
    h = layer.input_layernorm(x)
    q, k, v = (projection(h).view(-1, width) for projection in (attention.q_proj, attention.k_proj, attention.v_proj))
    if hasattr(attention, "q_norm"):
        q, k = attention.q_norm(q), attention.k_norm(k)
    q, k = _rotate(decoder, q, position), _rotate(decoder, k, position)
    kept["k"].append(k)
    kept["v"].append(v)
    group = len(q) // len(k)
    scores, mixed = [], []
    for head in range(len(q)):
        keys = torch.stack([old[head // group] for old in kept["k"]])
        values = torch.stack([old[head // group] for old in kept["v"]])
        products = keys @ q[head]
        mixed.append(torch.softmax(products / width ** 0.5, 0) @ values)
        if step >= stride:
            product = products[position - stride]
            norm = keys[position - stride].norm() * q[head].norm() if cosine else width ** 0.5
            scores.append(float(product / norm))
    x = x + attention.o_proj(torch.cat(mixed))
    y = layer.mlp(layer.post_attention_layernorm(x))
    replayed = step >= stride and np.mean(scores) >= tau
    if limit is not None and replayed:
        replayed = kept["age"][step - stride] < limit
    if replayed:
        y = kept["y"][step - stride]
    kept["age"][step] = kept["age"][step - stride] + 1 if replayed else 0
    kept["y"][step] = y
    return x + y, replayed


def _rotate(decoder, heads, position):
    width = heads.shape[-1]
    theta = decoder.config.to_dict().get("rope_theta") or decoder.config.rope_parameters["rope_theta"]
    angles = position / theta ** (torch.arange(0, width, 2) / width)
    first, second = heads[:, :width // 2], heads[:, width // 2:]
    return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], 1)

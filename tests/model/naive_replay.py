"""Replay by its definition, for one row, with everything kept for ever: no ring, no window of memory, no batch."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from model.transformer import Transformer, rope_tables


@dataclass
class History:
    """Of one layer: rotated keys, values; per visual step score, MLP input and output, whether it computed,
    and the step whose input made the value in use."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    computed: list[bool] = field(default_factory=list)
    source: list[int] = field(default_factory=list)


def naive_rollout(transformer: Transformer, text_ids: Tensor, codes: Tensor, gate: str,
                  threshold: float) -> tuple[list[History], Tensor]:
    """Feed ``codes`` ``[steps]`` of one row under ``gate`` ("tas" or "change").

    Returns the history of each layer, and logits ``[steps + 1, codebook]``.
    """
    config, layout = transformer.config, transformer.config.layout
    histories = [History() for _ in transformer.blocks]
    logits = []
    for position in range(layout.prelude + len(codes)):
        step = position - layout.prelude
        if step < 0:
            x = transformer.embed_text(text_ids[position])
        else:
            x = transformer.embed_visual(codes[step], torch.tensor(step % layout.stride))
        cos, sin = rope_tables(torch.tensor(position), config)
        for history, block in zip(histories, transformer.blocks):
            normed = block.input_norm(x)
            q, k, v = (projection(normed).view(config.heads, -1) for projection in
                       (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj))
            q, k = (torch.complex(*half.chunk(2, dim=-1)) * torch.complex(cos, sin) for half in (q, k))
            history.keys.append(k)
            history.values.append(v)
            seen = [j for j in range(position + 1) if j < layout.prelude or position - j < config.window]
            logit = torch.stack([(q.conj() * history.keys[j]).real.sum(-1) for j in seen]) / config.head_dim ** 0.5
            weight = logit.softmax(dim=0)
            x = x + block.attention.o_proj(sum(weight[n, :, None] * history.values[j]
                                               for n, j in enumerate(seen)).flatten())
            mlp_input = block.post_norm(x)
            if step < 0:
                x = x + block.mlp(mlp_input)
                continue
            replay = False
            if step >= layout.stride:
                aligned = history.keys[position - layout.stride]
                history.scores.append(float((q.conj() * aligned).real.sum(-1).mean() / config.head_dim ** 0.5))
                reference = history.inputs[history.source[step - layout.stride]]
                history.changes.append(float((mlp_input - reference).norm() / mlp_input.norm()))
                replay = history.scores[-1] >= threshold if gate == "tas" else history.changes[-1] <= threshold
            history.inputs.append(mlp_input)
            history.computed.append(not replay)
            history.source.append(history.source[step - layout.stride] if replay else step)
            history.outputs.append(history.outputs[step - layout.stride] if replay else block.mlp(mlp_input))
            x = x + history.outputs[-1]
        if step >= -1:
            logits.append(transformer.logits(x))
    return histories, torch.stack(logits)

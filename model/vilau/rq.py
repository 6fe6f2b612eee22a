"""Depth transformer: from one hidden state to the residual codes of one visual token, depth after depth.

Module names are those of VILA-U checkpoints. Source: RQ-Transformer (arXiv:2203.01941); VILA-U (arXiv:2409.04429).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.vilau.config import VisionConfig


class Attention(nn.Module):
    """Causal multi-head attention over depth, with biases."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.key = nn.Linear(width, width)
        self.query = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for proj in (self.query, self.key, self.value))
        return self.proj(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Pre-norm attention and an MLP four times as wide."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.ln1 = nn.LayerNorm(width)
        self.ln2 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Stack(nn.Module):
    """The blocks."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config.depth_hidden, config.depth_heads) for _ in range(config.depth_layers))


class Classifier(nn.Module):
    """Final norm and logits."""

    def __init__(self, width: int, codes: int):
        super().__init__()
        self.layer_norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, codes)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.layer_norm(x))


class DepthTransformer(nn.Module):
    """Predicts the code of each depth from the hidden state of a step and the codes of the depths before.

    The sequence is the projected hidden state, then the projected sums of the first 1, 2, ... code embeddings.
    """

    def __init__(self, config: VisionConfig, hidden: int):
        super().__init__()
        self.pos_emb_d = nn.Parameter(torch.empty(1, config.depth, config.depth_hidden))
        self.in_mlp_1 = nn.Linear(config.embed, config.depth_hidden)
        self.in_mlp_2 = nn.Linear(hidden, config.depth_hidden)
        self.head_transformer = Stack(config)
        self.classifier_mlp = Classifier(config.depth_hidden, config.codebook)

    def begin(self, hidden: Tensor) -> Tensor:
        """Sequence ``[rows, 1, width]`` that predicts depth 0, of hidden states ``[rows, hidden]``."""
        return self.in_mlp_2(hidden)[:, None]

    def extend(self, sequence: Tensor, embedding: Tensor) -> Tensor:
        """``sequence`` one longer by the sum of embeddings so far, ``[rows, embed]``."""
        return torch.cat((sequence, self.in_mlp_1(embedding)[:, None]), dim=1)

    def logits(self, sequence: Tensor) -> Tensor:
        """Logits ``[rows, codes]`` of depth d from a ``sequence`` ``[rows, d + 1, width]``."""
        x = sequence + self.pos_emb_d[:, :sequence.shape[1]]
        for block in self.head_transformer.blocks:
            x = block(x)
        return self.classifier_mlp(x[:, -1])

"""SigLIP: the image encoder whose features VILA-U quantises. Module names are those of its checkpoints.

Source: SigLIP (arXiv:2303.15343) as published; VILA-U (arXiv:2409.04429) takes the features before the last layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.vilau.config import EncoderConfig, SiglipConfig

NORM_EPS = 1e-6


class Attention(nn.Module):
    """Multi-head attention of all positions with each other, with biases."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.heads = config.heads
        self.k_proj = nn.Linear(config.hidden, config.hidden)
        self.v_proj = nn.Linear(config.hidden, config.hidden)
        self.q_proj = nn.Linear(config.hidden, config.hidden)
        self.out_proj = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        return self.out_proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """``fc2(gelu(fc1(x)))`` with the tanh form of GELU."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.hidden, config.intermediate)
        self.fc2 = nn.Linear(config.intermediate, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class Layer(nn.Module):
    """One pre-norm encoder layer."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.self_attn = Attention(config)
        self.layer_norm1 = nn.LayerNorm(config.hidden, eps=NORM_EPS)
        self.mlp = Mlp(config)
        self.layer_norm2 = nn.LayerNorm(config.hidden, eps=NORM_EPS)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class Encoder(nn.Module):
    """The layers of one encoder."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))


class VisionEmbeddings(nn.Module):
    """Patches of an image in raster order, projected, plus their positions."""

    def __init__(self, config: SiglipConfig):
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, config.vision.hidden, config.patch, stride=config.patch)
        self.position_embedding = nn.Embedding(config.vision.positions, config.vision.hidden)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.patch_embedding(pixels).flatten(2).transpose(1, 2) + self.position_embedding.weight


class PoolingHead(nn.Module):
    """Attention pooling; stored, not used here."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, config.hidden))
        self.attention = nn.MultiheadAttention(config.hidden, config.heads, batch_first=True)
        self.layernorm = nn.LayerNorm(config.hidden, eps=NORM_EPS)
        self.mlp = Mlp(config)


class VisionModel(nn.Module):
    """Image encoder."""

    def __init__(self, config: SiglipConfig):
        super().__init__()
        self.embeddings = VisionEmbeddings(config)
        self.encoder = Encoder(config.vision)
        self.post_layernorm = nn.LayerNorm(config.vision.hidden, eps=NORM_EPS)
        self.head = PoolingHead(config.vision)

    def features(self, pixels: Tensor) -> Tensor:
        """Features ``[n, patches, hidden]`` of ``pixels`` ``[n, 3, h, w]`` in -1..1: before the last layer."""
        x = self.embeddings(pixels)
        for layer in self.encoder.layers[:-1]:
            x = layer(x)
        return x


class TextEmbeddings(nn.Module):
    """Token and position tables."""

    def __init__(self, config: SiglipConfig):
        super().__init__()
        self.token_embedding = nn.Embedding(config.text_vocab, config.text.hidden)
        self.position_embedding = nn.Embedding(config.text.positions, config.text.hidden)


class TextModel(nn.Module):
    """Text encoder; stored, not used here."""

    def __init__(self, config: SiglipConfig):
        super().__init__()
        self.embeddings = TextEmbeddings(config)
        self.encoder = Encoder(config.text)
        self.final_layer_norm = nn.LayerNorm(config.text.hidden, eps=NORM_EPS)
        self.head = nn.Linear(config.text.hidden, config.text.hidden)


class SiglipModel(nn.Module):
    """Both encoders, with the scale and offset of their similarity."""

    def __init__(self, config: SiglipConfig):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.empty(1))
        self.logit_bias = nn.Parameter(torch.empty(1))
        self.text_model = TextModel(config)
        self.vision_model = VisionModel(config)

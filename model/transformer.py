"""Decoder-only transformer over text tokens and raster-order visual codes.

LLaMA style: RMSNorm before each half layer, rotary positions, multi-head attention, SwiGLU, no biases. A query
attends to the whole prelude (attention sinks, as in StreamingLLM) and to the last ``window`` visual steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import LayerSizes, ModelConfig


def rope_tables(positions: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, each float32 ``[*positions.shape, head_dim / 2]``.

    Angles are computed in float64, so that a table does not depend on how far the sequence has gone.
    """
    half = config.head_dim // 2
    rates = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = positions.to(torch.float64)[..., None] * rates
    return angles.cos().float(), angles.sin().float()


def apply_rope(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate ``x`` ``[..., heads, steps, head_dim]`` by ``tables`` that broadcast to half its last dimension.

    Element i is paired with element i + head_dim / 2, the LLaMA convention.
    """
    cos, sin = tables
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def window_mask(prelude: int, steps: int, window: int) -> Tensor:
    """Attention mask bool ``[prelude + steps, prelude + steps]``, true where the query (row) sees the key (column)."""
    position = torch.arange(prelude + steps)
    distance = position[:, None] - position[None, :]
    return (distance >= 0) & ((distance < window) | (position[None, :] < prelude))


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Multi-head attention with rotary positions, scores divided by the root of the head width."""

    def __init__(self, config: LayerSizes):
        super().__init__()
        self.heads = config.heads
        self.q_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.k_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.v_proj = nn.Linear(config.hidden, config.hidden, bias=False)
        self.o_proj = nn.Linear(config.hidden, config.hidden, bias=False)

    def project_raw(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of ``x`` ``[B, n, hidden]`` before rotation, each ``[B, heads, n, head_dim]``."""
        q, k, v = (proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        return q, k, v

    def project(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys (both rotated) and values of ``x`` ``[B, n, hidden]``, each ``[B, heads, n, head_dim]``."""
        q, k, v = self.project_raw(x)
        return apply_rope(q, tables), apply_rope(k, tables), v

    def combine(self, heads: Tensor) -> Tensor:
        """Output projection ``[B, n, hidden]`` of attended values ``[B, heads, n, head_dim]``."""
        return self.o_proj(heads.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        q, k, v = self.project(x, tables)
        return self.combine(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))


class SwiGLU(nn.Module):
    """``down(silu(gate(x)) * up(x))``."""

    def __init__(self, config: LayerSizes):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: LayerSizes):
        super().__init__()
        self.input_norm = RMSNorm(config.hidden, config.rms_eps)
        self.attention = Attention(config)
        self.post_norm = RMSNorm(config.hidden, config.rms_eps)
        self.mlp = SwiGLU(config)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x), tables, mask)
        return x + self.mlp(self.post_norm(x))


class Transformer(nn.Module):
    """The video model: hidden states of a step predict the code of the next one.

    Embeddings: ``embed_text`` of the prelude; for a visual step ``embed_code`` of its code (one extra row, the
    separator, where the layout has separators) plus ``embed_index`` of its raster index.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        layout = config.layout
        self.embed_text = nn.Embedding(config.text_vocab, config.hidden)
        self.embed_code = nn.Embedding(config.codebook + (layout.separators > 0), config.hidden)
        self.embed_index = nn.Embedding(layout.stride, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.hidden, config.rms_eps)
        self.head = nn.Linear(config.hidden, config.codebook, bias=False)
        self._initialise()

    def _initialise(self) -> None:
        """Small normal weights; what adds to the residual stream is scaled down by the number of additions."""
        residual = (2 * self.config.layers) ** -0.5
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            std = 0.02 if "embed" in name else parameter.shape[1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                std *= residual
            nn.init.normal_(parameter, std=std)

    def embed_visual(self, codes: Tensor, indices: Tensor) -> Tensor:
        """Embedding ``[..., hidden]`` of ``codes`` int64 ``[...]`` at raster ``indices`` that broadcast to them."""
        return self.embed_code(codes) + self.embed_index(indices)

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``[..., codebook]`` of the code after each hidden state ``[..., hidden]``."""
        return self.head(self.norm(x))

    def forward(self, text_ids: Tensor, codes: Tensor, frame_offset: Tensor | int = 0) -> Tensor:
        """Logits of a clip that starts at a frame boundary.

        Parameters
        ----------
        text_ids : int64 ``[B, prelude]``
        codes : int64 ``[B, n]``
            Codes fed, separators included, n may be 0.
        frame_offset : int64 ``[B]`` or :class:`int`
            Frame that the clip starts with. The frames between prelude and clip are out of sight.

        Returns
        -------
        float ``[B, n + 1, codebook]``
            Logits of visual steps 0 to n of the clip.
        """
        layout = self.config.layout
        steps = codes.shape[1]
        device = text_ids.device
        offset = torch.as_tensor(frame_offset, device=device).reshape(-1, 1) * layout.stride
        step = torch.arange(steps, device=device)
        before = torch.arange(layout.prelude, device=device).expand(offset.shape[0], -1)
        positions = torch.cat((before, layout.prelude + offset + step), dim=1)
        tables = tuple(table[:, None] for table in rope_tables(positions, self.config))
        mask = window_mask(layout.prelude, steps, self.config.window).to(device)
        x = torch.cat((self.embed_text(text_ids), self.embed_visual(codes, step % layout.stride)), dim=1)
        for block in self.blocks:
            x = block(x, tables, mask)
        return self.logits(x[:, layout.prelude - 1:])

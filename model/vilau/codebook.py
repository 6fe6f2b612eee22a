"""Residual quantisation: a vector as the sum of one embedding per depth.

Source: RQ-VAE (arXiv:2203.01941); VILA-U (arXiv:2409.04429).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from model.vilau.config import VisionConfig


class Codebook(nn.Module):
    """Embeddings of one depth, ``[codes + 1, embed]``; the last row is padding. Training statistics are stored too."""

    weight: nn.Parameter

    def __init__(self, codes: int, embed: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(codes + 1, embed))
        self.register_buffer("cluster_size_ema", torch.empty(codes))
        self.register_buffer("embed_ema", torch.empty(codes, embed))

    def forward(self, codes: Tensor) -> Tensor:
        """Embeddings ``[..., embed]`` of ``codes`` int64 ``[...]``."""
        return self.weight[codes]

    def nearest(self, x: Tensor) -> Tensor:
        """Code int64 ``[n]`` whose embedding is nearest to each row of ``x`` ``[n, embed]``."""
        table = self.weight[:-1]
        return ((x ** 2).sum(dim=1, keepdim=True) + (table ** 2).sum(dim=1) - 2 * x @ table.T).argmin(dim=1)


class ResidualQuantizer(nn.Module):
    """One codebook per depth, or one for all."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        books = [Codebook(config.codebook, config.embed) for _ in range(1 if config.shared else config.depth)]
        self.codebooks = nn.ModuleList(books * config.depth if config.shared else books)

    def embed(self, codes: Tensor) -> Tensor:
        """Sum of embeddings ``[..., embed]`` of ``codes`` int64 ``[..., depth]``."""
        total = self.codebooks[0](codes[..., 0])
        for depth, book in enumerate(self.codebooks):
            if depth:
                total = total + book(codes[..., depth])
        return total

    def encode(self, x: Tensor) -> Tensor:
        """Codes int64 ``[n, depth]`` of ``x`` ``[n, embed]``: each depth takes the nearest to what is left."""
        codes: list[Tensor] = []
        for module in self.codebooks:
            book = cast(Codebook, module)
            codes.append(book.nearest(x))
            x = x - book(codes[-1])
        return torch.stack(codes, dim=-1)

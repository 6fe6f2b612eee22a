"""Visual tokenizer: 8x8-pixel patches to codes of a learned codebook and back (VQ-VAE, van den Oord et al. 2017).

The encoder sees one patch only, so that a code means the same wherever it stands and rolling a picture by
8 pixels rolls its codes. The decoder looks at neighbouring codes, wrapping around at the edges as the world does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class VisualConfig:
    """Sizes of :class:`VisualTokenizer`.

    Parameters
    ----------
    codebook : :class:`int`
        Number of codes.
    code_dim, width : :class:`int`
        Width of a code vector and of the hidden layers.
    context_layers : :class:`int`
        3x3 convolutions of the decoder: how many codes away it looks.
    patch : :class:`int`
        Side of a patch, in pixels.
    """

    codebook: int = 2048
    code_dim: int = 32
    width: int = 128
    context_layers: int = 2
    patch: int = 8

    def __post_init__(self) -> None:
        for name in ("codebook", "code_dim", "width", "patch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)!r}")
        if self.context_layers < 0:
            raise ValueError(f"context_layers must be at least 0, not {self.context_layers!r}")


class ContextLayer(nn.Module):
    """Residual 3x3 convolution over the code grid, wrapping around at the edges."""

    def __init__(self, width: int):
        super().__init__()
        self.around = nn.Conv2d(width, width, 3, padding=1, padding_mode="circular")
        self.mix = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(functional.silu(self.around(functional.silu(x))))


class VisualTokenizer(nn.Module):
    """Encoder, codebook and decoder."""

    def __init__(self, config: VisualConfig):
        super().__init__()
        self.config = config
        pixels = 3 * config.patch ** 2
        self.encoder = nn.Sequential(
            nn.Conv2d(3, config.width, config.patch, stride=config.patch), nn.SiLU(),
            nn.Conv2d(config.width, config.width, 1), nn.SiLU(),
            nn.Conv2d(config.width, config.code_dim, 1))
        self.codebook = nn.Parameter(torch.randn(config.codebook, config.code_dim))
        self.decoder = nn.Sequential(
            nn.Conv2d(config.code_dim, config.width, 1),
            *(ContextLayer(config.width) for _ in range(config.context_layers)),
            nn.SiLU(), nn.Conv2d(config.width, pixels, 1), nn.PixelShuffle(config.patch))

    def latents(self, pictures: Tensor) -> Tensor:
        """Encoder output ``[n, code_dim, h, w]`` of pictures in [0, 1], float ``[n, 3, h * patch, w * patch]``."""
        return self.encoder(pictures * 2 - 1)

    def nearest(self, latents: Tensor) -> Tensor:
        """Codes int64 ``[...]`` nearest to ``latents`` ``[..., code_dim]`` in Euclidean distance."""
        return (latents @ self.codebook.T - self.codebook.square().sum(1) / 2).argmax(dim=-1)

    def pictures(self, latents: Tensor) -> Tensor:
        """Decoder output, about [0, 1], float ``[n, 3, h * patch, w * patch]``, of ``[n, code_dim, h, w]``."""
        return self.decoder(latents)

    @torch.no_grad()
    def encode(self, frames: np.ndarray) -> Tensor:
        """Codes int64 ``[n, h * w]`` in raster order of frames uint8 ``[n, h * patch, w * patch, 3]``."""
        if frames.ndim != 4 or frames.shape[3] != 3 or any(side % self.config.patch for side in frames.shape[1:3]):
            raise ValueError(f"frames must be [n, height, width, 3] with sides that are multiples of "
                             f"{self.config.patch}, not {list(frames.shape)}")
        pictures = torch.as_tensor(np.ascontiguousarray(frames)).permute(0, 3, 1, 2).float() / 255
        return self.nearest(self.latents(pictures).permute(0, 2, 3, 1)).flatten(1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> np.ndarray:
        """Frames uint8 ``[n, side * patch, side * patch, 3]`` of codes int64 ``[n, side * side]`` in raster order."""
        side = round(codes.shape[-1] ** 0.5)
        if codes.dim() != 2 or side * side != codes.shape[1]:
            raise ValueError(f"codes must be [n, side * side], not {list(codes.shape)}")
        latents = self.codebook[codes].unflatten(1, (side, side)).permute(0, 3, 1, 2)
        pictures = (self.pictures(latents) * 255).round().clamp(0, 255).to(torch.uint8)
        return pictures.permute(0, 2, 3, 1).contiguous().numpy()

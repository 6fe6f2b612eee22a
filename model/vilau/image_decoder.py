"""The convolutional decoder from quantised features to pixels. Module names are those of VILA-U checkpoints.

Source: VQGAN (arXiv:2012.09841), the decoder; VILA-U (arXiv:2409.04429).
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from model.vilau.config import DecoderConfig


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut, which is a 1x1 convolution where the number of channels changes."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.norm1, self.conv1 = _norm(inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = _norm(outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        if inputs != outputs:
            self.nin_shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        y = self.conv2(functional.silu(self.norm2(y)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + y


class SpatialAttention(nn.Module):
    """One head of attention over all positions of a feature map."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = _norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (conv(y).flatten(2).transpose(1, 2) for conv in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return x + self.proj_out(y)


class Middle(nn.Module):
    """The lowest resolution: always with attention."""

    def __init__(self, channels: int):
        super().__init__()
        self.block_1 = ResidualBlock(channels, channels)
        self.attn_1 = SpatialAttention(channels)
        self.block_2 = ResidualBlock(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.block_2(self.attn_1(self.block_1(x)))


class Upsample(nn.Module):
    """Twice the size by repetition, then a convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """One resolution: residual blocks, each followed by attention where the resolution has it."""

    def __init__(self, inputs: int, outputs: int, blocks: int, attention: bool, upsample: bool):
        super().__init__()
        self.block = nn.ModuleList(ResidualBlock(outputs if index else inputs, outputs) for index in range(blocks))
        self.attn = nn.ModuleList(SpatialAttention(outputs) for _ in range(blocks if attention else 0))
        if upsample:
            self.upsample = Upsample(outputs)

    def forward(self, x: Tensor) -> Tensor:
        for index, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[index](x)
        return self.upsample(x) if hasattr(self, "upsample") else x


class ImageDecoder(nn.Module):
    """Feature map ``[n, z_channels, rows, columns]`` to image ``[n, out_ch, h, w]``, nominally in -1..1.

    Level 0 is the full resolution; every other level doubles the size.
    """

    def __init__(self, config: DecoderConfig):
        super().__init__()
        widths = [config.ch * factor for factor in config.ch_mult]
        self.conv_in = nn.Conv2d(config.z_channels, widths[-1], 3, padding=1)
        self.mid = Middle(widths[-1])
        self.up = nn.ModuleList(
            Level(widths[min(level + 1, len(widths) - 1)], width, config.num_res_blocks + 1,
                  attention=config.resolution // 2 ** level in config.attn_resolutions, upsample=level > 0)
            for level, width in enumerate(widths))
        self.norm_out = _norm(widths[0])
        self.conv_out = nn.Conv2d(widths[0], config.out_ch, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        x = self.mid(self.conv_in(features))
        for level in reversed(self.up):
            x = cast(Level, level)(x)
        return self.conv_out(functional.silu(self.norm_out(x)))

"""A whole VILA-U model: decoder, vision tower, projector. Modules are named as in its checkpoints, but the LLaMA's."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.vilau.codebook import ResidualQuantizer
from model.vilau.config import VilaConfig, VisionConfig
from model.vilau.image_decoder import ImageDecoder
from model.vilau.llm import Llama
from model.vilau.rq import DepthTransformer
from model.vilau.siglip import SiglipModel


class ImageTokenizer(nn.Module):
    """Images to residual codes and back."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.config = config
        self.siglip_model = SiglipModel(config.siglip)
        self.logit_scale, self.logit_bias = self.siglip_model.logit_scale, self.siglip_model.logit_bias
        self.quantizer = ResidualQuantizer(config)
        self.post_quant_conv = nn.Conv2d(config.embed, config.decoder.z_channels, 1)
        self.decoder = ImageDecoder(config.decoder)

    def encode(self, pixels: Tensor) -> Tensor:
        """Codes int64 ``[n, rows, columns, depth]`` of ``pixels`` ``[n, 3, h, w]`` in -1..1."""
        features = self.siglip_model.vision_model.features(pixels)
        codes = self.quantizer.encode(features.flatten(0, 1))
        return codes.reshape(len(pixels), *self.config.grid, self.config.depth)

    def decode(self, codes: Tensor) -> Tensor:
        """Images ``[n, 3, h, w]``, nominally in -1..1, of ``codes`` int64 ``[n, rows, columns, depth]``."""
        features = self.quantizer.embed(codes).permute(0, 3, 1, 2)
        if self.config.latent is not None:
            resized = functional.interpolate(features.float(), size=self.config.latent, mode="bilinear")
            features = resized.to(features.dtype)
        return self.decoder(self.post_quant_conv(features))


class VisionTower(nn.Module):
    """Image tokenizer and depth transformer."""

    def __init__(self, config: VisionConfig, hidden: int):
        super().__init__()
        self.rqvaesiglip = ImageTokenizer(config)
        self.rqtransformer = DepthTransformer(config, hidden)


class Projector(nn.Module):
    """From code embeddings to inputs of the LLaMA."""

    def __init__(self, embed: int, hidden: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(embed, hidden), nn.GELU(), nn.Linear(hidden, hidden))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class VilaU(nn.Module):
    """Text to video: see :func:`model.vilau.generate.generate`."""

    def __init__(self, config: VilaConfig):
        super().__init__()
        self.config = config
        self.llm = Llama(config.llm)
        self.vision_tower = VisionTower(config.vision, config.llm.hidden)
        self.mm_projector = Projector(config.vision.embed, config.llm.hidden)

    def visual_input(self, codes: Tensor) -> Tensor:
        """LLaMA inputs ``[..., hidden]`` of visual tokens ``codes`` int64 ``[..., depth]``."""
        return self.mm_projector(self.vision_tower.rqvaesiglip.quantizer.embed(codes))

    @torch.inference_mode()
    def frames(self, codes: Tensor) -> Tensor:
        """Frames float32 ``[..., 3, h, w]`` in 0..255 of ``codes`` int64 ``[..., tokens_per_frame, depth]``."""
        tokenizer = self.vision_tower.rqvaesiglip
        if not codes.numel():
            return torch.zeros(*codes.shape[:-2], self.config.vision.decoder.out_ch, *self.config.vision.picture)
        grids = codes.reshape(-1, *self.config.vision.grid, self.config.vision.depth).to(self.llm.norm.weight.device)
        # One frame at a time: at full size the decoder's activations are the largest of all.
        images = torch.cat([tokenizer.decode(grid[None]) for grid in grids])
        pixels = ((images.float() + 1) * 127.5).clamp(0, 255).cpu()
        return pixels.reshape(*codes.shape[:-2], *pixels.shape[1:])

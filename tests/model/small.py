"""Small random models for tests."""

import dataclasses

import torch

from model.config import PRESETS, ModelConfig, Sampling
from model.frames import FrameLayout
from model.transformer import Transformer

PROMPTS = ["a red circle moves right", "a small blue square moves left fast", "a white triangle moves up",
           "a large green circle moves down slowly on a red background"]
SEPARATED = dataclasses.replace(PRESETS["tiny"], window=40,
                                layout=FrameLayout(prelude=16, tokens_per_frame=16, frames=3, stride=18))
"""The tiny model with two separators a frame, and a window that is no multiple of the stride."""


def random_model(config: ModelConfig = PRESETS["tiny"], seed: int = 0) -> Transformer:
    """An untrained transformer with embeddings large enough that steps differ, guided and drawn from all codes."""
    torch.manual_seed(seed)
    config = dataclasses.replace(config, sampling=Sampling(cfg_scale=1.5, temperature=1.0, top_k=config.codebook))
    transformer = Transformer(config)
    with torch.no_grad():
        for embedding in (transformer.embed_text, transformer.embed_code, transformer.embed_index):
            embedding.weight.mul_(20)
    return transformer.eval().requires_grad_(False)

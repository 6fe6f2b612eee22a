"""Training of the visual tokenizer on every still picture of the world."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model import world
from model.visual import VisualConfig, VisualTokenizer

CROP = 40
"""Side of training pictures, in pixels: the smallest multiple of the patch that holds a large object anywhere."""


@dataclass(frozen=True, kw_only=True)
class VisualTraining:
    """Settings of :func:`train`.

    Parameters
    ----------
    epochs, warmup_epochs : :class:`int`
        Passes over all stills, and how many of them, at the start, do not quantise.
    batch : :class:`int`
        Stills per step.
    rate : :class:`float`
        Peak learning rate of AdamW; it falls to zero along a half cosine.
    commitment : :class:`float`
        Weight of the distance between latents and their codes in the loss.
    decay : :class:`float`
        Of the moving averages that the codes follow.
    """

    epochs: int = 44
    warmup_epochs: int = 3
    batch: int = 30
    rate: float = 2e-3
    commitment: float = 0.25
    decay: float = 0.97
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.warmup_epochs < self.epochs:
            raise ValueError(f"warmup_epochs must be in 1..{self.epochs - 1}, not {self.warmup_epochs!r}")


def stills(patch: int = 8) -> np.ndarray:
    """Every distinct picture of the world up to rolls by a patch, uint8 ``[n, 40, 40, 3]``."""
    phases = range(0, patch, world.GRID)
    return np.stack([world.render_still(scene, x, y, CROP) for scene in world.all_scenes()
                     if scene.direction == "left" and scene.speed == "" for y in phases for x in phases])


class MovingCodebook:
    """Codes that follow the mean of the latents assigned to them; unused ones move onto badly coded latents."""

    def __init__(self, tokenizer: VisualTokenizer, latents: Tensor, decay: float, generator: torch.Generator):
        self.tokenizer, self.decay, self.generator = tokenizer, decay, generator
        distinct = torch.unique(latents.round(decimals=3), dim=0)
        chosen = torch.randperm(len(distinct), generator=generator)[:tokenizer.config.codebook]
        with torch.no_grad():
            tokenizer.codebook[:len(chosen)] = distinct[chosen]
        self.counts = torch.ones(tokenizer.config.codebook)
        self.sums = tokenizer.codebook.detach().clone()

    @torch.no_grad()
    def update(self, latents: Tensor, codes: Tensor) -> None:
        """Move the codes towards ``latents`` ``[n, code_dim]``, assigned to ``codes`` ``[n]``."""
        counts = torch.bincount(codes, minlength=len(self.counts)).float()
        sums = torch.zeros_like(self.sums).index_add_(0, codes, latents)
        # Roots keep the plain background, nine patches in ten, from being remembered for ever and the rest forgotten.
        weight = counts.sqrt() / counts.clamp(min=1)
        self.counts.lerp_(counts * weight, 1 - self.decay)
        self.sums.lerp_(sums * weight[:, None], 1 - self.decay)
        live = self.counts > 1e-3
        self.tokenizer.codebook[live] = self.sums[live] / self.counts[live, None]

    @torch.no_grad()
    def restart(self, latents: Tensor, codes: Tensor, used: Tensor) -> int:
        """Move codes that are not ``used`` (bool) onto the distinct latents farthest from their codes; their number."""
        dead = (~used).nonzero()[:, 0]
        error = (latents - self.tokenizer.codebook[codes]).square().sum(1)
        order = error.topk(min(len(error), 8 * len(dead) + 1)).indices
        order = order[torch.randperm(len(order), generator=self.generator)][:len(dead)]
        dead = dead[:len(order)]
        self.tokenizer.codebook[dead] = latents[order]
        self.counts[dead], self.sums[dead] = 0.1, 0.1 * latents[order]
        return len(dead)


def train(config: VisualConfig, settings: VisualTraining,
          progress: Callable[[int, dict[str, float]], None]) -> VisualTokenizer:
    """Train a tokenizer; ``progress`` is called after each epoch with its number and measures.

    Measures: ``loss``, ``psnr`` (dB, of the training pictures), ``codes`` (used in the epoch), ``seconds``.
    """
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    tokenizer = VisualTokenizer(config)
    tokenizer.codebook.requires_grad_(False)
    data = torch.from_numpy(stills(config.patch)).permute(0, 3, 1, 2).contiguous()
    parameters = [p for p in tokenizer.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.rate, betas=(0.9, 0.99), weight_decay=0.0)
    steps_per_epoch = -(-len(data) // settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.epochs * steps_per_epoch)
    book: MovingCodebook | None = None
    start = time.monotonic()
    for epoch in range(settings.epochs):
        used = torch.zeros(config.codebook, dtype=torch.bool)
        losses, errors = [], []
        for batch in torch.randperm(len(data), generator=generator).split(settings.batch):
            pictures = data[batch].float() / 255
            latents = tokenizer.latents(pictures)
            flat = latents.permute(0, 2, 3, 1).flatten(0, 2)
            coded, commitment = latents, latents.new_zeros(())
            if epoch >= settings.warmup_epochs:
                if book is None:
                    book = MovingCodebook(tokenizer, flat.detach(), settings.decay, generator)
                codes = tokenizer.nearest(flat.detach())
                used[codes] = True
                target = tokenizer.codebook[codes].unflatten(0, latents.permute(0, 2, 3, 1).shape[:3])
                target = target.permute(0, 3, 1, 2)
                commitment = functional.mse_loss(latents, target)
                coded = latents + (target - latents).detach()
                book.update(flat.detach(), codes)
            output = tokenizer.pictures(coded)
            error = functional.mse_loss(output, pictures)
            loss = error * 10 + functional.l1_loss(output, pictures) + settings.commitment * commitment
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            errors.append(error.item())
        if book is not None and epoch < settings.epochs * 3 // 4:
            book.restart(flat.detach(), codes, used)
        progress(epoch, {"loss": float(np.mean(losses)), "psnr": float(-10 * np.log10(np.mean(errors))),
                         "codes": int(used.sum()), "seconds": time.monotonic() - start})
    return tokenizer.eval().requires_grad_(False)

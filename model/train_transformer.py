"""Training of the transformer on codes of synthetic clips.

The time is the budget: learning rates follow the share of it that has been used, so that a run on a busy machine
ends as annealed as one on an idle machine, only with fewer steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from model.clips import Batch, ClipTable, corrupt, near_codes, sample_batch
from model.config import ModelConfig
from model.transformer import Transformer
from model.visual import VisualTokenizer


@dataclass(frozen=True, kw_only=True)
class TransformerTraining:
    """Settings of :func:`train`.

    Parameters
    ----------
    minutes : :class:`float`
        Time budget, of this and all resumed runs together.
    batch, frames : :class:`int`
        Clips per step and frames per clip; in the third frame the window is full, as in any later one.
    start_share : :class:`float`
        Share of the clips that are the start of their video.
    first_frames : :class:`int`
        Clips of the first frame only, besides the others in every step: it is the hardest one, and short.
    matrix_rate, other_rate : :class:`float`
        Peak learning rates: of Muon for the matrices of the blocks, of AdamW for embeddings, norms and head.
    cooldown : :class:`float`
        Share of the budget, at its end, over which the rates fall to zero along a line.
    report_every : :class:`int`
        Steps between measurements.
    """

    minutes: float = 80.0
    batch: int = 16
    frames: int = 3
    start_share: float = 0.6
    first_frames: int = 16
    matrix_rate: float = 4e-3
    other_rate: float = 3e-3
    weight_decay: float = 0.01
    cooldown: float = 0.5
    warmup_steps: int = 50
    report_every: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes must be positive, not {self.minutes!r}")
        if self.first_frames < 0:
            raise ValueError(f"first_frames must be at least 0, not {self.first_frames!r}")
        if self.frames < 2:
            raise ValueError(f"frames must be at least 2, not {self.frames!r}: clips teach one frame from another")
        if not 0 < self.start_share <= 1:
            raise ValueError(f"start_share must be in (0, 1], not {self.start_share!r}")
        if not 0 < self.cooldown <= 1:
            raise ValueError(f"cooldown must be in (0, 1], not {self.cooldown!r}")


def loss_mask(batch: Batch, stride: int) -> Tensor:
    """Steps that count, bool ``[B, n]``: all but the first frame of clips that do not start their video,
    whose position nothing before it tells."""
    step = torch.arange(batch.codes.shape[1])
    return (step >= stride) | (batch.frame_offset[:, None] == 0)


def embed_from_pixels(transformer: Transformer, visual: VisualTokenizer, seed: int) -> None:
    """Start code embeddings and head from what the codes look like, so that similar patches begin alike."""
    generator = torch.Generator().manual_seed(seed)
    vectors = visual.codebook.detach()
    vectors = (vectors - vectors.mean(0)) / vectors.std(0)
    for weight in (transformer.embed_code.weight, transformer.head.weight):
        spread = torch.randn(vectors.shape[1], weight.shape[1], generator=generator)
        noise = torch.randn(weight.shape, generator=generator)
        scale = 0.3 if weight is transformer.embed_code.weight else 0.05
        with torch.no_grad():
            weight[:len(vectors)] = scale * (vectors @ spread / vectors.shape[1] ** 0.5 + 0.3 * noise[:len(vectors)])


def optimizers(transformer: nn.Module, settings: TransformerTraining) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for everything else."""
    matrices = [p for name, p in transformer.named_parameters() if name.startswith("blocks.") and p.dim() == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in transformer.parameters() if id(p) not in chosen]
    return [torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=settings.weight_decay,
                             momentum=0.95, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=settings.other_rate, betas=(0.9, 0.98), weight_decay=0.0)]


@torch.no_grad()
def validate(transformer: Transformer, batch: Batch) -> dict[str, float]:
    """Cross-entropy, and accuracy on codes that differ from the frame before (``moved``), given the true past."""
    stride = transformer.config.layout.stride
    logits = transformer(batch.text_ids, batch.codes[:, :-1], batch.frame_offset)
    mask = loss_mask(batch, stride)
    moved = functional.pad(batch.codes[:, stride:] != batch.codes[:, :-stride], (stride, 0))
    right = logits.argmax(-1) == batch.codes
    return {"val_loss": functional.cross_entropy(logits[mask], batch.codes[mask]).item(),
            "val_moved": right[moved].float().mean().item()}


def train(config: ModelConfig, visual: VisualTokenizer, settings: TransformerTraining,
          progress: Callable[[Transformer, dict[str, float]], None], state_file: Path) -> Transformer:
    """Train a transformer, or go on from ``state_file``, which is rewritten at every report.

    ``progress`` gets the model and the measures ``step``, ``seconds``, ``loss``, ``val_loss``, ``val_moved``,
    ``rate`` (share of the peak) every ``report_every`` steps and at the end.
    """
    torch.manual_seed(settings.seed)
    table = ClipTable(visual, config.layout)
    transformer = Transformer(config)
    embed_from_pixels(transformer, visual, settings.seed)
    near = near_codes(visual.codebook.detach())
    optims = optimizers(transformer, settings)
    check = sample_batch(table, np.random.default_rng([settings.seed, 1]), 64, settings.frames, held_out=True)
    step, before = 0, 0.0
    if state_file.is_file():
        state = torch.load(state_file, weights_only=True)
        transformer.load_state_dict(state["model"])
        for optim, saved in zip(optims, state["optims"], strict=True):
            optim.load_state_dict(saved)
        step, before = state["step"], state["seconds"]
    start = time.monotonic()
    losses: list[float] = []
    used = before / (60 * settings.minutes)
    while used < 1:
        rng = np.random.default_rng([settings.seed, 0, step])
        batch = sample_batch(table, rng, settings.batch, settings.frames, start_share=settings.start_share)
        rate = min(1.0, (step + 1) / settings.warmup_steps, (1 - used) / settings.cooldown)
        optims[0].param_groups[0]["lr"] = rate * settings.matrix_rate
        optims[1].param_groups[0]["lr"] = rate * settings.other_rate
        parts = [batch]
        if settings.first_frames:
            parts.append(sample_batch(table, rng, settings.first_frames, 1, start_share=1.0))
        masks = [loss_mask(part, config.layout.stride) for part in parts]
        counted = sum(int(mask.sum()) for mask in masks)
        total = 0.0
        for part, mask in zip(parts, masks, strict=True):
            logits = transformer(part.text_ids, corrupt(part.codes, near, rng)[:, :-1], part.frame_offset)
            loss = functional.cross_entropy(logits[mask], part.codes[mask], reduction="sum") / counted
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
        for optim in optims:
            optim.step()
            optim.zero_grad(set_to_none=True)
        step += 1
        losses.append(total)
        seconds = before + time.monotonic() - start
        used = seconds / (60 * settings.minutes)
        if step % settings.report_every == 0 or used >= 1:
            partial = state_file.with_suffix(".new")
            torch.save({"model": transformer.state_dict(), "optims": [optim.state_dict() for optim in optims],
                        "step": step, "seconds": seconds}, partial)
            partial.replace(state_file)
            progress(transformer, {"step": step, "seconds": seconds, "loss": float(np.mean(losses)),
                                   **validate(transformer, check), "rate": rate})
            losses = []
    return transformer.eval().requires_grad_(False)

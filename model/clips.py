"""Training clips as visual codes.

The tokenizer encodes every distinct still of the world once; a clip is then a table look-up and a roll of the
code grid for each of its frames, because encoding commutes with rolls by a patch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model import world
from model.frames import FrameLayout
from model.visual import VisualTokenizer
from model.vocabulary import encode


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Clips of F frames: ``text_ids`` int64 ``[B, prelude]``, ``codes`` int64 ``[B, F * stride]``,
    ``frame_offset`` int64 ``[B]``, the frame that each clip starts with."""

    text_ids: Tensor
    codes: Tensor
    frame_offset: Tensor


class ClipTable:
    """Codes of scenes of the world, for a layout whose grid covers the picture and has no separators."""

    def __init__(self, visual: VisualTokenizer, layout: FrameLayout):
        patch = visual.config.patch
        if layout.separators or layout.grid * patch != world.PICTURE:
            raise ValueError(f"clips need {(world.PICTURE // patch) ** 2} tokens a frame and no separators, "
                             f"not {layout.tokens_per_frame} and {layout.separators}")
        self.layout, self.patch = layout, patch
        phases = range(0, patch, world.GRID)
        looks = {self._look(scene): scene for scene in world.all_scenes()}
        self._number = {look: number for number, look in enumerate(looks)}
        self._table = np.stack([
            visual.encode(np.stack([world.render_still(scene, x, y) for y in phases for x in phases])).numpy()
            for scene in looks.values()]).reshape(len(looks), len(phases), len(phases), -1)

    @staticmethod
    def _look(scene: world.Scene) -> tuple[str, ...]:
        """What of a scene can be seen in a still."""
        return scene.colour, scene.background, scene.shape, scene.size

    def codes(self, scenes: list[world.Scene], starts: np.ndarray, frames: int) -> np.ndarray:
        """Codes int64 ``[B, frames, tokens]`` of the true videos that start at ``starts`` ``[B, 2]`` (x, y)."""
        look = np.array([self._number[self._look(scene)] for scene in scenes])[:, None]
        velocity = np.array([scene.velocity() for scene in scenes])
        corner = (starts[:, None] + velocity[:, None] * np.arange(frames)[:, None]) % world.PICTURE
        x, y = corner[..., 0], corner[..., 1]
        side = self.layout.grid
        row = (np.arange(side) - y[..., None] // self.patch) % side
        column = (np.arange(side) - x[..., None] // self.patch) % side
        source = (row[..., :, None] * side + column[..., None, :]).reshape(*x.shape, -1)
        still = self._table[look, y % self.patch // world.GRID, x % self.patch // world.GRID]
        return np.take_along_axis(still, source, axis=2)


def sample_batch(table: ClipTable, rng: np.random.Generator, size: int, frames: int, *, held_out: bool = False,
                 start_share: float = 0.6, last_offset: int = 72, drop_share: float = 0.1) -> Batch:
    """Random clips of scenes that are (not) held out.

    A share ``start_share`` of the clips is the start of its video, with the object wholly in view, not split by the
    edges; the others begin at a uniform frame up to ``last_offset``, the object anywhere. A share ``drop_share`` has
    no prompt.
    """
    layout = table.layout
    scenes: list[world.Scene] = []
    while len(scenes) < size:
        scene = world.random_scene(rng)
        if world.held_out(scene) == held_out:
            scenes.append(scene)
    offset = np.where(rng.random(size) < start_share, 0, rng.integers(1, last_offset + 1, size))
    sides = np.array([world.SIZES[scene.size] for scene in scenes])
    places = np.where(offset == 0, world.PICTURE - sides + 1, world.PICTURE)
    starts = (rng.random((size, 2)) * places[:, None]).astype(int) // world.GRID * world.GRID
    codes = table.codes(scenes, starts, frames).reshape(size, -1)
    dropped = rng.random(size) < drop_share
    text = [encode(None if drop else scene.prompt(), layout.prelude)
            for scene, drop in zip(scenes, dropped, strict=True)]
    return Batch(text_ids=torch.tensor(text), codes=torch.from_numpy(codes), frame_offset=torch.from_numpy(offset))


def corrupt(codes: Tensor, near: Tensor, rng: np.random.Generator, most: float = 0.12) -> Tensor:
    """Replace codes of half of the rows, so that a rollout learns to recover from its own errors.

    Each such row has its own share, uniform up to ``most``; half of the replacements are codes from elsewhere in the
    batch, half are one of the ``near`` int64 ``[codebook, k]`` neighbours of the true code.
    """
    rows = codes.shape[0]
    share = rng.uniform(0, most, (rows, 1)) * (rng.random((rows, 1)) < 0.5)
    hit = rng.random(codes.shape)
    elsewhere = codes.flatten()[torch.from_numpy(rng.integers(0, codes.numel(), codes.shape))]
    close = near[codes, torch.from_numpy(rng.integers(0, near.shape[1], codes.shape))]
    result = torch.where(torch.from_numpy(hit < share), elsewhere, codes)
    return torch.where(torch.from_numpy(hit < share / 2), close, result)


def near_codes(codebook: Tensor, count: int = 8) -> Tensor:
    """The ``count`` codes nearest to each code vector ``[codebook, code_dim]``, int64 ``[codebook, count]``."""
    distance = torch.cdist(codebook, codebook).fill_diagonal_(torch.inf)
    return distance.topk(count, largest=False).indices

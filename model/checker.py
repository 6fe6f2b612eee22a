"""Independent checker: does a video show what its prompt says? It looks at pixels only.

It shares the grammar and the palette with the world and nothing with the model. Pixels are put into the nearest
palette colour; the most frequent one is the background, the next one the object. Shape and size are those whose
outline overlaps it best, the motion that of its centre on the picture that wraps around.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model.vocabulary import SHAPES
from model.world import PALETTE, SIZES, SPEEDS, VECTORS, coverage, parse

MIN_OVERLAP = 0.6
"""Least intersection over union with the outline of a shape; below it the object has no shape."""
MIN_AREA = 30
"""Pixels an object must have; the smallest one of the world has 98."""
FRAME_SHARE = 0.75
"""Share of frames in which colour and shape must be right."""
MOTION_SHARE = 0.5
"""Least mean displacement along the prompted direction, as a share of the prompted speed."""


def _template(shape: str, side: int) -> np.ndarray:
    """Mask of an object whose centre of mass is in the middle of the view, float32 ``[_VIEW * _VIEW]``."""
    mask = np.zeros((_VIEW, _VIEW), dtype=np.float32)
    mask[:side, :side] = coverage(shape, side) >= 0.5
    rows, columns = mask.sum(axis=1), mask.sum(axis=0)
    y, x = (round((np.arange(_VIEW) * profile).sum() / profile.sum()) for profile in (rows, columns))
    return np.roll(mask, (_VIEW // 2 - y, _VIEW // 2 - x), axis=(0, 1)).ravel()


_NAMES = tuple(PALETTE)
_COLOURS = np.array([PALETTE[name] for name in _NAMES], dtype=np.int32)
_VIEW = 40  # pixels around the object's centre that are compared with the templates
_KINDS = tuple((shape, size) for shape in SHAPES for size in SIZES)
_TEMPLATES = np.stack([_template(shape, SIZES[size]) for shape, size in _KINDS])


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What one frame shows; ``centre`` (x, y) in pixels; ``None`` for what is not there."""

    background: str
    colour: str | None = None
    shape: str | None = None
    size: str | None = None
    centre: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Verdict on a video of T frames.

    ``colour`` covers object and background; ``colour`` and ``shape`` ask for :data:`FRAME_SHARE` of the frames,
    ``direction`` for :data:`MOTION_SHARE` of the prompted speed and less than half as much drift sideways.
    ``ok`` is all three; ``size`` is told but not asked for. ``displacement`` float64 ``[T - 1]``: pixels along the
    prompted direction from frame to frame, NaN where an object is missing. ``motion_kept``: their mean, a missing
    one counted as 0, over the true speed.
    """

    colour: bool
    shape: bool
    size: bool
    direction: bool
    ok: bool
    displacement: np.ndarray
    motion_kept: float


def look(frame: np.ndarray) -> Sighting:
    """Find background and object in a frame, uint8 ``[height, width, 3]``."""
    distance = ((frame[:, :, None].astype(np.int32) - _COLOURS) ** 2).sum(axis=3)
    nearest = distance.argmin(axis=2)
    counts = np.bincount(nearest.ravel(), minlength=len(_NAMES))
    ground, paint = np.argsort(-counts, kind="stable")[:2]
    if counts[paint] < MIN_AREA:
        return Sighting(background=_NAMES[ground])
    mask = nearest == paint
    centre_x, centre_y = _centre(mask.sum(axis=0)), _centre(mask.sum(axis=1))
    shape, size = _best_template(mask, round(centre_x), round(centre_y))
    return Sighting(background=_NAMES[ground], colour=_NAMES[paint], shape=shape, size=size,
                    centre=(centre_x, centre_y))


def check(frames: np.ndarray, prompt: str) -> CheckResult:
    """Compare a video, uint8 ``[T, height, width, 3]`` with T at least 2, with its prompt.

    Raises
    ------
    ValueError
        The frames have another shape or type, or the prompt is not of the grammar.
    """
    if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or len(frames) < 2:
        raise ValueError(f"frames must be uint8 [2 or more, height, width, 3], not {frames.dtype} {list(frames.shape)}")
    scene = parse(prompt)
    seen = [look(frame) for frame in frames]
    colour = np.mean([s.colour == scene.colour and s.background == scene.background for s in seen]) >= FRAME_SHARE
    shape = np.mean([s.shape == scene.shape for s in seen]) >= FRAME_SHARE
    size = np.mean([s.size == scene.size for s in seen]) >= FRAME_SHARE
    along, across = _displacements(seen, frames.shape[2], frames.shape[1], VECTORS[scene.direction])
    speed = SPEEDS[scene.speed]
    kept = float(np.nan_to_num(along).mean()) / speed
    drift = abs(float(np.nan_to_num(across).mean())) / speed
    direction = kept >= MOTION_SHARE and drift < kept / 2
    return CheckResult(colour=bool(colour), shape=bool(shape), size=bool(size), direction=bool(direction),
                       ok=bool(colour and shape and direction), displacement=along, motion_kept=kept)


def _centre(profile: np.ndarray) -> float:
    """Centre of a mass profile on a circle, in pixels: the phase of its first harmonic."""
    length = len(profile)
    phase = np.angle((profile * np.exp(2j * np.pi * np.arange(length) / length)).sum())
    return float(phase / (2 * np.pi) * length % length)


def _best_template(mask: np.ndarray, x: int, y: int) -> tuple[str | None, str | None]:
    """Shape and size whose mask, put near (x, y), overlaps ``mask`` best; ``None`` twice where none does well."""
    middle = np.roll(mask, (_VIEW // 2 - y, _VIEW // 2 - x), axis=(0, 1))
    shifted = np.stack([np.roll(middle, (dy, dx), axis=(0, 1))[:_VIEW, :_VIEW].ravel()
                        for dy in range(-2, 3) for dx in range(-2, 3)]).astype(np.float32)
    common = shifted @ _TEMPLATES.T
    union = mask.sum() + _TEMPLATES.sum(axis=1) - common
    overlap = (common / union).max(axis=0)
    return _KINDS[int(overlap.argmax())] if overlap.max() >= MIN_OVERLAP else (None, None)


def _displacements(seen: list[Sighting], width: int, height: int,
                   vector: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Steps along ``vector`` and at right angles to it, modulo the picture, each float64 ``[len(seen) - 1]``."""
    centres = np.array([s.centre if s.centre is not None else (np.nan, np.nan) for s in seen])
    sides = np.array([width, height])
    steps = (np.diff(centres, axis=0) + sides / 2) % sides - sides / 2
    x, y = vector
    return steps @ np.array([x, y], dtype=float), steps @ np.array([-y, x], dtype=float)

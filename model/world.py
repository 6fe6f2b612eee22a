"""The synthetic world: one coloured object moves over a plain background, on a picture that wraps around.

A scene is described by a prompt of the grammar :data:`GRAMMAR`. Speed words mean fixed pixels per frame and all
positions lie on a 2-pixel grid, so that an 8x8 patch sees an edge at 16 phases only.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from model.vocabulary import COLOURS, DIRECTIONS, SHAPES, PromptError, split

PICTURE = 64
"""Side of the picture, in pixels."""
GRID = 2
"""Start positions and speeds are multiples of this, in pixels."""
PALETTE = {"black": (0, 0, 0), "red": (220, 40, 40), "green": (40, 180, 70), "blue": (50, 90, 230),
           "yellow": (240, 210, 50), "white": (245, 245, 245)}
"""Colour words and their 8-bit RGB."""
SIZES = {"small": 14, "medium": 20, "large": 28}
"""Side of the object's bounding box, in pixels; no word means medium."""
SPEEDS = {"slowly": 2, "": 4, "fast": 6}
"""Pixels per frame."""
VECTORS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Unit steps (x, y) of the direction words, y downwards."""
GRAMMAR = ("a [small|large] <colour> <shape> moves <left|right|up|down> [slowly|fast] [on a <colour> background]")

_SAMPLES = 4  # anti-aliasing: samples per pixel and axis


class GrammarError(PromptError):
    """A prompt whose words are known but whose order is not."""


class SceneError(PromptError):
    """A scene that cannot be seen: the object has the colour of its background."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What a prompt says. ``size`` and ``speed`` are keys of :data:`SIZES` and :data:`SPEEDS`."""

    colour: str
    shape: str
    direction: str
    size: str = "medium"
    speed: str = ""
    background: str = "black"

    def __post_init__(self) -> None:
        allowed = {"colour": COLOURS, "shape": SHAPES, "direction": DIRECTIONS,
                   "size": SIZES, "speed": SPEEDS, "background": PALETTE}
        for name, values in allowed.items():
            if getattr(self, name) not in values:
                raise SceneError(f"{name} must be one of {', '.join(map(repr, values))}, not {getattr(self, name)!r}")
        if self.colour == self.background:
            raise SceneError(f"a {self.colour} object cannot be seen on a {self.background} background; "
                             "name another background")

    def prompt(self) -> str:
        """The prompt of the scene."""
        words = ["a", self.size if self.size != "medium" else "", self.colour, self.shape, "moves", self.direction,
                 self.speed, "" if self.background == "black" else f"on a {self.background} background"]
        return " ".join(word for word in words if word)

    def velocity(self) -> tuple[int, int]:
        """Displacement (x, y) per frame, in pixels."""
        x, y = VECTORS[self.direction]
        return x * SPEEDS[self.speed], y * SPEEDS[self.speed]


def parse(prompt: str) -> Scene:
    """The scene of a prompt.

    Raises
    ------
    UnknownWordError
        A word is outside the vocabulary.
    GrammarError
        The words do not follow :data:`GRAMMAR`.
    SceneError
        Object and background have the same colour.
    """
    rest = split(prompt)

    def take(options: tuple[str, ...], default: str | None = None) -> str:
        if rest and rest[0] in options:
            return rest.pop(0)
        if default is None:
            found = repr(rest[0]) if rest else "the end"
            raise GrammarError(f"expected {'|'.join(options)} but found {found} in {prompt!r}; "
                               f"the grammar is: {GRAMMAR}")
        return default

    take(("a",))
    size = take(("small", "large"), "medium")
    colour, shape = take(COLOURS), take(SHAPES)
    take(("moves",))
    direction = take(DIRECTIONS)
    speed = take(("slowly", "fast"), "")
    background = "black"
    if rest:
        take(("on",))
        take(("a",))
        background = take(tuple(PALETTE))
        take(("background",))
    if rest:
        raise GrammarError(f"expected the end but found {rest[0]!r} in {prompt!r}; the grammar is: {GRAMMAR}")
    return Scene(colour=colour, shape=shape, direction=direction, size=size, speed=speed, background=background)


def coverage(shape: str, side: int) -> np.ndarray:
    """Share of each pixel that an object covers, float64 ``[side, side]``; triangles point up."""
    centres = (np.arange(side * _SAMPLES) + 0.5) / _SAMPLES
    x, y = np.meshgrid(centres, centres)
    if shape == "circle":
        inside = (x - side / 2) ** 2 + (y - side / 2) ** 2 <= (side / 2) ** 2
    elif shape == "triangle":
        inside = np.abs(x - side / 2) <= y / 2
    else:
        inside = np.ones_like(x, dtype=bool)
    return inside.reshape(side, _SAMPLES, side, _SAMPLES).mean(axis=(1, 3))


def render_still(scene: Scene, x: int, y: int, picture: int = PICTURE) -> np.ndarray:
    """One picture, uint8 ``[picture, picture, 3]``, with the top left corner of the object's box at (x, y)."""
    side = SIZES[scene.size]
    alpha = np.zeros((picture, picture, 1))
    alpha[:side, :side, 0] = coverage(scene.shape, side)
    ground, paint = (np.array(PALETTE[name], dtype=float) for name in (scene.background, scene.colour))
    return np.roll(np.rint(ground + alpha * (paint - ground)).astype(np.uint8), (y, x), axis=(0, 1))


def render(scene: Scene, start_xy: tuple[int, int], frames: int) -> np.ndarray:
    """The true video of a scene, uint8 ``[frames, 64, 64, 3]``.

    Parameters
    ----------
    start_xy : (int, int)
        Top left corner of the object's box in frame 0, pixels from the top left of the picture, taken modulo 64.
    """
    still = render_still(scene, *start_xy)
    x, y = scene.velocity()
    return np.stack([np.roll(still, (y * t, x * t), axis=(0, 1)) for t in range(frames)])


def all_scenes() -> list[Scene]:
    """Every scene of the grammar, in a fixed order."""
    return [Scene(colour=colour, shape=shape, direction=direction, size=size, speed=speed, background=background)
            for background in PALETTE for colour in COLOURS if colour != background
            for shape in SHAPES for size in SIZES for direction in DIRECTIONS for speed in SPEEDS]


def random_scene(rng: np.random.Generator) -> Scene:
    """A random scene: every word equally likely, the background black in half of the scenes."""
    colour = str(rng.choice(COLOURS))
    others = [name for name in COLOURS if name != colour]
    return Scene(colour=colour, shape=str(rng.choice(SHAPES)), direction=str(rng.choice(DIRECTIONS)),
                 size=str(rng.choice(list(SIZES))), speed=str(rng.choice(list(SPEEDS))),
                 background="black" if rng.random() < 0.5 else str(rng.choice(others)))


def held_out(scene: Scene) -> bool:
    """Whether a scene is kept out of training: one in ten, by a hash of its prompt."""
    return hashlib.sha256(scene.prompt().encode()).digest()[0] % 10 == 0

"""Tests of model/checker.py: right on the truth, and not to be fooled."""

import numpy as np
import pytest

from model import world
from model.checker import check, look


def truth(prompt: str, start: tuple[int, int] = (20, 30), frames: int = 8) -> np.ndarray:
    return world.render(world.parse(prompt), start, frames)


@pytest.mark.parametrize("step", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_true_videos_are_right(step: int) -> None:
    seed = 5
    rng = np.random.default_rng(seed)
    for scene in world.all_scenes()[::step]:
        start = tuple(int(value) * 2 for value in rng.integers(0, 32, 2))
        result = check(world.render(scene, start, 3), scene.prompt())
        assert result.ok and result.size, f"seed {seed}: {scene.prompt()} from {start}: {result}"
        assert np.allclose(result.displacement, world.SPEEDS[scene.speed], atol=0.05), f"seed {seed}: {scene.prompt()}"
        assert result.motion_kept == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("prompt", "wrong"), [
    ("a red circle moves left", {"direction"}),
    ("a red circle moves up", {"direction"}),
    ("a blue circle moves right", {"colour"}),
    ("a red circle moves right on a blue background", {"colour"}),
    ("a red square moves right", {"shape"}),
    ("a red triangle moves right", {"shape"}),
    ("a large red circle moves right", {"size"}),
    ("a red circle moves right slowly", set()),
])
def test_other_prompts_are_wrong(prompt: str, wrong: set[str]) -> None:
    result = check(truth("a red circle moves right"), prompt)
    assert {name for name in ("colour", "shape", "direction", "size") if not getattr(result, name)} == wrong
    assert result.ok == (not wrong - {"size"})


@pytest.mark.parametrize("shape", ["circle", "square", "triangle"])
def test_frozen_video_does_not_move(shape: str) -> None:
    prompt = f"a small white {shape} moves down slowly"
    result = check(np.repeat(truth(prompt)[:1], 8, axis=0), prompt)
    assert result.colour and result.shape and not result.direction
    assert result.motion_kept == pytest.approx(0, abs=1e-9)


def test_motion_that_stops_halfway() -> None:
    prompt = "a yellow square moves up fast"
    video = truth(prompt, frames=9)
    video[3:] = video[3]
    result = check(video, prompt)
    assert result.motion_kept == pytest.approx(3 / 8, abs=0.01)
    assert not result.direction


def test_diagonal_motion_is_wrong() -> None:
    prompt = "a green circle moves right"
    video = np.stack([np.roll(frame, 4 * t, axis=0) for t, frame in enumerate(truth(prompt))])
    result = check(video, prompt)
    assert result.motion_kept == pytest.approx(1, abs=0.01)
    assert not result.direction


def test_empty_and_noise() -> None:
    prompt = "a red circle moves right"
    empty = np.zeros((4, 64, 64, 3), dtype=np.uint8)
    assert look(empty[0]).colour is None
    result = check(empty, prompt)
    assert not (result.colour or result.shape or result.direction)
    assert result.motion_kept == 0
    assert np.isnan(result.displacement).all()
    noise = np.random.default_rng(1).integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    assert look(noise[0]).shape is None
    assert not check(noise, prompt).ok


def test_vanishing_object() -> None:
    prompt = "a red circle moves right"
    video = truth(prompt)
    video[5:] = 0
    assert not check(video, prompt).colour


@pytest.mark.parametrize(("frames", "told"), [
    (np.zeros((1, 64, 64, 3), dtype=np.uint8), "uint8 \\[1, 64, 64, 3\\]"),
    (np.zeros((2, 64, 64, 3)), "float64"),
    (np.zeros((2, 64, 64), dtype=np.uint8), "uint8 \\[2, 64, 64\\]"),
])
def test_not_a_video(frames: np.ndarray, told: str) -> None:
    with pytest.raises(ValueError, match=f"frames must be uint8 \\[2 or more, height, width, 3\\], not {told}"):
        check(frames, "a red circle moves right")

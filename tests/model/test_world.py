"""Tests of model/world.py."""

import numpy as np
import pytest

from model import world
from model.vocabulary import UnknownWordError


def test_every_prompt_is_read_back() -> None:
    scenes = world.all_scenes()
    assert len(scenes) == len({scene.prompt() for scene in scenes}) == 25 * 3 * 3 * 4 * 3
    assert all(world.parse(scene.prompt()) == scene for scene in scenes)


def test_words_left_out() -> None:
    scene = world.parse("a white square moves down")
    assert (scene.size, scene.speed, scene.background) == ("medium", "", "black")
    assert scene.velocity() == (0, 4)
    assert world.parse("a white square moves down on a black background") == scene


@pytest.mark.parametrize(("prompt", "error", "part"), [
    ("a purple circle moves up", UnknownWordError, "unknown word 'purple' in the prompt; the vocabulary is: a small"),
    ("a red circle", world.GrammarError, "expected moves but found the end in 'a red circle'; the grammar is: a ["),
    ("a circle red moves up", world.GrammarError, "but found 'circle'"),
    ("a red circle moves up on a", world.GrammarError, "expected black|red|green|blue|yellow|white but found the end"),
    ("a red circle moves up fast fast", world.GrammarError, "expected on but found 'fast'"),
    ("a red circle moves up on a blue background a", world.GrammarError, "expected the end but found 'a'"),
    ("", world.GrammarError, "expected a but found the end"),
    ("a red circle moves up on a red background", world.SceneError,
     "a red object cannot be seen on a red background; name another background"),
])
def test_refused_prompts(prompt: str, error: type[Exception], part: str) -> None:
    with pytest.raises(error) as caught:
        world.parse(prompt)
    assert isinstance(caught.value, ValueError)
    assert part in str(caught.value)


def test_scene_of_no_word() -> None:
    with pytest.raises(world.SceneError, match="size must be one of 'small', 'medium', 'large', not 'huge'"):
        world.Scene(colour="red", shape="circle", direction="up", size="huge")


@pytest.mark.parametrize("direction", world.VECTORS)
def test_motion_wraps_around(direction: str) -> None:
    scene = world.parse(f"a small blue triangle moves {direction} fast on a white background")
    video = world.render(scene, (60, 62), 33)
    x, y = world.VECTORS[direction]
    for before, after in zip(video, video[1:], strict=False):
        assert np.array_equal(after, np.roll(before, (6 * y, 6 * x), axis=(0, 1)))
    assert np.array_equal(video[32], video[0])  # 32 frames of 6 pixels are three times around
    assert video.dtype == np.uint8 and video.shape == (33, 64, 64, 3)


@pytest.mark.parametrize(("shape", "share"), [("square", 1.0), ("circle", np.pi / 4), ("triangle", 0.5)])
def test_coverage(shape: str, share: float) -> None:
    for side in world.SIZES.values():
        assert world.coverage(shape, side).mean() == pytest.approx(share, abs=0.01)


def test_colours_of_a_still() -> None:
    picture = world.render_still(world.parse("a large green square moves up on a yellow background"), 10, 20)
    assert tuple(picture[20, 10]) == tuple(picture[47, 37]) == world.PALETTE["green"]
    assert tuple(picture[19, 10]) == tuple(picture[48, 37]) == world.PALETTE["yellow"]


def test_one_scene_in_ten_is_held_out() -> None:
    share = np.mean([world.held_out(scene) for scene in world.all_scenes()])
    assert 0.08 < share < 0.12


def test_random_scenes() -> None:
    seed = 3
    scenes = [world.random_scene(np.random.default_rng([seed, n])) for n in range(400)]
    assert scenes[7] == world.random_scene(np.random.default_rng([seed, 7])), f"seed {seed}"
    black = np.mean([scene.background == "black" for scene in scenes])
    assert 0.4 < black < 0.6, f"seed {seed}"
    assert {scene.speed for scene in scenes} == set(world.SPEEDS), f"seed {seed}"

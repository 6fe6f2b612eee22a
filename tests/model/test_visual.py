"""Tests of model/visual.py, and of the shipped tokenizer on pictures of the world."""

import numpy as np
import pytest
import torch

from model import checkpoint, world
from model.checker import check
from model.visual import VisualConfig, VisualTokenizer

SMALL = VisualConfig(codebook=32, code_dim=8, width=16)


def small() -> VisualTokenizer:
    """Untrained, with codes where the encoder puts noise."""
    torch.manual_seed(0)
    tokenizer = VisualTokenizer(SMALL).eval().requires_grad_(False)
    pictures = torch.from_numpy(noise(2, 32, seed=9)).permute(0, 3, 1, 2).float() / 255
    tokenizer.codebook.copy_(tokenizer.latents(pictures).permute(0, 2, 3, 1).flatten(0, 2))
    return tokenizer


def noise(count: int, side: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def test_shapes() -> None:
    tokenizer = small()
    codes = tokenizer.encode(noise(3, 32))
    assert codes.shape == (3, 16) and codes.dtype == torch.int64
    frames = tokenizer.decode(codes)
    assert frames.shape == (3, 32, 32, 3) and frames.dtype == np.uint8


def test_rolling_a_picture_rolls_its_codes_and_back() -> None:
    tokenizer = small()
    frames = noise(2, 40)
    codes = tokenizer.encode(frames)
    rolled = tokenizer.encode(np.roll(frames, (16, -8), axis=(1, 2)))
    assert len(codes.unique()) > 3
    assert torch.equal(rolled.view(2, 5, 5), codes.view(2, 5, 5).roll((2, -1), dims=(1, 2)))
    # The kernels may add up in another order at another place: one step of the 8-bit colour at most.
    moved = np.roll(tokenizer.decode(codes), (16, -8), axis=(1, 2)).astype(int)
    assert np.abs(moved - tokenizer.decode(rolled)).max() <= 1


def test_a_code_hangs_on_its_own_patch_only() -> None:
    tokenizer = small()
    frames = noise(1, 32)
    other = frames.copy()
    other[0, 8:16, 8:16] ^= 255
    changed = (tokenizer.encode(frames) != tokenizer.encode(other)).nonzero()[:, 1]
    assert changed.tolist() == [5]


def test_nearest_code_by_definition() -> None:
    tokenizer = small()
    latents = torch.randn(50, SMALL.code_dim, generator=torch.Generator().manual_seed(4))
    distance = (latents[:, None] - tokenizer.codebook[None]).square().sum(2)
    assert torch.equal(tokenizer.nearest(latents), distance.argmin(1))


@pytest.mark.parametrize("shape", [(1, 30, 32, 3), (32, 32, 3), (1, 32, 32, 4)])
def test_not_a_picture(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="frames must be \\[n, height, width, 3\\] with sides that are multiples of 8"):
        small().encode(np.zeros(shape, dtype=np.uint8))


def test_codes_that_are_no_square() -> None:
    with pytest.raises(ValueError, match="codes must be \\[n, side \\* side\\], not \\[2, 12\\]"):
        small().decode(torch.zeros(2, 12, dtype=torch.int64))


@pytest.mark.parametrize(("change", "message"), [
    ({"codebook": 0}, "codebook must be at least 1, not 0"),
    ({"context_layers": -1}, "context_layers must be at least 0, not -1"),
])
def test_bad_sizes(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        VisualConfig(**change)
    assert str(caught.value) == message


@pytest.mark.parametrize("count", [40, pytest.param(300, marks=pytest.mark.slow)])
def test_shipped_tokenizer_keeps_what_the_checker_sees(count: int) -> None:
    """Every reconstruction of a true video is still right, and each of its steps to 1.5 pixels.

    After 8 frames, whatever the speed, the object meets the patches as it did before, so that errors of place cancel.
    """
    seed = 11
    rng = np.random.default_rng(seed)
    visual = checkpoint.load_visual(checkpoint.default_dir())
    for _ in range(count):
        scene = world.random_scene(rng)
        start = tuple(int(value) * 2 for value in rng.integers(0, 32, 2))
        result = check(visual.decode(visual.encode(world.render(scene, start, 9))), scene.prompt())
        assert result.ok, f"seed {seed}: {scene.prompt()} from {start}: {result}"
        error = result.displacement - world.SPEEDS[scene.speed]
        assert abs(error.mean()) < 0.02 and np.abs(error).max() < 1.5, f"seed {seed}: {scene.prompt()}: {error}"

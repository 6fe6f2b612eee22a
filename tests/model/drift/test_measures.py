"""Measures of pictures against hand-made cases and published implementations."""

import numpy as np
import pytest

from model import world
from model.drift import measures
from tests.model.small import PROMPTS


def truth(prompt: str, frames: int = 6) -> np.ndarray:
    return world.render(world.parse(prompt), (10, 20), frames)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_true_video_is_right_and_moves_and_a_frozen_one_does_not(prompt):
    video = truth(prompt)
    same = measures.compare(video, video, prompt)
    assert np.isnan(same["motion"][0]) and same["motion"][1:] == pytest.approx(1, abs=0.1)
    assert (same["right"] == 1).all() and (same["squared_error"] == 0).all()
    assert same["ssim"] == pytest.approx(1) and same["gmsd"] == pytest.approx(0)
    assert np.isinf(measures.psnr(same["squared_error"])).all()
    assert np.isnan(same["energy"][0]) and (same["energy"][1:] > 0).all()
    frozen = measures.compare(np.repeat(video[:1], 6, axis=0), video, prompt)
    assert frozen["motion"][1:] == pytest.approx(0) and frozen["energy"][1:] == pytest.approx(0)
    assert frozen["squared_error"][0] == 0 and (frozen["squared_error"][1:] > 0).all()
    assert (frozen["ssim"][1:] < 1).all() and (frozen["gmsd"][1:] > 0).all() and (frozen["right"] == 1).all()


def test_a_missing_object_is_wrong_and_does_not_move():
    black = np.zeros((4, 64, 64, 3), np.uint8)
    found = measures.compare(black, truth(PROMPTS[0], 4), PROMPTS[0])
    assert found["motion"][1:].tolist() == [0, 0, 0] and found["right"].tolist() == [0, 0, 0, 0]


def test_known_errors_and_lumas():
    black = np.zeros((2, 64, 64, 3), np.uint8)
    red = black + np.array([100, 0, 0], np.uint8)
    assert measures.squared_error(red, black) == pytest.approx([10000 / 3] * 2)
    assert measures.psnr(np.array([255.0 ** 2, 0.0])).tolist() == [0.0, np.inf]
    assert measures.psnr(np.array([255.0 ** 2 / 1e6])) == pytest.approx(measures.EQUAL_DB)
    assert measures.luminance(red).mean() == pytest.approx(29.9)
    assert measures.change_energy(np.concatenate([black[:1], red[:1]]))[1] == pytest.approx(29.9 ** 2)


def test_ssim_is_that_of_scikit_image():
    """Expected: scikit-image 0.26.0, structural_similarity(channel_axis=2, data_range=255, gaussian_weights=True,
    sigma=1.5, use_sample_covariance=False) on the same pictures."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    first[1] = first[1] // 8 + np.arange(64, dtype=np.uint8)[:, None, None] * 2
    noise = rng.integers(-40, 41, first.shape)
    second = np.clip(first.astype(int) + noise, 0, 255).astype(np.uint8)
    assert measures.ssim(first, second) == pytest.approx([0.9530060730196657, 0.31173418721905843], abs=1e-9)


def test_gmsd_sees_edges_and_not_brightness():
    """A step of 40 grey levels against none: only pixels at the edge differ, similarity 170 / (g^2 + 170) there."""
    flat = np.full((1, 64, 64, 3), 60, np.uint8)
    assert measures.gmsd(flat + np.uint8(40), flat) == pytest.approx(0, abs=1e-9)
    edge = flat.copy()
    edge[:, :, 32:] += 40
    # Two pixels wide at the edge, and again where the picture wraps around: 4 of 32 columns.
    similar = np.ones(32)
    similar[:4] = 170 / (40 ** 2 + 170)
    assert measures.gmsd(edge, flat) == pytest.approx(similar.std())

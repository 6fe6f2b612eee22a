"""Measures of pictures: how near two videos are, frame by frame, and what a video shows.

Videos are uint8 ``[T, height, width, 3]``; every measure is float64 ``[T]``.
"""

from __future__ import annotations

import numpy as np

from model import checker
from model.world import SPEEDS, parse

EQUAL_DB = 60.0
"""What equal frames count as where PSNR is averaged or fitted: an error of 0.065 squared grey levels."""
_SIGMA, _RADIUS = 1.5, 5
_GRADIENT_CONSTANT = 170.0


def luminance(video: np.ndarray) -> np.ndarray:
    """BT.601 luma in 0..255, float64 ``[T, height, width]``."""
    return video @ np.array([0.299, 0.587, 0.114])


def squared_error(video: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Mean squared error in squared grey levels."""
    return np.square(video.astype(np.float64) - reference).mean(axis=(1, 2, 3))


def psnr(error: np.ndarray) -> np.ndarray:
    """Peak signal-to-noise ratio in dB of mean squared errors, infinite for 0."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(255.0 ** 2 / error)


def ssim(video: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Structural similarity (Wang et al. 2004), mean over channels: Gaussian window of sigma 1.5 cut at 11 x 11.

    K1 = 0.01, K2 = 0.03, population covariance, only windows that lie within the picture.
    """
    rows, columns = (_window(side) for side in video.shape[1:3])

    def blurred(values: np.ndarray) -> np.ndarray:
        return rows @ values @ columns.T

    x, y = (np.moveaxis(pictures.astype(np.float64), 3, 1) for pictures in (video, reference))
    mean_x, mean_y = blurred(x), blurred(y)
    var_x, var_y = blurred(x * x) - mean_x ** 2, blurred(y * y) - mean_y ** 2
    covariance = blurred(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    similar = ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)
               / ((mean_x ** 2 + mean_y ** 2 + c1) * (var_x + var_y + c2)))
    return similar.mean(axis=(1, 2, 3))


def gmsd(video: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Gradient magnitude similarity deviation (Xue et al. 2014) of the luma: 0 for equal frames, more is worse.

    On pictures averaged 2 x 2, Prewitt gradients, constant 170; borders wrap around, as the world does.
    """
    first, second = (_gradient(luminance(pictures)) for pictures in (video, reference))
    similar = (2 * first * second + _GRADIENT_CONSTANT) / (first ** 2 + second ** 2 + _GRADIENT_CONSTANT)
    return similar.std(axis=(1, 2))


def change_energy(video: np.ndarray) -> np.ndarray:
    """Mean squared change of the luma since the frame before; NaN for frame 0."""
    change = np.square(np.diff(luminance(video), axis=0)).mean(axis=(1, 2))
    return np.concatenate([[np.nan], change])


def motion(video: np.ndarray, prompt: str) -> np.ndarray:
    """Displacement along the prompted direction since the frame before, over the true speed; NaN for frame 0.

    0 where the object is missing, as in :func:`model.checker.check`.
    """
    moved = checker.check(video, prompt).displacement / SPEEDS[parse(prompt).speed]
    return np.concatenate([[np.nan], np.nan_to_num(moved)])


def right(video: np.ndarray, prompt: str) -> np.ndarray:
    """1 for frames with the prompted colours and shape, else 0; motion is left to :func:`motion`."""
    scene = parse(prompt)
    wanted = (scene.background, scene.colour, scene.shape)
    seen = [checker.look(frame) for frame in video]
    return np.array([float((item.background, item.colour, item.shape) == wanted) for item in seen])


def compare(video: np.ndarray, reference: np.ndarray, prompt: str) -> dict[str, np.ndarray]:
    """All measures of a video and its reference."""
    return {"squared_error": squared_error(video, reference), "ssim": ssim(video, reference),
            "gmsd": gmsd(video, reference), "right": right(video, prompt), "motion": motion(video, prompt),
            "luminance": luminance(video).mean(axis=(1, 2)), "energy": change_energy(video)}


def _window(side: int) -> np.ndarray:
    """Matrix ``[side - 2 radius, side]`` that blurs a row, where the window lies within it."""
    taps = np.exp(-0.5 * (np.arange(-_RADIUS, _RADIUS + 1) / _SIGMA) ** 2)
    matrix = np.zeros((side - 2 * _RADIUS, side))
    for row in range(len(matrix)):
        matrix[row, row:row + len(taps)] = taps / taps.sum()
    return matrix


def _gradient(pictures: np.ndarray) -> np.ndarray:
    """Prewitt gradient magnitudes ``[T, height / 2, width / 2]``."""
    count, height, width = pictures.shape
    small = pictures.reshape(count, height // 2, 2, width // 2, 2).mean(axis=(2, 4))

    def across(axis: int) -> np.ndarray:
        other = 3 - axis
        edge = (np.roll(small, 1, axis) - np.roll(small, -1, axis)) / 3
        return np.roll(edge, 1, other) + edge + np.roll(edge, -1, other)

    return np.hypot(across(1), across(2))

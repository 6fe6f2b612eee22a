"""Frames side by side: one row a video, one column a frame."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  (the backend has to be chosen first: there may be no screen)


def filmstrip(rows: Sequence[tuple[str, np.ndarray]], path: Path) -> None:
    """Write a PNG of labelled videos uint8 ``[frames, height, width, 3]``; shorter ones leave places empty.

    Raises
    ------
    ValueError
        No row to draw.
    """
    if not rows:
        raise ValueError("a filmstrip needs at least one video")
    columns = max(len(frames) for _, frames in rows)
    figure, axes = pyplot.subplots(len(rows), columns, squeeze=False, figsize=(1.0 * columns + 1.4, 1.05 * len(rows)))
    for line, (label, frames) in zip(axes, rows):
        for number, place in enumerate(line):
            place.set_xticks([])
            place.set_yticks([])
            if number < len(frames):
                place.imshow(frames[number], interpolation="nearest")
            else:
                place.axis("off")
        line[0].set_ylabel(label, rotation=0, ha="right", va="center", fontsize=8)
    figure.subplots_adjust(left=1.3 / (columns + 1.4), right=0.995, top=0.99, bottom=0.01, wspace=0.04, hspace=0.04)
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)

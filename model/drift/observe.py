"""What is looked at inside a rollout: MLP outputs against the dense ones, replays, and the age of what is replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from model.config import ModelConfig
from model.gates import Rows
from model.generate import LayerStep


class DenseOutputs:
    """MLP outputs of the dense rollout, float16 ``[steps, layers, rows, hidden]`` in a file.

    float16 keeps a value to 1 part in 2000; outputs are compared after the same rounding, so that equal ones differ
    by 0.

    Parameters
    ----------
    path : :class:`~pathlib.Path`
    create : :class:`bool`
        Whether the file is to be written, by observing with :meth:`keep`.
    """

    def __init__(self, path: Path, config: ModelConfig, rows: int, frames: int, *, create: bool = False):
        shape = (frames * config.layout.stride, config.layers, rows, config.hidden)
        self._values = np.memmap(path, dtype=np.float16, mode="w+" if create else "r", shape=shape)

    def keep(self, item: LayerStep) -> None:
        """Observer of the dense rollout."""
        self._values[item.step.number, item.layer] = item.result.y.half().numpy()

    def at(self, step: int, layer: int) -> Tensor:
        """float32 ``[rows, hidden]``."""
        return torch.from_numpy(self._values[step, layer].astype(np.float32))


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What went on in a rollout of T frames; both rows of a guidance pair count for their video.

    Parameters
    ----------
    steps : int64 ``[T]``
        Row steps of one layer and video in each frame.
    replayed : int64 ``[T, layers, videos]``
        Row steps that replayed.
    age : float64 ``[T, layers, videos]``
        Sum of the ages, in frames, of replayed values; a value replayed in the frame after it was computed has age 1.
    ages : int64 ``[layers, T]``
        Replayed row steps by the age of the value.
    distance, size : float64 ``[T, layers, videos]``
        Mean over row steps of ``|Y - Y_dense|`` and of ``|Y_dense|``, Euclidean. Of the dense rollout itself: 0.
    """

    steps: np.ndarray
    replayed: np.ndarray
    age: np.ndarray
    ages: np.ndarray
    distance: np.ndarray
    size: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Inside]) -> Inside:
        """Batches of videos of one rollout, one after the other."""
        together = {name: np.concatenate([getattr(part, name) for part in parts], axis=2)
                    for name in ("replayed", "age", "distance", "size")}
        return cls(steps=parts[0].steps, ages=np.sum([part.ages for part in parts], axis=0), **together)


class Divergence:
    """Observer of a rollout that is compared with the dense one."""

    def __init__(self, reference: DenseOutputs, config: ModelConfig, rows: Rows, frames: int):
        self._reference, self._rows = reference, rows
        shape = (frames, config.layers, rows.count)
        self._steps = np.zeros(frames, dtype=np.int64)
        self._replayed = np.zeros(shape, dtype=np.int64)
        self._age = np.zeros(shape, dtype=np.int64)
        self._distance, self._size = np.zeros(shape), np.zeros(shape)
        self._ages = np.zeros((config.layers, frames), dtype=np.int64)
        self._now = np.zeros((config.layers, config.layout.stride, rows.count), dtype=np.int64)

    def __call__(self, item: LayerStep) -> None:
        frame, layer = item.step.frame, item.layer
        dense = self._reference.at(item.step.number, layer)
        self._steps[frame] += layer == 0
        self._distance[frame, layer] += (item.result.y.half().float() - dense).norm(dim=1).numpy()
        self._size[frame, layer] += dense.norm(dim=1).numpy()
        age = self._now[layer, item.step.index]
        age += 1
        age[item.result.computed.numpy()] = 0
        self._replayed[frame, layer] += age > 0
        self._age[frame, layer] += age
        np.add.at(self._ages[layer], age[age > 0], 1)

    def result(self) -> Inside:
        """What was seen; the rollout is over."""
        pairs = self._rows.count // self._rows.videos

        def by_video(values: np.ndarray) -> np.ndarray:
            return values.reshape(*values.shape[:2], pairs, self._rows.videos).sum(axis=2)

        steps = self._steps * pairs
        return Inside(steps=steps, replayed=by_video(self._replayed), age=by_video(self._age), ages=self._ages,
                      distance=by_video(self._distance) / steps[:, None, None],
                      size=by_video(self._size) / steps[:, None, None])

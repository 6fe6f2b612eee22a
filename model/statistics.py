"""Replay statistics of one generation."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from model.gates import Rows, Step


class ReplayStatistics:
    """Counts, per frame, layer and row, of what replayed.

    A *row step* is one row of one layer in one visual step; those after frame 0 are *eligible*. FastCar's replay ratio
    counts all row steps, so that it is at most (frames - 1) / frames; compare lengths by the eligible one.

    ``tas_variant`` is the definition of the temporal attention score that decided, None where none did.
    """

    def __init__(self, layers: int, rows: Rows, tas_variant: str | None = None):
        self.rows = rows
        self.tas_variant = tas_variant
        self._layers = layers
        self._replayed: list[np.ndarray] = []  # per frame int64 [layers, rows]
        self._steps: list[int] = []  # per frame
        self.mlp_calls = 0
        """Layer steps in which any row computed."""
        self.mlp_skips = 0
        """Layer steps in which every row replayed: no weight is needed."""

    def add(self, layer: int, step: Step, computed: Tensor) -> None:
        """Count one layer of one step; ``computed`` bool ``[rows]``."""
        while len(self._steps) <= step.frame:
            self._replayed.append(np.zeros((self._layers, self.rows.count), dtype=np.int64))
            self._steps.append(0)
        self._steps[step.frame] += layer == 0
        replayed = ~computed.numpy()
        self._replayed[step.frame][layer] += replayed
        if replayed.all():
            self.mlp_skips += 1
        else:
            self.mlp_calls += 1

    @property
    def replay_ratio(self) -> float:
        """Replayed share of all row steps."""
        return _ratio(self.replayed, np.array(self._steps))

    @property
    def replay_ratio_eligible(self) -> float:
        """Replayed share of the row steps after frame 0."""
        return _ratio(self.replayed[1:], np.array(self._steps[1:]))

    @property
    def replayed(self) -> np.ndarray:
        """Replayed row steps, int64 ``[frames, layers, rows]``."""
        return np.stack(self._replayed) if self._replayed else np.zeros((0, self._layers, self.rows.count), np.int64)

    def per_layer(self) -> list[float]:
        """Eligible replay ratio of each layer."""
        return [_ratio(self.replayed[1:, layer], np.array(self._steps[1:])) for layer in range(self._layers)]

    def per_frame(self) -> list[float]:
        """Replay ratio of each frame; that of frame 0 is 0."""
        return [_ratio(self.replayed[frame:frame + 1], np.array(self._steps[frame:frame + 1]))
                for frame in range(len(self._steps))]

    def summary(self) -> dict[str, object]:
        """Everything as JSON-ready values; ratios of an empty set are 0."""
        steps, eligible = np.array(self._steps), self.replayed[1:]
        videos = self.rows.videos
        summary: dict[str, object] = {
            "tas_variant": self.tas_variant,
            "replay_ratio": self.replay_ratio,
            "replay_ratio_eligible": self.replay_ratio_eligible,
            "replay_ratio_per_layer": self.per_layer(),
            "replay_ratio_per_frame": self.per_frame(),
            "replay_ratio_conditional": _ratio(eligible[:, :, :videos], steps[1:]),
            "row_steps": int(steps.sum()) * self._layers * self.rows.count,
            "row_steps_eligible": int(steps[1:].sum()) * self._layers * self.rows.count,
            "row_steps_replayed": int(self.replayed.sum()),
            "mlp_calls": self.mlp_calls,
            "mlp_skips": self.mlp_skips,
        }
        if self.rows.guided:
            summary["replay_ratio_unconditional"] = _ratio(eligible[:, :, videos:], steps[1:])
        return summary


def _ratio(replayed: np.ndarray, steps: np.ndarray) -> float:
    """Share of ``steps`` ``[frames]`` times what else ``replayed`` ``[frames, ...]`` counts."""
    possible = int(steps.sum()) * int(np.prod(replayed.shape[1:]))
    return float(replayed.sum()) / possible if possible else 0.0

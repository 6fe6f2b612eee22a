"""Stored runs as series: what tables, plots and verdict are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from model.drift.measures import EQUAL_DB, psnr
from model.drift.plan import Run

QUALITY = ("psnr_db", "ssim", "gmsd", "agreement", "right", "motion", "luminance", "energy")
"""Series ``[prompts, frames]`` of pictures and codes by name."""
ABOUT = {
    "psnr_db": "PSNR against dense, dB (equal frames count as 60)",
    "ssim": "SSIM against dense",
    "gmsd": "gradient magnitude similarity deviation (0: equal)",
    "agreement": "share of codes that are the dense ones",
    "right": "share of frames with the right colours and shape",
    "motion": "motion kept: displacement / true speed",
    "luminance": "mean luma, 0..255",
    "energy": "mean squared change of the luma per frame",
    "ratio": "replay ratio",
    "age": "mean age of replayed values, frames",
    "distance": "|Y - Y dense| / |Y dense|, mean over layers",
    "forced_distance": "|Y - Y dense| / |Y dense|, mean over layers, dense codes fed",
    "divergence": "KL of the guided logits, nats a code, dense codes fed",
}
"""Axis labels of all series."""


@dataclass(frozen=True)
class Result:
    """One run and its arrays as :mod:`model.drift.study` stores them."""

    run: Run
    arrays: dict[str, np.ndarray]

    @property
    def label(self) -> str:
        """The run in words."""
        if self.run.gate == "dense":
            text = "dense, other seed" if self.run.seed_offset else "dense"
        else:
            text = f"{self.run.gate} {self.run.target:.0%}"
        text += f", {self.run.engine} engine" if self.run.engine else ""
        return text + (f", window {self.run.window}" if self.run.window else "")

    @property
    def value(self) -> float | None:
        """Threshold or ratio that the gate was made with."""
        value = float(self.arrays["value"])
        return None if np.isnan(value) else value

    @property
    def prompts(self) -> int:
        return len(self.arrays["codes"])

    @property
    def frames(self) -> int:
        return self.arrays["codes"].shape[1]

    @property
    def has_forced(self) -> bool:
        """Whether the run was made on the dense codes, too."""
        return "forced_distance" in self.arrays

    def series(self, name: str) -> np.ndarray:
        """A name of :data:`ABOUT` as float64 ``[prompts, frames]``; NaN where there is nothing to measure."""
        if name == "psnr_db":
            return np.minimum(psnr(self.arrays["squared_error"]), EQUAL_DB)
        if name == "ratio":
            return self.layers("ratio").mean(axis=1).T
        if name == "age":
            replayed = self.arrays["replayed"].sum(axis=1)
            return _divide(self.arrays["age"].sum(axis=1), replayed).T
        if name in ("distance", "forced_distance"):
            return self.layers(name).mean(axis=1).T
        if name == "divergence":
            return self.arrays["forced_divergence"]
        return self.arrays[name]

    def layers(self, name: str) -> np.ndarray:
        """``ratio``, ``age``, ``distance`` or ``forced_distance`` (relative), float64 ``[frames, layers, prompts]``."""
        if name == "ratio":
            return self.arrays["replayed"] / self.arrays["steps"][:, None, None]
        if name == "age":
            return _divide(self.arrays["age"], self.arrays["replayed"])
        return self.arrays[name] / self.arrays[name.replace("distance", "size")]

    def eligible_ratio(self, frames: int) -> np.ndarray:
        """Eligible replay ratio ``[prompts]`` over the first ``frames`` frames."""
        replayed, steps = self.arrays["replayed"][1:frames], self.arrays["steps"][1:frames]
        return replayed.sum(axis=(0, 1)) / (steps.sum() * replayed.shape[1])

    def all_ratio(self, frames: int) -> float:
        """FastCar's replay ratio: over all steps of the first ``frames`` frames."""
        replayed, steps = self.arrays["replayed"][:frames], self.arrays["steps"][:frames]
        return float(replayed.sum() / (steps.sum() * replayed[0].size))

    def spans(self) -> list[tuple[int, int]]:
        """First and last frames that the checker judged as one."""
        return [(int(first), int(last)) for first, last in self.arrays["spans"]]

    def checked(self, name: str, span: tuple[int, int]) -> np.ndarray:
        """Verdict of the checker ``[prompts]``: a name of :data:`model.drift.study.CHECKS`."""
        return self.arrays[f"check_{name}"][:, self.spans().index(span)]


def _divide(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)

"""Thresholds of the study: those that replay the asked share of a rollout of the study's length.

Found on training prompts, in real rollouts, for every gate and window. Where a gate takes a ratio, that is it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from model.calibrate import TOLERANCE, dense_statistic, solve
from model.drift.plan import Run
from model.drift.store import Store
from model.engine import MlpEngine
from model.gates import GATES, Gate, ThresholdGate, make_gate
from model.generate import generate
from model.transformer import Transformer

BISECTIONS = 3
"""Further rollouts where interpolation missed a target: ratios can jump, where replays make replays likelier."""


class GateError(ValueError):
    """A gate that is unknown, or that a study cannot set by one number."""


def gate_options(name: str, transformer: Transformer) -> dict[str, Any]:
    """How a gate is set besides the one number that calibration finds, or the ratio: its plain attributes.

    Raises GateError for a gate that is unknown, or that such a number does not make.
    """
    studied = [known for known, kind in GATES.items() if kind.scale in ("threshold", "ratio")]
    if name not in studied:
        raise GateError(f"gate must be one of {', '.join(studied)}, not {name!r}")
    try:
        gate = make_gate(name, GATES[name].never, transformer=transformer)
    except (TypeError, ValueError) as error:
        raise GateError(f"gate {name!r} needs more than a threshold ({error}); leave it out") from error
    return {attribute.lstrip("_"): value for attribute, value in sorted(vars(gate).items())
            if attribute not in ("thresholds", "ratio", "needs_scores")
            and isinstance(value, (bool, int, float, str, tuple, type(None)))}


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What thresholds are found on."""

    transformer: Transformer
    engine: MlpEngine
    prompts: Sequence[str]
    seeds: Sequence[int]
    frames: int
    on_step: Callable[[int], None] = lambda videos: None
    """Called with the number of videos after every step of a rollout."""

    def ratios(self, gate: str, window: int | None, thresholds: Sequence[float]) -> list[float]:
        """Eligible replay ratio of each threshold over all prompts, all of them in one rollout."""
        judge = cast(ThresholdGate, self._make(gate, thresholds[0]))
        judge.needs_scores = type(judge).needs_scores  # at a threshold of infinity it does without
        judge.video_thresholds = np.repeat(thresholds, len(self.prompts)).tolist()
        count = len(thresholds)
        videos = count * len(self.prompts)
        made = generate(self.transformer, list(self.prompts) * count, list(self.seeds) * count, frames=self.frames,
                        gate=judge, engine=self.engine, window=window, on_step=lambda progress: self.on_step(videos))
        if not made.complete:
            raise KeyboardInterrupt
        # Rows are [pair, threshold, prompt]; every threshold has the same share of them.
        replayed = made.statistics.replayed[1:].sum(axis=(0, 1)).reshape(-1, count, len(self.prompts)).sum(axis=(0, 2))
        eligible = cast(int, made.statistics.summary()["row_steps_eligible"])
        return (replayed * count / eligible).tolist()

    def statistic(self, gate: str) -> np.ndarray:
        """What the gate compares without replay, float ``[layers, samples]``."""
        return dense_statistic(self.transformer, lambda value: cast(ThresholdGate, self._make(gate, value)),
                               self.prompts, self.seeds, self.frames)

    def points(self, gate: str, window: int | None, targets: Sequence[float],
               statistic: np.ndarray) -> dict[float, tuple[float, float]]:
        """(ratio, threshold) nearest to each target; ``statistic``: that of :meth:`statistic`."""
        high = GATES[gate].high_replays
        tried: list[tuple[float, float]] = []

        def measure(thresholds: list[float]) -> list[float]:
            ratios = self.ratios(gate, window, thresholds)
            tried.extend(zip(ratios, thresholds))
            return ratios

        # Quantiles would be the answer if replay changed nothing; what it does change grows along chains of replays.
        shares = [0.0, *sorted(targets), 1.0]
        start = np.quantile(statistic[np.isfinite(statistic)], [1 - share if high else share for share in shares])
        if not high:
            start[-1] *= 2
        solve(measure, sorted(targets), start.tolist())
        for _ in range(BISECTIONS):
            middles = {middle for target in targets if (middle := _middle(tried, target)) is not None}
            if not middles:
                break
            measure(sorted(middles))
        return {target: min(tried, key=lambda point: abs(point[0] - target)) for target in targets}

    def _make(self, gate: str, value: float) -> Gate:
        return make_gate(gate, value, transformer=self.transformer)


def _middle(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Threshold half way between those around ``target``; None if one is near it or it is outside."""
    below = [point for point in points if point[0] <= target]
    above = [point for point in points if point[0] > target]
    if not below or not above or min(abs(ratio - target) for ratio, _ in points) <= TOLERANCE:
        return None
    return (max(below)[1] + min(above)[1]) / 2


def calibrated(store: Store, runs: Sequence[Run], calibration: Calibration) -> dict[str, float]:
    """Threshold or ratio of every run by name; what is missing in the store is calibrated and kept there."""
    values: dict[str, float] = {}
    statistics: dict[str, np.ndarray] = {}
    groups = dict.fromkeys((run.gate, run.window) for run in runs if run.target)
    for gate, window in groups:
        wanted = [run for run in runs if (run.gate, run.window) == (gate, window)]
        if GATES[gate].scale == "ratio":
            values |= {run.name: run.target for run in wanted}
            continue
        known = store.thresholds
        missing = [run.target for run in wanted if run.name not in known]
        if missing:
            if gate not in statistics:
                statistics[gate] = calibration.statistic(gate)
            points = calibration.points(gate, window, missing, statistics[gate])
            known |= {run.name: {"ratio": points[run.target][0], "threshold": points[run.target][1]}
                      for run in wanted if run.target in points}
            store.save_thresholds(known)
        values |= {run.name: known[run.name]["threshold"] for run in wanted}
    return values

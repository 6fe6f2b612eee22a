"""Tidy tables of a study, one CSV file a subject. Empty: nothing to measure. Intervals are of 95 %."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model.drift.frontier import Point
from model.drift.results import QUALITY, Result
from model.drift.study import CHECKS
from model.drift.trend import Bootstrap, wilson

KEYS = ("gate", "target", "window", "engine", "seed_offset")
"""Columns that name a run in every table."""
LAYER_SERIES = ("ratio", "age", "distance", "forced_distance")


def keys(result: Result) -> dict[str, Any]:
    """Values of :data:`KEYS`."""
    return {name: getattr(result.run, name) for name in KEYS}


def run_rows(results: Sequence[Result], lengths: Sequence[int], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """One row a run and length: what it reached, and how good the first frames are."""
    rows = []
    for result in results:
        for length in lengths:
            ok = result.checked("ok", (0, length - 1))
            accuracy, motion = wilson(int(ok.sum()), len(ok)), bootstrap.mean(result.checked("motion_kept",
                                                                                             (0, length - 1)))
            row = {**keys(result), "frames": length, "prompts": result.prompts, "value": result.value,
                   "ratio_eligible": float(result.eligible_ratio(length).mean()), "ratio_all": result.all_ratio(length),
                   "accuracy": accuracy.value, "accuracy_low": accuracy.low, "accuracy_high": accuracy.high,
                   "motion_kept": motion.value, "motion_kept_low": motion.low, "motion_kept_high": motion.high}
            # Frame 0 never replays: it would only dilute.
            for name in ("psnr_db", "ssim", "gmsd", "agreement", "right", "distance", "forced_distance", "divergence"):
                row[name] = _mean(result.series(name)[:, 1:length]) if _has(result, name) else None
            rows.append(row)
    return rows


def frame_rows(results: Sequence[Result]) -> Iterable[dict[str, Any]]:
    """One row a run, prompt and frame."""
    for result in results:
        names = [name for name in (*QUALITY, "ratio", "age", "distance", "forced_distance", "divergence")
                 if _has(result, name)]
        series = {name: result.series(name) for name in names}
        for prompt in range(result.prompts):
            for frame in range(result.frames):
                yield {**keys(result), "prompt": prompt, "frame": frame,
                       **{name: values[prompt, frame] for name, values in series.items() if prompt < len(values)}}


def layer_rows(results: Sequence[Result]) -> Iterable[dict[str, Any]]:
    """One row a run, frame and layer: means over prompts, and d(t, l) as it is (not relative)."""
    for result in results:
        means = {name: _over_prompts(result.layers(name)) for name in LAYER_SERIES if _has(result, name)}
        means |= {f"{name}_absolute": result.arrays[name].mean(axis=2) for name in ("distance", "forced_distance")
                  if _has(result, name)}
        frames, layers = means["ratio"].shape
        for frame in range(frames):
            for layer in range(layers):
                yield {**keys(result), "frame": frame, "layer": layer,
                       **{name: values[frame, layer] for name, values in means.items()}}


def age_rows(results: Sequence[Result]) -> Iterable[dict[str, Any]]:
    """One row a run, layer and age in frames: replayed row steps of all prompts."""
    for result in results:
        for layer, counts in enumerate(result.arrays["ages"]):
            for age in np.flatnonzero(counts):
                yield {**keys(result), "layer": layer, "age": int(age), "row_steps": int(counts[age])}


def video_rows(results: Sequence[Result], prompts: Sequence[str]) -> Iterable[dict[str, Any]]:
    """One row a run, prompt and span of frames that the checker judged as one."""
    for result in results:
        for number, prompt in enumerate(prompts):
            for first, last in result.spans():
                yield {**keys(result), "prompt": number, "text": prompt, "first": first, "last": last,
                       **{name: result.checked(name, (first, last))[number] for name in CHECKS}}


def point_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """One row a gate, length, ratio and measure at equal replay ratio."""
    return [{"gate": point.gate, "frames": point.frames, "ratio": point.ratio, "measure": point.measure,
             "value": point.value.value, "low": point.value.low, "high": point.value.high,
             **({} if point.difference is None else
                {"difference": point.difference.value, "difference_low": point.difference.low,
                 "difference_high": point.difference.high})} for point in points]


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows, the union of their columns in order of appearance; numbers with 6 digits."""
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _text(value) for name, value in row.items()} for row in rows)


def _text(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return f"{value:.6g}" if np.isfinite(value) else ""
    return value


def _has(result: Result, name: str) -> bool:
    return result.has_forced or name not in ("forced_distance", "divergence")


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values))


def _over_prompts(values: np.ndarray) -> np.ndarray:
    """Mean over the last dimension of what is not NaN; NaN where all is."""
    there = np.isfinite(values).sum(axis=-1)
    return np.divide(np.nansum(values, axis=-1), there, out=np.full(values.shape[:-1], np.nan), where=there > 0)

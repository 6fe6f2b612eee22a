"""Figures of a study. In every panel over frames stand the controls: dense, and dense with another seed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from model.drift.results import ABOUT, Result
from model.drift.trend import Bootstrap, wilson

COLOURS = ("#d1495b", "#2e6f95", "#edae49", "#7fb069", "#8d6a9f", "#5c4742", "#00798c", "#b8336a")
CONTROLS, WINDOWED = ("#222222", "#999999"), "#c77dff"
_BAND = 200
"""Resamples of the shaded intervals, which are only looked at."""


def colours(gates: Sequence[str]) -> dict[str, str]:
    """One colour a gate."""
    return {gate: COLOURS[place % len(COLOURS)] for place, gate in enumerate(gates)}


def over_frames(name: str, panels: dict[str, list[Result]], controls: Sequence[Result], gates: Sequence[str]) -> Figure:
    """A series over the frame index: one panel a title, a line a run with its interval over prompts."""
    figure = Figure(figsize=(3.6 * len(panels) + 1.6, 3.0), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    shown = colours(gates)
    for panel, (title, results) in zip(axes, panels.items()):
        for control, colour in zip(controls, CONTROLS):
            if name in ("forced_distance", "divergence") and not control.has_forced:
                continue
            _line(panel, control.series(name), colour, control.label, dashed=True)
        for result in results:
            dashed = result.run.gate == "dense"
            _line(panel, result.series(name), WINDOWED if dashed else shown[result.run.gate],
                  "dense, that window" if dashed else result.run.gate, dashed=dashed)
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("frame")
        panel.grid(alpha=0.3)
    axes[0].set_ylabel(textwrap.fill(ABOUT[name], 34), fontsize=8)
    _legend(figure, axes)
    return figure


def _line(panel: Axes, series: np.ndarray, colour: str, label: str, dashed: bool = False) -> None:
    picks = Bootstrap(len(series), 0, _BAND).picks
    there = np.isfinite(series)
    frames = np.flatnonzero(there.any(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        samples = np.nansum(series[picks], axis=1) / there[picks].sum(axis=1)
        mean = np.nansum(series, axis=0) / there.sum(axis=0)
    if not len(frames):
        return
    low, high = np.nanquantile(samples[:, frames], [0.025, 0.975], axis=0)
    panel.plot(frames, mean[frames], color=colour, label=label, linestyle="--" if dashed else "-", linewidth=1.2)
    panel.fill_between(frames, low, high, color=colour, alpha=0.12, linewidth=0)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One entry a label of all panels."""
    entries: dict[str, Artist] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels()):
            entries.setdefault(label, handle)
    figure.legend(list(entries.values()), list(entries), loc="outside right center", fontsize=7)


def heat_maps(name: str, grid: dict[str, list[Result]]) -> Figure:
    """``[layer, frame]`` maps, mean over prompts: one row a key of ``grid``, one scale for all."""
    columns = max(len(row) for row in grid.values())
    figure = Figure(figsize=(3.2 * columns + 1, 1.5 * len(grid) + 0.4), layout="constrained")
    axes = figure.subplots(len(grid), columns, squeeze=False)
    maps = [[result.layers(name).mean(axis=2).T for result in row] for row in grid.values()]
    top = max(float(shown.max()) for row in maps for shown in row)
    picture = None
    for panels, results, values in zip(axes, grid.values(), maps):
        for panel in panels[len(results):]:
            panel.set_visible(False)
        for panel, result, shown in zip(panels, results, values):
            picture = panel.imshow(shown, aspect="auto", origin="lower", vmin=0, vmax=top, cmap="magma",
                                   interpolation="nearest")
            panel.set_title(result.label, fontsize=8)
            panel.set(xlabel="frame", ylabel="layer")
    if picture is not None:
        figure.colorbar(picture, ax=axes, label=ABOUT[name].replace(", mean over layers", ""), shrink=0.8)
    return figure


def ages(results: Sequence[Result], gates: Sequence[str]) -> Figure:
    """Share of replayed row steps by the age of the value, a panel a target ratio."""
    targets = sorted({result.run.target for result in results})
    figure = Figure(figsize=(3.6 * len(targets) + 1.6, 2.8), layout="constrained")
    axes = figure.subplots(1, len(targets), squeeze=False, sharey=True)[0]
    shown = colours(gates)
    for panel, target in zip(axes, targets):
        for result in results:
            counts = result.arrays["ages"].sum(axis=0)
            if result.run.target == target and counts.sum():
                found = np.flatnonzero(counts)
                panel.plot(found, counts[found] / counts.sum(), color=shown[result.run.gate], label=result.run.gate,
                           marker=".", markersize=3, linewidth=1)
        panel.set(xlabel="age, frames", yscale="log", xscale="log")
        panel.set_title(f"replay {target:.0%}", fontsize=9)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("share of replayed row steps")
    _legend(figure, axes)
    return figure


def frontier(dense: Result, runs: Sequence[Sequence[Result]], lengths: Sequence[int], gates: Sequence[str],
             seed: int) -> Figure:
    """Checker accuracy and motion kept against the eligible replay ratio reached, a column a length."""
    figure = Figure(figsize=(3.6 * len(lengths) + 1.4, 5.2), layout="constrained")
    axes = figure.subplots(2, len(lengths), squeeze=False, sharex=True, sharey="row")
    shown = colours(gates)
    bootstrap = Bootstrap(dense.prompts, seed)
    for column, length in enumerate(lengths):
        for series in runs:
            points = sorted([dense, *series], key=lambda result: result.eligible_ratio(length).mean())
            x = [result.eligible_ratio(length).mean() for result in points]
            checked = [result.checked("ok", (0, length - 1)) for result in points]
            found = ([wilson(int(values.sum()), len(values)) for values in checked],
                     [bootstrap.mean(result.checked("motion_kept", (0, length - 1))) for result in points])
            for panel, intervals in zip(axes[:, column], found):
                y = np.array([item.value for item in intervals])
                # Rounding can put an end of a Wilson interval of 0 or 1 a hair inside the value.
                spread = np.maximum([y - [item.low for item in intervals], [item.high for item in intervals] - y], 0)
                panel.errorbar(x, y, spread, color=shown[series[0].run.gate], label=series[0].run.gate, capsize=2,
                               marker="o", markersize=3, linewidth=1)
        axes[0][column].set_title(f"first {length} frames", fontsize=9)
        axes[1][column].set_xlabel("eligible replay ratio reached")
        for panel in axes[:, column]:
            panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("videos right (checker)")
    axes[1][0].set_ylabel("motion kept")
    _legend(figure, axes[0])
    return figure


def side_by_side(dense: np.ndarray, videos: dict[str, np.ndarray], frames: Sequence[int], prompt: str) -> Figure:
    """Chosen frames of the dense video, of every other one and its difference to dense (grey is none).

    ``dense`` and the ``videos`` by label are uint8 ``[T, height, width, 3]``.
    """
    rows: list[tuple[str, np.ndarray]] = [("dense", dense)]
    for label, video in videos.items():
        difference = (128 + (video.astype(np.int32) - dense) // 2).clip(0, 255).astype(np.uint8)
        rows += [(label, video), ("difference", difference)]
    figure = Figure(figsize=(1.0 * len(frames) + 1.2, 0.98 * len(rows) + 0.5), layout="constrained")
    axes = figure.subplots(len(rows), len(frames), squeeze=False)
    for panels, (label, video) in zip(axes, rows):
        for panel, frame in zip(panels, frames):
            panel.imshow(video[frame], interpolation="nearest")
            panel.set_xticks([])
            panel.set_yticks([])
        panels[0].set_ylabel(label, fontsize=7, rotation=0, ha="right", va="center")
    for panel, frame in zip(axes[0], frames):
        panel.set_title(f"frame {frame}", fontsize=7)
    figure.suptitle(prompt, fontsize=9)
    return figure

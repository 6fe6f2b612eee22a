"""The picture of ``model.profile``: shares of time as stacked bars, one panel a subject and phase."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from matplotlib.figure import Figure

COLOURS = ("#d1495b", "#2e6f95", "#7fb069", "#edae49", "#b8b8b8")


class Measured(Protocol):
    """A measurement: see :class:`model.profile.Measurement`."""

    @property
    def subject(self) -> str: ...

    @property
    def phase(self) -> str: ...

    @property
    def length(self) -> int: ...

    @property
    def seconds(self) -> dict[str, float]: ...

    @property
    def total(self) -> float: ...


def write_plot(path: Path, measurements: Sequence[Measured], parts: Sequence[str], phases: Sequence[str],
               conditions: dict[str, Any]) -> None:
    """Write a PNG; over each bar stand the milliseconds that it is a share of."""
    subjects = list(dict.fromkeys(found.subject for found in measurements))
    figure = Figure(figsize=(5 * len(phases), 3.2 * len(subjects)), layout="constrained")
    axes = figure.subplots(len(subjects), len(phases), squeeze=False)
    for row, subject in enumerate(subjects):
        for column, phase in enumerate(phases):
            panel = axes[row][column]
            shown = [found for found in measurements if (found.subject, found.phase) == (subject, phase)]
            base = [0.0] * len(shown)
            for part, colour in zip(parts, COLOURS):
                shares = [100 * found.seconds[part] / found.total for found in shown]
                panel.bar(range(len(shown)), shares, bottom=base, color=colour, label=part)
                base = [low + share for low, share in zip(base, shares)]
            for place, found in enumerate(shown):
                digits = 0 if found.total >= 0.1 else 1
                panel.text(place, 101, f"{1e3 * found.total:,.{digits}f} ms", ha="center", va="bottom", fontsize=8)
            panel.set_xticks(range(len(shown)), [str(found.length) for found in shown])
            panel.set(title=f"{subject}\n{phase}", xlabel="tokens" if phase == "prefill" else "tokens before",
                      ylabel="share of time, %", ylim=(0, 112))
            panel.title.set_fontsize(9)
    axes[0][-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    figure.suptitle(f"{conditions['rows']} rows, {conditions['threads']} thread(s), torch {conditions['torch']}, "
                    f"load {conditions['load_average_at_start']} at the start", fontsize=9)
    figure.savefig(path, dpi=110)

"""The verdict on drift, by the rule of the reviewers: three questions, answered by numbers with intervals.

1. Is d(t, l) monotone in t? 2. Does the replay ratio run to 100 %? 3. Does quality fall with the frame index?
Trends are over frames 1 to the last, and again over the second half: what rises at first and then stays is not what
accumulates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.drift.results import ABOUT, Result
from model.drift.trend import Bootstrap, Interval, Trend, wilson

MONOTONE = 0.9
"""Least Kendall tau at which the mean series counts as monotone: at most one pair of frames in 20 is out of order."""
FULL = 0.99
"""A replay ratio from here on counts as 100 %."""
MARGINS = {"right": 0.05, "motion": 0.1, "luminance": 2.55}
"""What a stable dense rollout may lose of the first two, and change in the third (of 255)."""
QUALITY = {"psnr_db": "PSNR", "right": "frames with the right colours and shape", "motion": "motion kept"}
"""What is judged by question 3; higher is better."""
FORMS = {"psnr_db": ".1f", "right": ".1%", "motion": ".2f", "luminance": ".1f"}


@dataclass(frozen=True)
class Halves:
    """A trend over all eligible frames, and over the second half of them."""

    whole: Trend
    late: Trend

    @classmethod
    def of(cls, series: np.ndarray, bootstrap: Bootstrap) -> Halves:
        frames = series.shape[1]
        return cls(Trend.of(series, 1, bootstrap), Trend.of(series, frames // 2, bootstrap))


@dataclass(frozen=True)
class Verdict:
    """Numbers and answers about one run: ``monotone``, ``grows_late``: question 1, ``climbs``, ``full``: question 2,
    ``falls``: question 3.

    Parameters
    ----------
    distance, forced_distance : Halves
        Relative to ``|Y_dense|``, mean over layers; on its own codes, and on the dense ones where that was run.
    late_layers : tuple of :class:`int`
        Layers whose distance still rises in the second half.
    ratio : Halves
        Replay ratio, mean over layers.
    full_layers : tuple of :class:`int`
        Layers whose ratio in the last frames is :data:`FULL` or more.
    full_prompts : :class:`int`
        Prompts whose ratio in the last frames is.
    quality, against_dense : dict
        By name of :data:`QUALITY`; the second: difference to dense in the last frames, paired.
    """

    result: Result
    distance: Halves
    forced_distance: Halves | None
    late_layers: tuple[int, ...]
    ratio: Halves
    full_layers: tuple[int, ...]
    full_prompts: int
    quality: dict[str, Halves]
    against_dense: dict[str, Interval]

    @property
    def judged(self) -> Halves:
        """The distance that is judged: on dense codes where measured, because there nothing but replay differs."""
        return self.forced_distance or self.distance

    @property
    def monotone(self) -> bool:
        """Whether d rises over all frames, nearly all pairs of frames in order."""
        return self.judged.whole.direction > 0 and self.judged.whole.kendall.tau >= MONOTONE

    @property
    def grows_late(self) -> bool:
        """Whether d still rises in the second half."""
        return self.judged.late.direction > 0

    @property
    def climbs(self) -> bool:
        """Whether the replay ratio still rises in the second half."""
        return self.ratio.late.direction > 0

    @property
    def full(self) -> bool:
        """Whether the ratio of the last frames is 100 %."""
        return self.ratio.whole.end.value >= FULL

    @property
    def falls(self) -> dict[str, bool]:
        """Whether each measure of quality falls over all frames."""
        return {name: halves.whole.direction < 0 for name, halves in self.quality.items()}

    def sentences(self) -> list[str]:
        """The answers in words."""
        return [f"{self.result.label} ({self.ratio.whole.frames + 1} frames, {self.result.prompts} prompts, "
                f"{self.result.eligible_ratio(self.result.frames).mean():.1%} of eligible steps replayed):",
                *self._distance(), self._ratio(), *self._quality()]

    def _distance(self) -> list[str]:
        lines = []
        for halves, where in ((self.forced_distance, "dense codes fed"), (self.distance, "own codes")):
            if halves is None:
                continue
            whole, late = halves.whole, halves.late
            shape = ("is monotone in t" if whole.direction > 0 and whole.kendall.tau >= MONOTONE else
                     f"{WORDS[whole.direction]} over frames {_range(whole)}, not monotone"
                     if whole.direction > 0 else f"{WORDS[whole.direction]} over frames {_range(whole)}")
            lines.append(f"d relative to |Y|, {where}: {shape} ({_trend(whole, '.1%')}; Spearman of prompts "
                         f"{_interval(whole.spearman, '+.2f')}, Kendall tau of the mean {whole.kendall.tau:+.2f}); in "
                         f"frames {_range(late)} it {WORDS[late.direction]} ({_trend(late, '.1%')}).")
        rising = ", ".join(map(str, self.late_layers)) or "none"
        return [*lines, f"Layers whose d still rises in the second half: {rising}."]

    def _ratio(self) -> str:
        whole, late = self.ratio.whole, self.ratio.late
        runs = ("reaches 100 % at the end" if self.full else
                "does not reach 100 % but still climbs" if self.climbs else "does not run to 100 %")
        return (f"The replay ratio {runs}: {WORDS[whole.direction]} over frames {_range(whole)} "
                f"({_trend(whole, '.1%')}), {WORDS[late.direction]} over {_range(late)} "
                f"(slope {_interval(late.slope, '+.3%')} a frame). Of the last {whole.ends} frames, {FULL:.0%} or more "
                f"replay in {self.full_prompts} of {self.result.prompts} prompts, and in layers "
                f"{', '.join(map(str, self.full_layers)) or 'none'}.")

    def _quality(self) -> list[str]:
        lines = [f"{QUALITY[name]} {WORDS[halves.whole.direction]} with the frame index "
                 f"({_trend(halves.whole, FORMS[name])}); second half: {WORDS[halves.late.direction]}."
                 for name, halves in self.quality.items()]
        differences = ", ".join(f"{QUALITY[name]} {_interval(found, '+' + FORMS[name])}"
                                for name, found in self.against_dense.items())
        return [*lines, f"Last {self.ratio.whole.ends} frames against dense, paired: {differences}."]


WORDS = {1: "rises", -1: "falls", 0: "shows no trend"}


def judge(result: Result, dense: Result, seed: int) -> Verdict:
    """Verdict on one run; intervals resample prompts with ``seed``."""
    prompts = Bootstrap(result.prompts, seed)
    forced, layers = None, result.layers("distance")
    source = prompts
    if result.has_forced:
        source = Bootstrap(len(result.arrays["forced_divergence"]), seed)
        forced, layers = Halves.of(result.series("forced_distance"), source), result.layers("forced_distance")
    rising = [layer for layer in range(layers.shape[1])
              if Trend.of(layers[:, layer].T, len(layers) // 2, source).direction > 0]
    quality = {name: Halves.of(result.series(name), prompts) for name in QUALITY}
    ratio = Halves.of(result.series("ratio"), prompts)
    last = result.layers("ratio")[-ratio.whole.ends:].mean(axis=0)
    ends = quality["motion"].whole.ends
    return Verdict(result=result, distance=Halves.of(result.series("distance"), prompts), forced_distance=forced,
                   late_layers=tuple(rising), ratio=ratio,
                   full_layers=tuple(np.flatnonzero(last.mean(axis=1) >= FULL).tolist()),
                   full_prompts=int((last.mean(axis=0) >= FULL).sum()), quality=quality,
                   against_dense={name: prompts.mean((result.series(name) - dense.series(name))[:, -ends:].mean(axis=1))
                                  for name in ("right", "motion")})


def dense_is_stable(dense: Result, seed: int) -> tuple[bool, list[str]]:
    """Whether the dense rollout itself holds, without which drift against it would say little; and sentences.

    Stable: the change from the first to the last frames is within :data:`MARGINS` with its whole interval.
    """
    prompts = Bootstrap(dense.prompts, seed)
    trends = {name: Trend.of(dense.series(name), 1, prompts) for name in MARGINS}
    stable = all(trends[name].change.low > -margin and (name != "luminance" or trends[name].change.high < margin)
                 for name, margin in MARGINS.items())
    checked = dense.checked("ok", (0, dense.frames - 1))
    share = wilson(int(checked.sum()), len(checked))
    lines = [f"The dense rollout is {'stable' if stable else 'not shown to be stable'} over {dense.frames} frames: "
             f"{int(checked.sum())} of {len(checked)} videos right as a whole ({_interval(share, '.1%')})."]
    return stable, [*lines, *(f"Dense: {ABOUT[name]}, {_trend(trend, FORMS[name])}; margin {MARGINS[name]}."
                              for name, trend in trends.items())]


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Everything JSON-ready."""
    content: dict[str, Any] = {name: dataclasses.asdict(value) for name, value in
               (("distance", verdict.distance), ("ratio", verdict.ratio))}
    content["forced_distance"] = dataclasses.asdict(verdict.forced_distance) if verdict.forced_distance else None
    return {**dataclasses.asdict(verdict.result.run), "label": verdict.result.label, "value": verdict.result.value,
            "ratio_eligible": float(verdict.result.eligible_ratio(verdict.result.frames).mean()),
            "answers": {"d_monotone": verdict.monotone, "d_grows_late": verdict.grows_late,
                        "ratio_climbs_late": verdict.climbs, "ratio_reaches_full": verdict.full,
                        "falls": verdict.falls},
            **content, "late_layers": list(verdict.late_layers), "full_layers": list(verdict.full_layers),
            "full_prompts": verdict.full_prompts,
            "quality": {name: dataclasses.asdict(halves) for name, halves in verdict.quality.items()},
            "against_dense": {name: dataclasses.asdict(found) for name, found in verdict.against_dense.items()},
            "sentences": verdict.sentences()}


def summary(verdicts: Sequence[Verdict]) -> list[dict[str, str]]:
    """One row of plain answers a run, for a table; where a trend is asked for, with the change that goes with it."""
    def answer(value: bool, change: str = "") -> str:
        return f"{'yes' if value else 'no'}{', ' * bool(change)}{change}"

    def change(trend: Trend, form: str) -> str:
        return format(trend.change.value, "+" + form)

    return [{"run": item.result.label, "replayed": f"{item.result.eligible_ratio(item.result.frames).mean():.1%}",
             "d monotone in t": answer(item.monotone, change(item.judged.whole, ".1%")),
             "d grows in the second half": answer(item.grows_late, change(item.judged.late, ".1%")),
             "ratio climbs in the second half": answer(item.climbs, change(item.ratio.late, ".1%")),
             "ratio reaches 100 %": answer(item.full, f"{item.ratio.whole.end.value:.1%}"),
             **{f"{QUALITY[name]} falls": answer(falls, change(item.quality[name].whole, FORMS[name]))
                for name, falls in item.falls.items()}} for item in verdicts]


def _range(trend: Trend) -> str:
    return f"{trend.first_frame}-{trend.first_frame + trend.frames - 1}"


def _trend(trend: Trend, form: str) -> str:
    more = form.replace(".1", ".3") if "%" in form else ".4f"
    return (f"first {trend.ends} {format(trend.start.value, form)}, last {trend.ends} "
            f"{_interval(trend.end, form)}, change {_interval(trend.change, '+' + form)}, slope "
            f"{_interval(trend.slope, '+' + more)} a frame")


def _interval(found: Interval, form: str) -> str:
    return f"{format(found.value, form)} [{format(found.low, form)}, {format(found.high, form)}]"

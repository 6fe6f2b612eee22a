"""Tables, verdict and one self-contained page of a study."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from model.drift import plots, tables
from model.drift.frontier import frontier
from model.drift.plan import DENSE, OTHER, WINDOW_RATIO, Run, Settings
from model.drift.results import Result
from model.drift.store import Store, write
from model.drift.trend import LEVEL, RESAMPLES, Bootstrap
from model.drift.verdict import as_json, dense_is_stable, judge, summary
from model.visual import VisualTokenizer

STYLE = ("body{font:15px/1.45 sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#222}"
         "table{border-collapse:collapse;font-size:12px}td,th{border:1px solid #ccc;padding:.2em .5em;text-align:right}"
         "td:first-child{text-align:left}img{max-width:100%}li{margin:.2em 0}")


def write_report(store: Store, settings: Settings, runs: Sequence[Run], visual: VisualTokenizer,
                 prompts: Sequence[str], lengths: Sequence[int]) -> dict[str, Any]:
    """Write ``*.csv``, ``verdict.json`` and ``report.html`` about ``runs``, dense first; the verdict."""
    results = [Result(run, store.load(run.name)) for run in runs]
    dense, gated = results[0], [result for result in results if result.run.gate != "dense"]
    # What windows and engines do alone is judged as gates are; another seed is no drift.
    judged = [result for result in results if result.run not in (DENSE, OTHER)]
    gates = list(dict.fromkeys(result.run.gate for result in gated))
    plain = [[result for result in gated if result.run.gate == gate and not result.run.window] for gate in gates]
    ratios = sorted({result.run.target for result in gated})
    bootstrap = Bootstrap(settings.prompts, settings.seed)
    points = frontier(dense, plain, ratios, lengths, bootstrap)
    run_rows = tables.run_rows(results, lengths, bootstrap)
    for name, rows in (("runs", run_rows), ("frames", tables.frame_rows(results)),
                       ("layers", tables.layer_rows(results)), ("ages", tables.age_rows(results)),
                       ("videos", tables.video_rows(results, prompts)), ("frontier", tables.point_rows(points))):
        tables.write_csv(store.folder / f"{name}.csv", rows)
    stable, sentences = dense_is_stable(dense, settings.seed)
    verdicts = [judge(result, dense, settings.seed) for result in judged]
    content: dict[str, Any] = {"settings": dataclasses.asdict(settings),
               "intervals": {"level": LEVEL, "resamples": RESAMPLES, "seed": settings.seed, "over": "prompts"},
               "dense_is_stable": stable, "runs": [as_json(verdict) for verdict in verdicts],
               "sentences": [f"Intervals: {LEVEL:.0%}, over prompts ({settings.prompts}, {settings.forced} on dense "
                             f"codes), bootstrap with seed {settings.seed}, Wilson for shares of videos.",
                             *sentences, *(line for verdict in verdicts for line in verdict.sentences())]}
    write(store.folder / "verdict.json", json.dumps(content, indent=1) + "\n")
    parts = [_heading("Verdict"), _list(content["sentences"][:1 + len(sentences)]), _table(summary(verdicts)),
             *(_entry(verdict.sentences()) for verdict in verdicts),
             _heading("Runs"), _table([_shown(row) for row in run_rows]),
             _heading("At equal replay ratio"), _note("Interpolated along each gate's line; difference to the first."),
             _table([_shown(row) for row in tables.point_rows(points)])]
    parts += _figures(results, plain, gates, lengths, settings)
    parts += _pictures(results, visual, prompts)
    page = (f"<!doctype html><html lang=en><meta charset=utf-8><title>Drift of replay</title><style>{STYLE}</style>"
            f"<h1>Drift and motion under replay</h1><p>{html.escape(json.dumps(content['settings']))}</p>"
            + "\n".join(parts) + "</html>\n")
    write(store.folder / "report.html", page)
    return content


def _figures(results: Sequence[Result], plain: Sequence[Sequence[Result]], gates: Sequence[str],
             lengths: Sequence[int], settings: Settings) -> list[str]:
    dense, *others = results
    controls = [dense, *(result for result in others if result.run == OTHER)]
    dense_windows = [result for result in others if result.run.gate == "dense" and result.run.window]
    parts = [_heading("Dense over time"),
             *(_image(plots.over_frames(name, {"": []} | {f"window {result.run.window}": [result]
                                                          for result in dense_windows}, controls, gates))
               for name in ("right", "motion", "luminance"))]
    flat = [result for runs in plain for result in runs]
    if not flat:
        return parts
    panels = {f"replay {ratio:.0%}": [result for result in flat if result.run.target == ratio]
              for ratio in sorted({result.run.target for result in flat})}
    grid = {runs[0].run.gate: list(runs) for runs in plain}
    parts += [_heading("Replay ratio against accuracy and motion"),
              _image(plots.frontier(dense, plain, lengths, gates, settings.seed)), _heading("Quality over frames")]
    parts += [_image(plots.over_frames(name, panels, controls, gates))
              for name in ("psnr_db", "ssim", "gmsd", "agreement", "right", "motion", "luminance", "energy")]
    parts += [_heading("Distance of MLP outputs to dense, d(t, l)"),
              _note("Dense codes fed (teacher forcing): only replay differs. Own codes: other codes differ, too; the "
                    "dense rollout with another seed shows how far that goes.")]
    for name in ("forced_distance", "distance"):
        parts += [_image(plots.over_frames(name, panels, controls, gates)), _image(plots.heat_maps(name, grid))]
    parts += [_image(plots.over_frames("divergence", panels, controls, gates)),
              _heading("Replay ratio and age over frames"), _image(plots.over_frames("ratio", panels, controls, gates)),
              _image(plots.heat_maps("ratio", grid)), _image(plots.over_frames("age", panels, controls, gates)),
              _image(plots.ages(flat, gates))]
    windows = {gate: [result for result in results if result.run.gate == gate and result.run.target == WINDOW_RATIO]
               for gate in gates}
    if dense_windows and all(windows.values()):
        titles = {f"window {window or 'of the model'}": [*(r for r in dense_windows if r.run.window == window),
                                                        *(r for runs in windows.values() for r in runs
                                                          if r.run.window == window)]
                  for window in dict.fromkeys(r.run.window for runs in windows.values() for r in runs)}
        parts += [_heading(f"Attention windows at {WINDOW_RATIO:.0%}"),
                  *(_image(plots.over_frames(name, titles, controls, gates))
                    for name in ("psnr_db", "right", "motion"))]
    return parts


def _pictures(results: Sequence[Result], visual: VisualTokenizer, prompts: Sequence[str], count: int = 2) -> list[str]:
    """Frames of the first prompts at the ratio of windows, or the highest one."""
    gated = [result for result in results if result.run.gate != "dense" and not result.run.window]
    if not gated:
        return []
    targets = {result.run.target for result in gated}
    target = WINDOW_RATIO if WINDOW_RATIO in targets else max(targets)
    frames = np.unique(np.linspace(0, results[0].frames - 1, 9).round().astype(int)).tolist()

    def decoded(result: Result, prompt: int) -> np.ndarray:
        return visual.decode(torch.from_numpy(result.arrays["codes"][prompt].astype(np.int64)))

    return [_heading(f"Frames at {target:.0%} replay"),
            *(_image(plots.side_by_side(decoded(results[0], number), {
                result.label: decoded(result, number) for result in gated if result.run.target == target},
                frames, prompts[number])) for number in range(min(count, len(prompts))))]


def _image(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=95)
    return f'<p><img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"></p>'


def _heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def _note(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _entry(lines: Sequence[str]) -> str:
    return f"<details><summary>{html.escape(lines[0])}</summary>{_list(lines[1:])}</details>"


def _table(rows: Sequence[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(str(row.get(name, '')))}</td>" for name in columns) + "</tr>"
                   for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _shown(row: dict[str, Any]) -> dict[str, str]:
    """A row of a table with few digits and without what is not there."""
    return {name.replace("_", " "): f"{value:.3f}" if isinstance(value, float) else str(value)
            for name, value in row.items() if value is not None and name != "seed_offset"}

"""The evidence table: ``python -m model.table --out DIR [--videos 100]``.

What replay costs in quality: dense, and 20 % to 80 % replay by each gate and by chance, on the integer model.
For every row the same held-out prompts and seeds: eligible replay ratio, PSNR against the dense videos, checker
accuracy, motion kept. Thresholds are the calibrated ones (model/calibrate.py). Each row is kept in DIR when it is
done; a second run goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model import checkpoint
from model.checker import check
from model.engine import IntegerMlp, MlpEngine
from model.evaluate import held_out_prompts
from model.gates import THRESHOLD_GATES, DenseGate, Gate, RandomGate
from model.generate import generate
from model.presets import PresetError, ReplayPresets, fingerprint, load_presets
from model.replay import FloatMlp
from model.transformer import Transformer
from model.visual import VisualTokenizer

RATIOS = {"change": (0.2, 0.5, 0.65, 0.8), "tas": (0.2, 0.5, 0.8), "random": (0.2, 0.5, 0.8)}
"""Targets of each gate; 65 % by the change gate is the default of the host."""
ENGINES: dict[str, Callable[[Transformer], MlpEngine]] = {"integer": IntegerMlp.of, "float": FloatMlp}
RESULTS, DENSE_FRAMES, TABLE = "rows.json", "dense.npz", "table.md"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table: a gate at a target ratio; ``ratio`` 0 for ``"dense"``."""

    gate: str
    ratio: float

    @property
    def name(self) -> str:
        """Key of the row."""
        return "dense" if self.gate == "dense" else f"{self.gate} {self.ratio:.0%}"

    def threshold(self, presets: ReplayPresets | None) -> float | None:
        """Calibrated threshold, ``None`` for gates without. Raises PresetError where it is not calibrated."""
        if self.gate not in THRESHOLD_GATES:
            return None
        if presets is None:
            raise PresetError(f"gate {self.gate} needs calibrated thresholds")
        return presets.curve(self.gate).threshold(self.ratio)

    def make(self, threshold: float | None) -> Gate:
        """The gate with the threshold."""
        if threshold is not None:
            return THRESHOLD_GATES[self.gate](threshold)
        return RandomGate(self.ratio) if self.gate == "random" else DenseGate()


@dataclass(frozen=True, kw_only=True)
class Measures:
    """One row's results.

    ``threshold`` of the gate, if it has one.
    ``replay_ratio``, ``replay_ratio_eligible``: over all and over eligible row steps; ``psnr`` in dB against dense,
    frames after the first, from the mean squared error of all videos, ``None`` if nothing differs; the rest from the
    checker, ``motion_kept`` its mean.
    """

    threshold: float | None
    replay_ratio: float
    replay_ratio_eligible: float
    psnr: float | None
    accuracy: float
    colour: float
    shape: float
    direction: float
    motion_kept: float
    videos: int


def cases() -> list[Case]:
    """All rows, dense first."""
    return [Case(gate="dense", ratio=0.0),
            *(Case(gate=gate, ratio=ratio) for gate, ratios in RATIOS.items() for ratio in ratios)]


def psnr(frames: np.ndarray, reference: np.ndarray) -> float | None:
    """Peak signal-to-noise ratio in dB of uint8 pictures of one shape; ``None`` if they are equal."""
    error = np.square(frames.astype(np.float64) - reference).mean()
    return float(10 * np.log10(255 ** 2 / error)) if error else None


def render(transformer: Transformer, visual: VisualTokenizer, engine: MlpEngine, gate: Gate, prompts: Sequence[str],
           seeds: Sequence[int], *, frames: int, batch: int,
           on_step: Callable[[], None]) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Videos uint8 ``[videos, frames, height, width, 3]``, and the statistics of each batch."""
    videos, statistics = [], []
    for start in range(0, len(prompts), batch):
        result = generate(transformer, prompts[start:start + batch], seeds[start:start + batch], frames=frames,
                          gate=gate, engine=engine, on_step=lambda progress: on_step())
        if not result.complete:
            raise KeyboardInterrupt
        videos += [visual.decode(codes) for codes in result.codes]
        statistics.append(result.statistics.summary())
    return np.stack(videos), statistics


def measure(videos: np.ndarray, statistics: Sequence[dict[str, Any]], dense: np.ndarray,
            prompts: Sequence[str], threshold: float | None) -> Measures:
    """Everything that the table says of one row; ``dense`` are the videos without replay."""
    replayed, steps, eligible = (sum(item[key] for item in statistics)
                                 for key in ("row_steps_replayed", "row_steps", "row_steps_eligible"))
    checks = [check(video, prompt) for video, prompt in zip(videos, prompts)]
    share = {name: float(np.mean([getattr(item, name) for item in checks]))
             for name in ("colour", "shape", "direction", "motion_kept")}
    return Measures(threshold=threshold, replay_ratio=replayed / steps, replay_ratio_eligible=replayed / eligible,
                    psnr=psnr(videos[:, 1:], dense[:, 1:]), accuracy=float(np.mean([item.ok for item in checks])),
                    videos=len(videos), **share)


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The table, rows in the order of :func:`cases`, those that are missing left out."""
    lines = ["| gate, target | replay, eligible steps | replay, all steps | PSNR against dense | fully right | "
             "colour | shape | direction | motion kept |", "| --- " * 9 + "|"]
    for case in cases():
        if case.name in rows:
            row = rows[case.name]
            difference = "same" if row["psnr"] is None else f"{row['psnr']:.1f} dB"
            shares = " | ".join(f"{row[key]:.1%}" for key in ("accuracy", "colour", "shape", "direction"))
            lines.append(f"| {case.name} | {row['replay_ratio_eligible']:.1%} | {row['replay_ratio']:.1%} | "
                         f"{difference} | {shares} | {row['motion_kept']:.2f} |")
    return "\n".join(lines) + "\n"


class Store:
    """Rows that are done, in a folder; those of other settings are dropped."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder, self.settings = folder, settings
        folder.mkdir(parents=True, exist_ok=True)
        self.rows: dict[str, dict[str, Any]] = {}
        path = folder / RESULTS
        if path.is_file():
            content = json.loads(path.read_text())
            if content["settings"] == json.loads(json.dumps(settings)):
                self.rows = content["rows"]

    def has(self, name: str, threshold: float | None) -> bool:
        """Whether a row is done, with this threshold."""
        return name in self.rows and self.rows[name]["threshold"] == threshold

    def add(self, name: str, measures: Measures) -> None:
        """Keep a row, and bring the table up to date."""
        self.rows[name] = asdict(measures)
        partial = self.folder / (RESULTS + ".new")
        partial.write_text(json.dumps({"settings": self.settings, "rows": self.rows}, indent=2) + "\n")
        partial.replace(self.folder / RESULTS)
        (self.folder / TABLE).write_text(markdown(self.rows))


def evaluate(transformer: Transformer, visual: VisualTokenizer, presets: ReplayPresets | None, store: Store, *,
             prompts: Sequence[str], seeds: Sequence[int], frames: int, batch: int, engine: MlpEngine,
             wanted: Sequence[Case], console: Console) -> None:
    """Measure the wanted rows that ``store`` does not have. The dense videos are kept for the others."""
    thresholds = {case.name: case.threshold(presets) for case in wanted}
    missing = [case for case in wanted if not store.has(case.name, thresholds[case.name])]
    dense_file = store.folder / DENSE_FRAMES
    if not store.has("dense", None):
        thresholds["dense"] = None
        missing = [Case(gate="dense", ratio=0.0), *(case for case in missing if case.gate != "dense")]
    layout = transformer.config.layout
    steps = ((frames - 1) * layout.stride + layout.tokens_per_frame) * -(-len(prompts) // batch)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                  console=console) as progress:
        task = progress.add_task("", total=steps * len(missing))
        for case in missing:
            progress.update(task, description=case.name)
            videos, statistics = render(transformer, visual, engine, case.make(thresholds[case.name]), prompts, seeds,
                                        frames=frames, batch=batch, on_step=lambda: progress.advance(task))
            if case.gate == "dense":
                np.savez_compressed(dense_file, videos=videos)
            with np.load(dense_file) as arrays:
                store.add(case.name, measure(videos, statistics, arrays["videos"], prompts, thresholds[case.name]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.table", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/table"), metavar="DIR",
                        help="folder of the results (default build/table)")
    parser.add_argument("--videos", type=int, default=100, help="videos per row (default 100)")
    parser.add_argument("--frames", type=int, metavar="N", help="frames of a video (default: the model's)")
    parser.add_argument("--batch", type=int, default=50, help="videos generated together (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and videos (default 0)")
    parser.add_argument("--engine", choices=tuple(ENGINES), default="integer", help="who computes the MLPs "
                        "(default integer, as shipped)")
    names = [case.name for case in cases()]
    parser.add_argument("--row", action="append", choices=names, metavar="NAME",
                        help=f"only this row, several times for several (default: all): {', '.join(names)}"
                        .replace("%", "%%"))
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of the model (default: the one shipped)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    if options.videos < 1 or options.batch < 1 or (options.frames is not None and options.frames < 2):
        parser.error("at least one video, a batch of one and two frames are needed")
    wanted = [case for case in cases() if not options.row or case.name in options.row]
    torch.set_num_threads(1)  # matrices are small; several threads wait for each other more than they work
    try:
        config, transformer, visual = checkpoint.load(options.model)
        calibrated = any(case.gate in THRESHOLD_GATES for case in wanted)
        presets = load_presets(transformer, options.model) if calibrated else None
        settings = {"videos": options.videos, "frames": options.frames or config.layout.frames, "seed": options.seed,
                    "engine": options.engine, "fingerprint": fingerprint(transformer)}
        store = Store(options.out, settings)
        evaluate(transformer, visual, presets, store, prompts=held_out_prompts(options.videos, options.seed),
                 seeds=list(range(options.seed, options.seed + options.videos)), frames=settings["frames"],
                 batch=options.batch, engine=ENGINES[options.engine](transformer), wanted=wanted,
                 console=Console(stderr=True))
    except (PresetError, checkpoint.CheckpointError) as error:
        print(f"table: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"table: interrupted; rows that are done are in {options.out}, run it again to go on", file=sys.stderr)
        return 130
    print(markdown(store.rows), end="", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps({"settings": settings, "rows": store.rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

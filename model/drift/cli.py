"""The command line of ``python -m model.drift``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model import checkpoint
from model.drift.plan import DENSE, WINDOW_RATIO, Settings, runs
from model.drift.report import write_report
from model.drift.store import Store, StoreError
from model.drift.study import ENGINES, Study
from model.drift.thresholds import GateError, gate_options
from model.presets import fingerprint

QUICK = {"frames": [8, 16], "replay": [0.0, 0.5, 0.8], "window": [None, 64], "prompts": 6, "forced": 4,
         "calibrate_on": 4}
"""Defaults of ``--quick``."""
FULL = {"frames": [8, 32, 64], "replay": [0.0, 0.2, 0.5, 0.8, 0.87], "window": [None, 64, 16], "prompts": 32,
        "forced": 8, "calibrate_on": 8}


def _listed(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def values(text: str) -> list[Any]:
        return [convert(part) for part in text.split(",")]

    values.__name__ = "list"  # argparse names it in its error
    return values


def _window(text: str) -> int | None:
    return None if text == "none" else int(text)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m model.drift", description="Long rollouts of replay gates against the dense rollout: quality, "
        "motion, distance of the MLP outputs, replay ratio and age per frame; tables, a report and a verdict. "
        "Finished rollouts are kept, and a second run goes on with what is missing.")
    result.add_argument("--frames", type=_listed(int), metavar="N,N", help="lengths to judge; one rollout of the "
                        "longest is made (default 8,32,64)")
    result.add_argument("--gates", type=_listed(str), default=["tas", "change", "random", "oracle"], metavar="G,G",
                        help="default tas,change,random,oracle")
    result.add_argument("--replay", type=_listed(float), metavar="R,R",
                        help="eligible replay ratios, 0 is dense (default 0,0.2,0.5,0.8,0.87)")
    result.add_argument("--window", type=_listed(_window), metavar="W,W", help="visual steps attended to, none is the "
                        f"model's own; others only where a ratio is {WINDOW_RATIO} (default none,64,16)")
    result.add_argument("--prompts", type=int, metavar="N", help="held-out prompts (default 32)")
    result.add_argument("--forced", type=int, metavar="N", help="prompts that are run on the dense codes, too "
                        "(default 8)")
    result.add_argument("--calibrate-on", type=int, metavar="N", help="training prompts that thresholds are found on "
                        "(default 8)")
    result.add_argument("--out", type=Path, default=Path("build/drift"), metavar="DIR",
                        help="folder of the results (default build/drift)")
    result.add_argument("--quick", action="store_true", help="fewer prompts, frames and ratios: "
                        "8,16 frames of 6 prompts at 0,0.5,0.8 with windows none,64")
    result.add_argument("--engine", choices=tuple(ENGINES), default="float", help="who computes the MLPs (default "
                        "float); with integer, a dense float rollout tells quantisation from replay")
    result.add_argument("--model", type=Path, metavar="DIR", help="folder of the model (default: the one shipped)")
    result.add_argument("--seed", type=int, default=0, help="of prompts, videos and intervals (default 0)")
    result.add_argument("--batch", type=int, default=32, help="videos generated together (default 32)")
    result.add_argument("--json", action="store_true", help="print the verdict as one JSON object, the last line of "
                        "stdout")
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    command = parser()
    options = command.parse_args(argv)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if any(not 0 <= ratio < 1 for ratio in options.replay):
        command.error(f"a replay ratio must be at least 0 and below 1, not {options.replay}")
    if min(options.frames) < 2:
        command.error(f"a length must be at least 2 frames, not {options.frames}")
    if any(window is not None and window < 1 for window in options.window):
        command.error(f"a window must be none, or at least 1 step, not {options.window}")
    torch.set_num_threads(1)  # matrices are small; several threads wait for each other more than they work
    console = Console(stderr=True)
    try:
        _, transformer, visual = checkpoint.load(options.model)
        gates = {gate: gate_options(gate, transformer) for gate in options.gates}
        settings = Settings(fingerprint=fingerprint(transformer), engine=options.engine, frames=max(options.frames),
                            prompts=options.prompts, seed=options.seed, batch=options.batch, forced=options.forced,
                            calibration=options.calibrate_on)
        wanted = runs(options.gates, options.replay, options.window, options.engine)
        store = Store(options.out, settings)
        for gate, set_to in gates.items():
            store.claim(gate, set_to)
        with Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"),
                      TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task("")
            study = Study(transformer, visual, settings, store, sorted(set(options.frames)),
                          advance=lambda cost: bar.advance(task, cost),
                          describe=lambda text: bar.update(task, description=text),
                          tell=lambda text: console.print(text, markup=False, highlight=False))
            bar.update(task, total=study.cost(wanted))
            study.run(wanted)
            bar.update(task, description="report")
            verdict = write_report(store, settings, [DENSE, *wanted], visual, study.prompts,
                                   sorted(set(options.frames)))
    except (GateError, ValueError) as error:
        command.error(str(error))
    except (StoreError, checkpoint.CheckpointError) as error:
        print(f"drift: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"drift: interrupted; rollouts that are done are in {options.out}, run it again to go on",
              file=sys.stderr)
        return 130
    for line in verdict["sentences"]:
        print(line, file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(verdict))
    return 0

"""Measure what replay saves on this machine: ``python -m model.bench [--json]``.

One layer of LLaMA-7B shape (random weights, float32): the time in its MLP at 80 % replay against dense, for one row,
for eight rows that decide jointly (at most 30 % each) and for eight that decide alone (never slower than dense;
1 - r**8 is the share of steps in which any row computes). Then whole decode steps of a small Llama: dense, replay, and
computing everything before selecting, as the paper's released code does. All runs feed the same tokens and are
interleaved; frame 0 is warm-up. Exits with 1 if a target is missed or MLP calls did not drop.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model.hf.calibrate import calibrate_replay
from model.hf.config import ReplayConfig
from model.hf.measure import MODES, Run, decode, random_llama, random_tokens, threshold_of_one_layer, timed_run

TARGET_RATIO = 0.8
JOINT_LIMIT = 0.30
"""Most of the dense MLP time for one row, or rows that decide jointly."""
ALONE_LIMIT = 1.05
"""Never slower than dense, with 5 % for noise of the measurement."""
CASES = (("one row", 1, "rows"), ("8 rows, joint decision", 8, "batch"), ("8 rows, each alone", 8, "rows"))
LLAMA_7B = {"hidden": 4096, "intermediate": 11008, "heads": 32}
SMALL = {"hidden": 1024, "intermediate": 2752, "heads": 8}
SMALL_LAYERS = 4


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Replay beside dense, medians over rounds; times are milliseconds per step.

    ``time_ratio`` is replay / dense, of the MLPs; ``any_row_bound`` is 1 - r**rows for rows that decide alone.
    """

    name: str
    rows: int
    replay_ratio: float
    dense_ms: float
    replay_ms: float
    time_ratio: float
    limit: float
    any_row_bound: float | None
    dense_calls: int
    replay_calls: int

    @property
    def failures(self) -> list[str]:
        """What was missed, in words."""
        missed = []
        if self.replay_calls >= self.dense_calls:
            missed.append(f"{self.name}: {self.replay_calls} MLP calls, dense makes {self.dense_calls}")
        if self.time_ratio > self.limit:
            missed.append(f"{self.name}: {self.time_ratio:.1%} of the dense MLP time, the limit is {self.limit:.0%}")
        return missed


def measure_rounds(model: torch.nn.Module, config: ReplayConfig, ids: torch.Tensor, modes: tuple[str, ...],
                   rounds: int, advance: Callable[[], None]) -> dict[str, list[Run]]:
    """``rounds`` runs of each mode, interleaved, each round in another order."""
    runs: dict[str, list[Run]] = {mode: [] for mode in modes}
    for number in range(rounds):
        for at in range(len(modes)):
            mode = modes[(number + at) % len(modes)]
            runs[mode].append(timed_run(model, config, ids, mode))
            advance()
    return runs


def calibrated(model: torch.nn.Module, layers: int, ids: torch.Tensor, stride: int, groups: str) -> ReplayConfig:
    """The configuration that replays :data:`TARGET_RATIO` on ``ids``."""
    config = ReplayConfig(thresholds=float("inf"), tokens_per_frame=stride, stride=stride, separator_ids=(),
                          groups=groups)
    if layers == 1:
        return replace(config, thresholds=threshold_of_one_layer(model, config, ids, TARGET_RATIO))
    return calibrate_replay(model, [ids], TARGET_RATIO, config=config, frames=2,
                            generate=lambda subject, prompt: decode(subject, prompt, 0)).config


def compare_layer(model: torch.nn.Module, name: str, rows: int, groups: str, stride: int, frames: int, rounds: int,
                  advance: Callable[[], None]) -> Comparison:
    """One of :data:`CASES`."""
    ids = random_tokens(rows, stride * frames, seed=rows)
    config = calibrated(model, 1, ids, stride, groups)
    advance()
    runs = measure_rounds(model, config, ids, ("dense", "replay"), rounds, advance)
    dense, replay = runs["dense"], runs["replay"]
    ratio = replay[0].replay_ratio
    dense_ms, replay_ms = (1e3 * float(np.median([run.mlp_s / run.steps for run in part])) for part in (dense, replay))
    alone = rows > 1 and groups == "rows"
    return Comparison(name=name, rows=rows, replay_ratio=ratio, dense_ms=dense_ms, replay_ms=replay_ms,
                      time_ratio=replay_ms / dense_ms, limit=ALONE_LIMIT if alone else JOINT_LIMIT,
                      any_row_bound=1 - ratio ** rows if alone else None, dense_calls=dense[0].calls,
                      replay_calls=replay[0].calls)


def compare_model(stride: int, frames: int, rounds: int, advance: Callable[[], None]) -> dict[str, Any]:
    """Whole decode steps of a small Llama, one row: milliseconds and MLP calls of every mode, and speed-ups."""
    model = random_llama(SMALL_LAYERS, **SMALL, positions=4096)
    ids = random_tokens(1, stride * frames, seed=0)
    config = calibrated(model, SMALL_LAYERS, ids, stride, "rows")
    advance()
    runs = measure_rounds(model, config, ids, MODES, rounds, advance)
    ms = {mode: 1e3 * float(np.median([run.step_s / run.steps for run in part])) for mode, part in runs.items()}
    ratio = runs["replay"][0].replay_ratio
    mlp = 3 * SMALL["hidden"] * SMALL["intermediate"]
    share = mlp / (mlp + 4 * SMALL["hidden"] ** 2)
    return {"layers": SMALL_LAYERS, **SMALL, "replay_ratio": ratio, "step_ms": ms,
            "mlp_calls": {mode: part[0].calls for mode, part in runs.items()},
            "speed_up": ms["dense"] / ms["replay"], "select_speed_up": ms["dense"] / ms["select"],
            "speed_up_bound": 1 / (1 - share * ratio)}


def report(layers: list[Comparison], whole: dict[str, Any]) -> str:
    """Everything as text."""
    lines = ["MLP of one LLaMA-7B layer, float32, milliseconds per step after frame 0"]
    for item in layers:
        bound = f", any row computes in 1 - r^{item.rows} = {item.any_row_bound:.1%}" if item.any_row_bound else ""
        lines.append(f"  {item.name}: replay {item.replay_ratio:.1%}; dense {item.dense_ms:.2f}, replay "
                     f"{item.replay_ms:.2f}: {item.time_ratio:.1%} (limit {item.limit:.0%}{bound}); calls "
                     f"{item.dense_calls} -> {item.replay_calls}")
    lines.append(f"Decode steps of a Llama of {whole['layers']} layers, hidden {whole['hidden']}, one row, replay "
                 f"{whole['replay_ratio']:.1%}")
    for mode in MODES:
        lines.append(f"  {mode}: {whole['step_ms'][mode]:.2f} ms, {whole['mlp_calls'][mode]} MLP calls")
    lines.append(f"  speed-up {whole['speed_up']:.2f} (bound {whole['speed_up_bound']:.2f}); computing everything, "
                 f"then selecting: {whole['select_speed_up']:.2f}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--stride", type=int, default=8, metavar="N", help="tokens per frame (default 8)")
    parser.add_argument("--frames", type=int, default=6, metavar="N", help="frames, the first is warm-up (default 6)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each kind (default 3)")
    parser.add_argument("--threads", type=int, metavar="N", help="of torch (default: torch's own choice)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    if options.threads is not None and options.threads < 1:
        parser.error(f"threads must be at least 1, not {options.threads}")
    if options.stride < 1 or options.frames < 2 or options.rounds < 1:
        parser.error("at least one token per frame, two frames and one round are needed")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    sizes = options.stride, options.frames, options.rounds
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                  console=Console(stderr=True)) as progress:
        task = progress.add_task("weights", total=len(CASES) * (1 + 2 * options.rounds) + 1 + 3 * options.rounds)
        model = random_llama(1, **LLAMA_7B, positions=4096)
        layers = []
        for name, rows, groups in CASES:
            progress.update(task, description=name)
            layers.append(compare_layer(model, name, rows, groups, *sizes, lambda: progress.advance(task)))
        del model
        progress.update(task, description="whole model")
        whole = compare_model(*sizes, lambda: progress.advance(task))
    failures = [text for item in layers for text in item.failures]
    calls = whole["mlp_calls"]
    if calls["replay"] >= calls["dense"]:
        failures.append(f"whole model: {calls['replay']} MLP calls, dense makes {calls['dense']}")
    print(report(layers, whole), file=sys.stderr if options.json else sys.stdout)
    for text in failures:
        print(f"bench: missed: {text}", file=sys.stderr)
    if options.json:
        print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(),
                          "layer": [asdict(item) for item in layers], "model": whole, "failures": failures}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

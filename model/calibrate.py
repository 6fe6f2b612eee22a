"""Calibrate replay thresholds: ``python -m model.calibrate [--gate tas|change] [--target 0.5 ...] [--joint-pairs]``.

Prints quantiles per layer of what the gate compares, measured without replay, and finds the threshold that reaches
each target over eligible steps. Replay changes what follows, so every threshold is tried in real generations. The
result is stored beside the weights (model/presets.py).
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from model import checkpoint, world
from model.gates import THRESHOLD_GATES, Step, ThresholdGate
from model.generate import generate
from model.presets import Curve, PresetError, ReplayPresets, fingerprint, load_presets
from model.transformer import Transformer

TARGETS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87)
QUANTILES = (0.05, 0.2, 0.5, 0.8, 0.95)
TOLERANCE = 0.01
"""A threshold is good enough when its ratio is this near to the target."""
ROUNDS = 8
"""Most generations spent on one curve, each of which tries a threshold for every target."""


def sample_prompts(count: int, seed: int) -> list[str]:
    """Prompts of random scenes of the training set."""
    rng = np.random.default_rng(seed)
    prompts: list[str] = []
    while len(prompts) < count:
        scene = world.random_scene(rng)
        if not world.held_out(scene):
            prompts.append(scene.prompt())
    return prompts


MakeGate = Callable[[float], ThresholdGate]
"""A gate with one threshold for all layers."""


def dense_statistic(transformer: Transformer, make: MakeGate, prompts: Sequence[str], seeds: Sequence[int],
                    frames: int) -> np.ndarray:
    """What a gate compares, in eligible steps of a generation without replay: float ``[layers, samples]``."""
    gate = make(0.0)
    gate = make(gate.never)
    gate.needs_scores = type(gate).needs_scores  # a threshold of infinity does without, but here they are looked at
    seen: list[list[np.ndarray]] = [[] for _ in range(transformer.config.layers)]
    statistic = gate.statistic

    def recorded(layer: int, step: Step, x: Tensor, scores: Tensor | None, residual: Tensor | None = None) -> Tensor:
        value = statistic(layer, step, x, scores, residual)
        seen[layer].append(value.numpy().copy())
        return value

    gate.statistic = recorded  # type: ignore[method-assign]
    gate.video_thresholds = [gate.never] * len(prompts)
    generate(transformer, prompts, seeds, frames=frames, gate=gate)
    return np.stack([np.concatenate(values) for values in seen])


def sweep(transformer: Transformer, make: MakeGate, thresholds: Sequence[float], *, prompts: Sequence[str],
          seeds: Sequence[int], frames: int) -> list[float]:
    """Eligible replay ratio of each threshold over all prompts, measured in one generation."""
    count = len(thresholds)
    gate = make(thresholds[0])
    gate.needs_scores = type(gate).needs_scores
    gate.video_thresholds = np.repeat(thresholds, len(prompts)).tolist()
    statistics = generate(transformer, list(prompts) * count, list(seeds) * count, frames=frames, gate=gate).statistics
    replayed = statistics.replayed[1:].reshape(-1, transformer.config.layers, statistics.rows.count // len(prompts)
                                               // count, count, len(prompts)).sum(axis=(0, 1, 2, 4))
    return (replayed * count / statistics.summary()["row_steps_eligible"]).tolist()


def solve(measure: Callable[[list[float]], list[float]], targets: Sequence[float],
          start: Sequence[float]) -> list[tuple[float, float]]:
    """Points (ratio, threshold), ascending, one near each target.

    ``measure`` gives the ratios of some thresholds. The first ones are ``start``; each further round tries, for every
    target that is not reached, the threshold on the line between its neighbours.
    """
    points = sorted(zip(measure(list(start)), start))
    for _ in range(ROUNDS - 1):
        trials = {threshold for target in targets if (threshold := _between(points, target)) is not None}
        if not trials:
            break
        points = sorted([*points, *zip(measure(sorted(trials)), sorted(trials))])
    chosen = {min(points, key=lambda point: abs(point[0] - target)) for target in targets}
    # Two thresholds can give the same ratio; a curve has each ratio once.
    return sorted({ratio: (ratio, threshold) for ratio, threshold in sorted(chosen)}.values())


def _between(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Threshold on the line between the points around ``target``; ``None`` if one is near it or it is outside."""
    below = [point for point in points if point[0] <= target]
    above = [point for point in points if point[0] > target]
    if not below or not above or min(abs(ratio - target) for ratio, _ in points) <= TOLERANCE:
        return None
    (r0, t0), (r1, t1) = below[-1], above[0]
    return t0 + (t1 - t0) * (target - r0) / (r1 - r0)


def calibrate(transformer: Transformer, name: str, make: MakeGate, *, targets: Sequence[float] = TARGETS,
              joint_pairs: bool = False, prompts: Sequence[str], seeds: Sequence[int], frames: int,
              statistic: np.ndarray | None = None, on_round: Callable[[], None] = lambda: None) -> Curve:
    """Measure the curve of one gate in generations of ``prompts``.

    ``name``, ``joint_pairs``: what the curve is called; ``make`` makes the gate. ``statistic``: that of
    :func:`dense_statistic`, if it is there already; ``on_round`` is called up to :data:`ROUNDS` times.
    """
    if statistic is None:
        statistic = dense_statistic(transformer, make, prompts, seeds, frames)

    def measure(thresholds: list[float]) -> list[float]:
        ratios = sweep(transformer, make, thresholds, prompts=prompts, seeds=seeds, frames=frames)
        on_round()
        return ratios

    # The quantiles would be the answer if replay changed nothing. Change grows along chains of replays beyond what
    # the dense run shows, so its upper end is doubled.
    high = make(0.0).high_replays
    shares = [0.0, *sorted(targets), 1.0]
    start = np.quantile(statistic[np.isfinite(statistic)], [1 - share if high else share for share in shares])
    if not high:
        start[-1] *= 2
    return Curve(gate=name, joint_pairs=joint_pairs, points=tuple(solve(measure, sorted(targets), start.tolist())),
                 settings={"prompts": list(prompts), "seeds": list(seeds), "frames": frames,
                           "cfg_scale": transformer.config.sampling.cfg_scale})


def quantile_table(name: str, statistic: np.ndarray) -> str:
    """Quantiles per layer as aligned text."""
    what = {"tas": "temporal attention score", "change": "relative change of the MLP input"}[name]
    lines = [f"{what}, dense generation, quantiles per layer",
             "layer" + "".join(f"{quantile:>9.0%}" for quantile in QUANTILES)]
    for layer, values in enumerate(np.quantile(statistic, QUANTILES, axis=1).T):
        lines.append(f"{layer:5d}" + "".join(f"{value:9.3f}" for value in values))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.calibrate", description=__doc__.split("\n")[0])
    parser.add_argument("--gate", choices=tuple(THRESHOLD_GATES), action="append", help="several times for several "
                        "(default: both)")
    parser.add_argument("--target", type=float, action="append", metavar="R",
                        help=f"eligible replay ratio, several times for several (default: {TARGETS})")
    parser.add_argument("--joint-pairs", action="store_true", help="guidance pairs decide together")
    parser.add_argument("--prompts", type=int, default=16, metavar="K", help="videos to measure on (default 16)")
    parser.add_argument("--frames", type=int, metavar="N", help="frames of each (default: the model's)")
    parser.add_argument("--seed", type=int, default=1, help="of prompts and videos (default 1)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="folder of the model (default: the one shipped)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    targets = options.target or list(TARGETS)
    if any(not 0 < target < 1 for target in targets):
        parser.error(f"a target must be above 0 and below 1, not {targets}")
    if options.prompts < 1 or (options.frames is not None and options.frames < 2):
        parser.error("at least one prompt and two frames are needed: frame 0 never replays")
    try:
        config, transformer, _ = checkpoint.load(options.model)
    except checkpoint.CheckpointError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 3
    torch.set_num_threads(1)  # few rows: threads cost more than they give
    folder = options.model or checkpoint.default_dir()
    try:
        presets = load_presets(transformer, folder)
    except PresetError:
        presets = ReplayPresets(fingerprint=fingerprint(transformer))
    prompts = sample_prompts(options.prompts, options.seed)
    seeds = list(range(options.seed, options.seed + options.prompts))
    frames = options.frames or config.layout.frames
    report = {}
    names = options.gate or list(THRESHOLD_GATES)
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                  console=console) as progress:
        task = progress.add_task("dense", total=len(names) * (ROUNDS + 1))
        for name in names:
            progress.update(task, description=f"{name}: quantiles")
            make = functools.partial(THRESHOLD_GATES[name], joint_pairs=options.joint_pairs)
            statistic = dense_statistic(transformer, make, prompts, seeds, frames)
            console.print(quantile_table(name, statistic), markup=False, highlight=False)
            progress.update(task, advance=1, description=f"{name}: thresholds")
            curve = calibrate(transformer, name, make, targets=targets, joint_pairs=options.joint_pairs,
                              prompts=prompts, seeds=seeds, frames=frames, statistic=statistic,
                              on_round=lambda: progress.advance(task))
            progress.update(task, completed=(names.index(name) + 1) * (ROUNDS + 1))
            presets = presets.with_curve(curve)
            presets.save(folder)
            for ratio, threshold in curve.points:
                console.print(f"{name}: threshold {threshold:.4f} replays {ratio:.1%} of the eligible steps",
                              markup=False, highlight=False)
            report[name] = {"points": [{"ratio": r, "threshold": t} for r, t in curve.points],
                            "quantiles": {"levels": QUANTILES,
                                          "per_layer": np.quantile(statistic, QUANTILES, axis=1).T.tolist()}}
    if options.json:
        print(json.dumps({"fingerprint": presets.fingerprint, "joint_pairs": options.joint_pairs, "gates": report}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

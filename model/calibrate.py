"""Calibrate replay thresholds: ``python -m model.calibrate [--gate tas|change] [--target 0.5 ...] [--joint-pairs]``.

Prints quantiles per layer of what the gate compares, measured without replay, and finds the threshold that reaches
each target over eligible steps. Replay changes what follows, so every threshold is tried in real generations. The
result is stored beside the weights (model/presets.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model import checkpoint, world
from model.gates import THRESHOLD_GATES
from model.generate import LayerStep, generate
from model.presets import Curve, PresetError, ReplayPresets, fingerprint, load_presets
from model.transformer import Transformer

NEVER = {"tas": np.inf, "change": -1.0}
"""Threshold at which a gate never replays."""
TARGETS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87)
QUANTILES = (0.05, 0.2, 0.5, 0.8, 0.95)
TOLERANCE = 0.01
"""A threshold is good enough when its ratio is this near to the target."""
TRIES = 7
"""Most generations spent on one target."""


def sample_prompts(count: int, seed: int) -> list[str]:
    """Prompts of random scenes of the training set."""
    rng = np.random.default_rng(seed)
    prompts: list[str] = []
    while len(prompts) < count:
        scene = world.random_scene(rng)
        if not world.held_out(scene):
            prompts.append(scene.prompt())
    return prompts


def dense_statistic(transformer: Transformer, prompts: Sequence[str], seeds: Sequence[int], name: str,
                    frames: int) -> np.ndarray:
    """What gate ``name`` compares, in eligible steps of a generation without replay: float ``[layers, samples]``."""
    gate = THRESHOLD_GATES[name](NEVER[name])
    seen: list[list[np.ndarray]] = [[] for _ in range(transformer.config.layers)]

    def observe(item: LayerStep) -> None:
        if item.step.eligible:
            seen[item.layer].append(gate.statistic(item.layer, item.step, item.x, item.scores).numpy().copy())

    generate(transformer, prompts, seeds, frames=frames, gate=gate, observer=observe)
    return np.stack([np.concatenate(values) for values in seen])


def solve(measure: Callable[[float], float], targets: Sequence[float], low: float, high: float,
          on_target: Callable[[float], None] = lambda target: None) -> list[tuple[float, float]]:
    """Points (ratio, threshold), ascending, one near each target.

    ``measure`` gives the ratio of a threshold; it grows from ``low`` to ``high`` (which may be the smaller number),
    but for noise. All measurements serve all targets; steps alternate between the line and the middle.
    """
    points = sorted((measure(threshold), threshold) for threshold in (low, high))
    chosen: set[tuple[float, float]] = set()
    for target in targets:
        for attempt in range(TRIES):
            nearest = min(points, key=lambda point: abs(point[0] - target))
            if abs(nearest[0] - target) <= TOLERANCE:
                break
            below = [point for point in points if point[0] <= target]
            above = [point for point in points if point[0] > target]
            if not below or not above:
                break
            (r0, t0), (r1, t1) = below[-1], above[0]
            share = (target - r0) / (r1 - r0) if attempt % 2 == 0 else 0.5
            threshold = t0 + (t1 - t0) * share
            points = sorted([*points, (measure(threshold), threshold)])
        chosen.add(min(points, key=lambda point: abs(point[0] - target)))
        on_target(target)
    # Noise can give one ratio twice; a curve has each once.
    return sorted({ratio: (ratio, threshold) for ratio, threshold in chosen}.values())


def calibrate(transformer: Transformer, name: str, *, targets: Sequence[float] = TARGETS, joint_pairs: bool = False,
              prompts: Sequence[str], seeds: Sequence[int], frames: int, statistic: np.ndarray | None = None,
              on_target: Callable[[float], None] = lambda target: None) -> Curve:
    """Measure the curve of one gate in generations of ``prompts``.

    ``statistic``: that of :func:`dense_statistic`, if it is there already.
    """
    if statistic is None:
        statistic = dense_statistic(transformer, prompts, seeds, name, frames)

    def measure(threshold: float) -> float:
        gate = THRESHOLD_GATES[name](threshold, joint_pairs=joint_pairs)
        return generate(transformer, prompts, seeds, frames=frames, gate=gate).statistics.replay_ratio_eligible

    least, most = float(statistic.min()), float(statistic.max())
    # Change grows along chains of replays beyond what the dense run shows, so its upper end is doubled.
    low, high = (most, least) if name == "tas" else (least, 2 * most)
    points = solve(measure, sorted(targets), low, high, on_target)
    return Curve(gate=name, joint_pairs=joint_pairs, points=tuple(points),
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
    parser.add_argument("--prompts", type=int, default=8, metavar="K", help="videos to measure on (default 8)")
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
        task = progress.add_task("dense", total=len(names) * (len(targets) + 1))
        for name in names:
            progress.update(task, description=f"{name}: quantiles")
            statistic = dense_statistic(transformer, prompts, seeds, name, frames)
            console.print(quantile_table(name, statistic), markup=False, highlight=False)
            progress.update(task, advance=1, description=f"{name}: thresholds")
            curve = calibrate(transformer, name, targets=targets, joint_pairs=options.joint_pairs, prompts=prompts,
                              seeds=seeds, frames=frames, statistic=statistic,
                              on_target=lambda target: progress.advance(task))
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

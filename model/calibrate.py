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
from torch import Tensor

from model import checkpoint, world
from model.config import RunSizes
from model.gates import THRESHOLD_GATES, Decision, Rows, Step
from model.generate import LayerStep, generate
from model.presets import Curve, PresetError, ReplayPresets, fingerprint, load_presets
from model.transformer import Transformer

NEVER = {"tas": np.inf, "change": -1.0}
"""Threshold at which a gate never replays."""
TARGETS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87)
QUANTILES = (0.05, 0.2, 0.5, 0.8, 0.95)
TOLERANCE = 0.01
"""A threshold is good enough when its ratio is this near to the target."""
ROUNDS = 4
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


class SweepGate:
    """A gate whose videos have a threshold each, so that one generation tries many.

    Parameters
    ----------
    name : ``"tas"`` or ``"change"``
    thresholds : sequence of :class:`float`
        One per video.
    joint_pairs : :class:`bool`
        Whether guidance pairs decide together.
    """

    def __init__(self, name: str, thresholds: Sequence[float], joint_pairs: bool):
        self._gate = THRESHOLD_GATES[name](NEVER[name])
        self.name, self.needs_scores = name, type(self._gate).needs_scores
        self._thresholds, self._joint_pairs = torch.tensor(thresholds, dtype=torch.float32), joint_pairs

    def begin(self, config: RunSizes, rows: Rows) -> None:
        self._gate.begin(config, rows)
        self._pairs = rows.videos if self._joint_pairs and rows.guided else 0
        self._limits = self._thresholds.repeat(rows.count // rows.videos)

    def decide(self, layer: int, step: Step, x: Tensor, scores: Tensor | None) -> Decision:
        if not step.eligible:
            return self._gate.decide(layer, step, x, scores)
        value = self._gate.statistic(layer, step, x, scores)
        replay = value >= self._limits if self.name == "tas" else value <= self._limits
        if self._pairs:
            replay = (replay[:self._pairs] & replay[self._pairs:]).repeat(2)
        return Decision(source="mask", eligible=True, compute=~replay)

    def update(self, layer: int, step: Step, x: Tensor, computed: Tensor) -> None:
        self._gate.update(layer, step, x, computed)


def sweep(transformer: Transformer, name: str, thresholds: Sequence[float], *, joint_pairs: bool,
          prompts: Sequence[str], seeds: Sequence[int], frames: int) -> list[float]:
    """Eligible replay ratio of each threshold over all prompts, measured in one generation."""
    count = len(thresholds)
    gate = SweepGate(name, np.repeat(thresholds, len(prompts)).tolist(), joint_pairs)
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


def calibrate(transformer: Transformer, name: str, *, targets: Sequence[float] = TARGETS, joint_pairs: bool = False,
              prompts: Sequence[str], seeds: Sequence[int], frames: int, statistic: np.ndarray | None = None,
              on_round: Callable[[], None] = lambda: None) -> Curve:
    """Measure the curve of one gate in generations of ``prompts``.

    ``statistic``: that of :func:`dense_statistic`, if it is there already; ``on_round`` is called up to
    :data:`ROUNDS` times.
    """
    if statistic is None:
        statistic = dense_statistic(transformer, prompts, seeds, name, frames)

    def measure(thresholds: list[float]) -> list[float]:
        ratios = sweep(transformer, name, thresholds, joint_pairs=joint_pairs, prompts=prompts, seeds=seeds,
                       frames=frames)
        on_round()
        return ratios

    # The quantiles would be the answer if replay changed nothing. Change grows along chains of replays beyond what
    # the dense run shows, so its upper end is doubled.
    shares = [0.0, *sorted(targets), 1.0]
    start = np.quantile(statistic, [1 - share if name == "tas" else share for share in shares])
    if name == "change":
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
            statistic = dense_statistic(transformer, prompts, seeds, name, frames)
            console.print(quantile_table(name, statistic), markup=False, highlight=False)
            progress.update(task, advance=1, description=f"{name}: thresholds")
            curve = calibrate(transformer, name, targets=targets, joint_pairs=options.joint_pairs, prompts=prompts,
                              seeds=seeds, frames=frames, statistic=statistic,
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

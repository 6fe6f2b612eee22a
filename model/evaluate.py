"""How often do generated videos show what their prompts say? ``python -m model.evaluate``.

Prompts are scenes that were held out from training, seeds are the numbers of the videos; the independent checker
of ``model/checker.py`` looks at the decoded pixels.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from model import checker, checkpoint, generate, world
from model.config import Sampling
from model.engine import IntegerMlp, MlpEngine
from model.gates import Gate
from model.transformer import Transformer
from model.visual import VisualTokenizer

SPAN = 8
"""Frames that are checked together: the default length of a video."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Shares of videos, over the frames from ``first`` to ``last``; ``motion_kept`` is a mean, not a share."""

    first: int
    last: int
    ok: float
    colour: float
    shape: float
    size: float
    direction: float
    motion_kept: float


def held_out_prompts(count: int, seed: int = 0) -> list[str]:
    """Prompts of random scenes that training never saw; the same for the same seed, and a longer list begins alike."""
    rng = np.random.default_rng(seed)
    prompts: list[str] = []
    while len(prompts) < count:
        scene = world.random_scene(rng)
        if world.held_out(scene):
            prompts.append(scene.prompt())
    return prompts


def accuracy(videos: Sequence[np.ndarray], prompts: Sequence[str], first: int, last: int) -> Accuracy:
    """Check frames ``first`` to ``last``, inclusive, of videos uint8 ``[frames, 64, 64, 3]`` against their prompts."""
    results = [checker.check(video[first:last + 1], prompt) for video, prompt in zip(videos, prompts, strict=True)]

    def mean(name: str) -> float:
        return float(np.mean([getattr(result, name) for result in results]))

    return Accuracy(first=first, last=last, ok=mean("ok"), colour=mean("colour"), shape=mean("shape"),
                    size=mean("size"), direction=mean("direction"), motion_kept=mean("motion_kept"))


def spans(frames: int) -> list[tuple[int, int]]:
    """First and last frames that are checked together: of videos longer than :data:`SPAN`, consecutive spans of it."""
    if frames <= SPAN:
        return [(0, frames - 1)]
    return [(first, first + SPAN - 1) for first in range(0, frames - SPAN + 1, SPAN)]


def evaluate(transformer: Transformer, visual: VisualTokenizer, prompts: Sequence[str], *, frames: int,
             sampling: Sampling | None = None, gate: Gate | None = None, engine: MlpEngine | None = None,
             first_seed: int = 0, progress: Callable[[float], None] | None = None) -> list[Accuracy]:
    """Generate one video per prompt, all rows together, and check every span of frames.

    ``progress`` is called with the share of the work that is done.
    """
    if frames < 2:
        raise ValueError(f"frames must be at least 2, not {frames!r}: one picture does not move")

    def on_step(state: generate.Progress) -> None:
        if progress is not None:
            progress(state.done / state.steps)

    seeds = range(first_seed, first_seed + len(prompts))
    made = generate.generate(transformer, prompts, seeds, frames=frames, sampling=sampling, gate=gate,
                             engine=engine, on_step=on_step)
    if not made.complete:
        raise KeyboardInterrupt
    videos = [visual.decode(codes) for codes in made.codes]
    return [accuracy(videos, prompts, first, last) for first, last in spans(frames)]


def show(results: list[Accuracy]) -> Table:
    """The results as a table."""
    table = Table("frames", "ok %", "colour %", "shape %", "direction %", "size %", "motion kept")
    for r in results:
        table.add_row(f"{r.first}-{r.last}", *(f"{100 * value:.1f}" for value in
                                               (r.ok, r.colour, r.shape, r.direction, r.size)), f"{r.motion_kept:.2f}")
    return table


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m model.evaluate", formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Generate videos of prompts that were held out from training, and let a checker that sees only "
                    "pixels say how many are right: colours, shape, direction (ok is all three).")
    result.add_argument("--videos", type=int, default=200, help="number of videos; video n has seed n")
    result.add_argument("--frames", type=int, default=8, help=f"frames of each; longer ones are checked per {SPAN}")
    result.add_argument("--engine", choices=["float", "integer"], default="float",
                        help="who computes the MLPs: float32, or the integer model that the board equals")
    result.add_argument("--cfg-scale", type=float, help="guidance, if not the model's own setting; 1 is none")
    result.add_argument("--temperature", type=float, help="if not the model's own setting")
    result.add_argument("--top-k", type=int, help="if not the model's own setting")
    result.add_argument("--model", type=Path, default=None, help="folder of the model; the shipped one if not given")
    result.add_argument("--prompt-seed", type=int, default=0, help="which held-out prompts")
    result.add_argument("--threads", type=int, default=2, help="CPU threads")
    result.add_argument("--json", action="store_true", help="print one JSON object on the last line of stdout")
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    args = parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    try:
        if args.videos < 1:
            raise ValueError(f"videos must be at least 1, not {args.videos!r}")
        config, transformer, visual = checkpoint.load(args.model)
        given = {"cfg_scale": args.cfg_scale, "temperature": args.temperature, "top_k": args.top_k}
        sampling = dataclasses.replace(config.sampling, **{k: v for k, v in given.items() if v is not None})
        engine = IntegerMlp.of(transformer) if args.engine == "integer" else None
        with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
                      TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(f"{args.videos} videos", total=1.0)
            results = evaluate(transformer, visual, held_out_prompts(args.videos, args.prompt_seed),
                               frames=args.frames, sampling=sampling, engine=engine,
                               progress=lambda share: bar.update(task, completed=share))
    except (ValueError, checkpoint.CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing was checked", file=sys.stderr)
        return 130
    Console(stderr=True).print(show(results))
    if args.json:
        print(json.dumps({"videos": args.videos, "frames": args.frames, "engine": args.engine,
                          "sampling": dataclasses.asdict(sampling), "accuracy": [vars(r) for r in results]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

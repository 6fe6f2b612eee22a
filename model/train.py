"""Train the shipped model: ``python -m model.train visual``, then ``python -m model.train transformer``."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import shlex
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from model import checkpoint, train_transformer, train_visual
from model.config import PRESETS
from model.train_transformer import TransformerTraining
from model.train_visual import VisualTraining
from model.transformer import Transformer
from model.visual import VisualConfig


class Record:
    """Measures of a run, appended to ``<name>.csv`` and drawn as ``<name>.png``."""

    def __init__(self, folder: Path, name: str, curves: tuple[str, ...], resumed: bool):
        self.folder, self.name, self.curves = folder, name, curves
        self.table = folder / f"{name}.csv"
        folder.mkdir(parents=True, exist_ok=True)
        if not resumed:
            self.table.unlink(missing_ok=True)

    def add(self, measures: dict[str, float]) -> None:
        """Append one row."""
        new = not self.table.exists()
        with self.table.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(measures)
            writer.writerow(f"{value:.6g}" for value in measures.values())

    def draw(self) -> None:
        """Write the curves over the first column."""
        import matplotlib
        matplotlib.use("agg")
        from matplotlib import pyplot

        with self.table.open() as file:
            rows = list(csv.DictReader(file))
        axis_name = next(iter(rows[0]))
        figure, axes = pyplot.subplots(1, len(self.curves), figsize=(4 * len(self.curves), 3), squeeze=False)
        for axis, curve in zip(axes[0], self.curves, strict=True):
            axis.plot([float(row[axis_name]) for row in rows], [float(row[curve]) for row in rows])
            axis.set(xlabel=axis_name, title=curve)
            axis.grid(alpha=0.3)
            if "loss" in curve:
                axis.set_yscale("log")
        figure.tight_layout()
        figure.savefig(self.folder / f"{self.name}.png", dpi=70)
        pyplot.close(figure)


def write_run(folder: Path, name: str, settings: VisualTraining | TransformerTraining, last: dict[str, float],
              resumed: bool) -> None:
    """Write what made a model into ``<name>.json``: for each run command, settings with the seed, last measures.

    A run that was resumed adds to the runs before it.
    """
    path = folder / f"{name}.json"
    command = shlex.join(["python", "-m", "model.train", *sys.argv[1:]])
    runs = json.loads(path.read_text())["runs"] if resumed and path.is_file() else []
    runs.append({"command": command, "torch": torch.__version__, "threads": torch.get_num_threads(),
                 "settings": dataclasses.asdict(settings), "last": last})
    path.write_text(json.dumps({"runs": runs}, indent=2) + "\n")


def _bar() -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
                    TimeRemainingColumn(), TextColumn("{task.fields[measures]}"), console=Console(stderr=True))


def _line(measures: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.4g}" for name, value in measures.items() if name != "seconds")


def train_visual_command(args: argparse.Namespace) -> None:
    """The ``visual`` subcommand."""
    settings = VisualTraining(epochs=args.epochs, seed=args.seed)
    record = Record(args.out, "visual_training", ("psnr", "codes"), resumed=False)
    last: dict[str, float] = {}
    with _bar() as bar:
        task = bar.add_task("visual", total=settings.epochs, measures="")

        def progress(epoch: int, measures: dict[str, float]) -> None:
            last.update(epoch=epoch, **measures)
            record.add({"epoch": epoch, **measures})
            bar.update(task, completed=epoch + 1, measures=_line(measures))

        visual = train_visual.train(VisualConfig(codebook=args.codebook, width=args.width), settings, progress)
    checkpoint.save_visual(args.out, visual)
    write_run(args.out, "visual_training", settings, last, resumed=False)
    record.draw()


def train_transformer_command(args: argparse.Namespace) -> None:
    """The ``transformer`` subcommand."""
    config = PRESETS[args.preset]
    visual = checkpoint.load_visual(args.out)
    if visual.config.codebook != config.codebook:
        raise ValueError(f"preset {args.preset} needs a tokenizer of {config.codebook} codes, but the one in "
                         f"{args.out} has {visual.config.codebook}; train it again with --codebook {config.codebook}")
    settings = TransformerTraining(minutes=args.minutes, batch=args.batch, frames=args.frames,
                                   start_share=args.start_share, first_frames=args.first_frames, seed=args.seed)
    state_file = args.state
    state_file.parent.mkdir(parents=True, exist_ok=True)
    resumed = state_file.is_file()
    record = Record(args.out, "transformer_training", ("loss", "val_loss", "val_moved"), resumed)
    last: dict[str, float] = {}
    with _bar() as bar:
        task = bar.add_task("transformer", total=60 * settings.minutes, measures="")

        def progress(transformer: Transformer, measures: dict[str, float]) -> None:
            last.update(measures)
            record.add(measures)
            bar.update(task, completed=measures["seconds"], measures=_line(measures))
            checkpoint.save(args.out, config, transformer, visual)

        transformer = train_transformer.train(config, visual, settings, progress, state_file)
    checkpoint.save(args.out, config, transformer, visual, dtype=torch.bfloat16)
    write_run(args.out, "transformer_training", settings, last, resumed)
    record.draw()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m model.train",
        description="Train the model on synthetic videos that are made on the way; nothing is downloaded. First the "
                    "visual tokenizer, then the transformer, into the same folder. Measures go to a CSV and a PNG "
                    "beside the weights; settings and seed to a JSON.")
    commands = top.add_subparsers(required=True, metavar="visual|transformer")
    visual = commands.add_parser("visual", help="patches to codes and back (minutes)",
                                 formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    visual.add_argument("--epochs", type=int, default=VisualTraining.epochs, help="passes over all stills")
    visual.add_argument("--codebook", type=int, default=PRESETS["fastcar-64"].codebook, help="number of codes")
    visual.add_argument("--width", type=int, default=VisualConfig.width, help="width of the hidden layers")
    visual.set_defaults(command=train_visual_command)
    transformer = commands.add_parser("transformer", help="prompt to codes (an hour or more)",
                                      formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    transformer.add_argument("--preset", choices=["fastcar-64", "fastcar-64-wide"], default="fastcar-64",
                             help="sizes of the model")
    transformer.add_argument("--minutes", type=float, default=TransformerTraining.minutes,
                             help="time budget; the learning rate falls to zero at its end")
    transformer.add_argument("--batch", type=int, default=TransformerTraining.batch, help="clips per step")
    transformer.add_argument("--frames", type=int, default=TransformerTraining.frames, help="frames per clip")
    transformer.add_argument("--start-share", type=float, default=TransformerTraining.start_share,
                             help="share of the clips that are the start of their video")
    transformer.add_argument("--first-frames", type=int, default=TransformerTraining.first_frames,
                             help="clips of the first frame only, besides the others in every step")
    transformer.add_argument("--state", type=Path, default=Path("build/train/transformer.pt"),
                             help="file with the state of the run; where it exists, the run goes on from it")
    transformer.set_defaults(command=train_transformer_command)
    for command in (visual, transformer):
        command.add_argument("--out", type=Path, default=checkpoint.default_dir(), help="folder of the model")
        command.add_argument("--seed", type=int, default=0, help="of data, initialisation and order")
        command.add_argument("--threads", type=int, default=1, help="CPU threads")
    return top


def main(argv: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    args = parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    try:
        args.command(args)
    except (ValueError, OSError, checkpoint.CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The evidence table with cycles: ``python -m host.table --out build/table``.

Quality of every row comes from model/table.py (integer model, many videos, the random control included). Cycles and
weight bytes come from the same prompts, seeds and thresholds on the simulated board, one video and its unconditional
twin at a time. What is done is kept in the folder; a second run goes on with what is missing.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import numpy as np
import torch
from rich.console import Console

from host.board import BoardError
from host.filmstrip import filmstrip
from host.generate import run
from host.settings import Settings
from hw.config import PRESETS
from model import checkpoint, table
from model.presets import PresetError, ReplayPresets, fingerprint, load_presets

ON_BOARD = ("dense", "change", "tas")
"""Gates whose rows run on the board; the random control has no cycles of interest."""
RESULT, TABLE, PICTURE = "table.json", "table.md", "frames.png"


def board_row(case: table.Case, presets: ReplayPresets, model: str, folder: Path, *, videos: int, frames: int,
              seed: int, preset: str, console: Console) -> dict[str, Any]:
    """Means per video of what the board counted, over ``videos`` generations."""
    threshold = case.threshold(presets)
    runs = []
    for number, prompt in enumerate(table.held_out_prompts(videos, seed)):
        settings = Settings(
            prompts=(prompt,), seed=seed + number, frames=frames, preset=preset,
            gate="change" if case.gate == "dense" else case.gate, dense=case.gate == "dense",
            threshold=None if threshold is None else (threshold,),
            out=_folder(folder, case, number))
        stats = _done(settings, model)
        if stats is None:
            console.print(f"{case.name}, video {number + 1} of {videos} on the board")
            stats = run(settings, console)
        if not stats["complete"]:
            raise KeyboardInterrupt
        runs.append(stats)
    names = ("cycles_decode", "weight_bytes", "replay_ratio_eligible", "jobs_without_weight_reads", "mac_utilisation")
    return {name: sum(stats[name] for stats in runs) / videos for name in names}


def _done(settings: Settings, model: str) -> dict[str, Any] | None:
    """Statistics of an earlier run with these settings and weights."""
    path = settings.out / "stats.json"
    if not path.is_file():
        return None
    stats = json.loads(path.read_text())
    same = stats["settings"] == json.loads(json.dumps(settings.to_dict())) and stats["model"] == model
    return stats if same and stats["complete"] else None


def _folder(root: Path, case: table.Case, number: int) -> Path:
    return root / case.name.replace(" ", "-").rstrip("%") / str(number)


def picture(root: Path, path: Path, number: int) -> None:
    """Filmstrip of video ``number`` in every row that ran on the board."""
    rows = []
    for case in table.cases():
        files = sorted((_folder(root, case, number) / "frames").glob("[0-9]*.png"))
        if files:
            rows.append((case.name, np.stack([imageio.imread(file) for file in files])))
    filmstrip(rows, path)


def markdown(quality: dict[str, dict[str, Any]], board: dict[str, dict[str, Any]]) -> str:
    """The table; cycles are simulated ones."""
    titles = ("gate, target", "replay, eligible steps", "decode cycles a video (simulated)", "speed-up of MLP jobs",
              "weight bytes", "PSNR against dense", "fully right", "motion kept")
    lines = [f"| {' | '.join(titles)} |", "| --- " * len(titles) + "|"]
    for case in table.cases():
        if case.name not in quality:
            continue
        row, counted = quality[case.name], board.get(case.name)
        cells = [case.name, f"{row['replay_ratio_eligible']:.1%}"]
        if counted is None:
            cells += ["–"] * 3
        else:
            cells += [f"{counted['cycles_decode'] / 1e6:.2f} M",
                      f"{board['dense']['cycles_decode'] / counted['cycles_decode']:.2f}x",
                      f"{counted['weight_bytes'] / board['dense']['weight_bytes']:.0%}"]
        cells += ["same" if row["psnr"] is None else f"{row['psnr']:.1f} dB", f"{row['accuracy']:.1%}",
                  f"{row['motion_kept']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m host.table", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/table"), metavar="DIR",
                        help="folder of the results (default build/table)")
    parser.add_argument("--videos", type=int, default=100, help="videos per row for quality (default 100)")
    parser.add_argument("--board-videos", type=int, default=2, help="videos per row on the board (default 2)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and videos (default 0)")
    parser.add_argument("--preset", default="sim", choices=PRESETS, help="of the simulated board (default sim)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(arguments)
    if options.videos < 1 or options.board_videos < 1:
        parser.error("at least one video per row is needed")
    torch.set_num_threads(1)
    console = Console(stderr=True, highlight=False)
    try:
        config, transformer, _ = checkpoint.load()
        presets, model = load_presets(transformer), fingerprint(transformer)
        board = {case.name: board_row(case, presets, model, options.out / "board", videos=options.board_videos,
                                      frames=config.layout.frames, seed=options.seed, preset=options.preset,
                                      console=console)
                 for case in table.cases() if case.gate in ON_BOARD}
    except (PresetError, checkpoint.CheckpointError, BoardError) as error:
        print(f"table: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"table: interrupted; what is done is in {options.out}, run it again to go on", file=sys.stderr)
        return 130
    picture(options.out / "board", options.out / PICTURE, options.board_videos - 1)
    quality_folder = options.out / "quality"
    with contextlib.redirect_stdout(sys.stderr):
        code = table.main(["--out", str(quality_folder), "--videos", str(options.videos), "--seed", str(options.seed)])
    if code:
        return code
    quality = json.loads((quality_folder / table.RESULTS).read_text())
    result = {"settings": quality["settings"] | {"board_videos": options.board_videos, "preset": options.preset},
              "quality": quality["rows"], "board": board}
    text = markdown(quality["rows"], board)
    (options.out / RESULT).write_text(json.dumps(result, indent=2) + "\n")
    (options.out / TABLE).write_text(text)
    print(text, end="", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

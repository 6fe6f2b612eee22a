"""One ``generate`` command from settings to files: model in PyTorch, MLPs on a board."""

import dataclasses
import time
from typing import Any

from rich.console import Console

from host.board import Board
from host.boards import check_tools, open_board, split
from host.compile import compile_model
from host.engine import BoardMlp
from host.gate import choose_gate
from host.output import OutputFolder
from host.plan import dry_run, own_plan
from host.progress import ProgressBar
from host.settings import Settings, SettingsError
from host.stats import JobStatistics, provenance, tokens_hash, versions
from host.verify import VerifiedMlp
from hw.config import SLOTS
from model import checkpoint, vocabulary, world
from model.config import Sampling
from model.engine import IntegerMlp, MlpEngine, quantised_weights
from model.gates import ChangeGate
from model.generate import Generation, generate
from model.integer import MlpWeights
from model.presets import fingerprint


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """Generate and write everything; returns the content of stats.json. Messages go to ``console``.

    What can be wrong with the settings is found out before the board is opened.

    Raises
    ------
    SettingsError, PromptError, PresetError, CheckpointError, OutputError, BoardError, VerifyError
    """
    videos = settings.videos()
    for prompt in settings.prompts:
        world.parse(prompt)
    _check_own(settings)
    if not settings.dry_run:
        check_tools(settings.board)
    config, transformer, visual = checkpoint.load(settings.model)
    for prompt in settings.prompts:
        vocabulary.encode(prompt, config.layout.prelude)
    sampling = config.sampling
    given = {name: getattr(settings, name) for name in ("cfg_scale", "temperature", "top_k")}
    sampling = dataclasses.replace(sampling, **{name: value for name, value in given.items() if value is not None})
    _check_rows(len(videos), sampling)
    frames = config.layout.frames if settings.frames is None else settings.frames
    gate, gate_report = choose_gate(settings, transformer)
    if settings.dry_run:
        return dry_run(own_plan(config, transformer, visual, rows=len(videos) * (2 if sampling.cfg_scale != 1 else 1),
                                frames=frames, window=settings.window, positions=settings.positions,
                                reference_inputs=isinstance(gate, ChangeGate)))
    folder = OutputFolder(settings.out, len(videos))
    weights = quantised_weights(transformer)
    jobs = JobStatistics()
    with open_board(settings.board, settings.preset) as board:
        compiled = compile_model(board.config, weights)
        on_board = BoardMlp(board, compiled, config.heads, on_job=jobs.add)
        engine, verified = _verified(settings, on_board, weights, console)
        started = time.monotonic()
        with ProgressBar(console, frames, len(videos)) as bar:
            result = generate(transformer, [p for p, _ in videos], [s for _, s in videos], frames=frames,
                              sampling=sampling, gate=gate, engine=engine, window=settings.window,
                              positions=settings.positions, on_step=bar.update)
        seconds = time.monotonic() - started
        board_report = _board_report(board, on_board, settings.board == "sim")
    message = _message(result, frames)
    if not result.complete:
        console.print(message)
    stats: dict[str, Any] = {
        "complete": result.complete, "message": message, "settings": settings.to_dict(),
        "sampling": dataclasses.asdict(sampling), "videos": [{"prompt": p, "seed": s} for p, s in videos],
        "frames": result.codes.shape[1], "versions": versions(), "model": fingerprint(transformer),
        "gate": gate_report, "board": board_report,
        "verify": {"requested": settings.verify, "elements_compared": verified.compared if verified else 0},
        "tokens_sha256": tokens_hash(result.codes), "wall_seconds": seconds,
        "tokens_per_s": result.codes.numel() / seconds,
        **result.statistics.summary(),
        **jobs.summary(board.config, config.hidden, config.intermediate),
        "provenance": provenance(split(settings.board)[0], board.config.clock_hz),
    }
    folder.write_tokens(result.codes.numpy())
    if result.codes.shape[1]:
        folder.write_videos([visual.decode(codes) for codes in result.codes], settings.fps, settings.upscale)
    stats["files"] = folder.results()
    folder.write_stats(stats)
    return stats


def _check_own(settings: Settings) -> None:
    """Refuse what only other models have."""
    for name, default, reason in (("device", "cpu", "the MLPs of this project's models run on the board"),
                                  ("dtype", "float32", "the board takes MXINT8, the rest runs in float32"),
                                  ("top_p", None, "this project's models are sampled by temperature and top-k")):
        if getattr(settings, name) != default:
            raise SettingsError(f"{name} {getattr(settings, name)!r} is for VILA-U models: {reason}; leave it out")


def _check_rows(videos: int, sampling: Sampling) -> None:
    rows = videos * (2 if sampling.cfg_scale != 1 else 1)
    if rows > SLOTS:
        raise SettingsError(f"{videos} videos at once are {rows} rows (guidance doubles them), the board has {SLOTS} "
                            "slots; generate fewer at a time, or turn guidance off with --cfg-scale 1")


def _verified(settings: Settings, engine: BoardMlp, weights: list[MlpWeights],
              console: Console) -> tuple[MlpEngine, VerifiedMlp | None]:
    """The engine to generate with, and the comparison in it if there is one."""
    if not settings.verify:
        return engine, None
    if settings.board == "golden":
        console.print("--verify compares nothing here: the golden board is the golden model itself")
        return engine, None
    verified = VerifiedMlp(engine, IntegerMlp(weights))
    return verified, verified


def _board_report(board: Board, engine: BoardMlp, simulated: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "kind": board.kind, "simulated": simulated, "config": board.config.to_dict(),
        "identification": engine.driver.identification,
        "cycles_with_register_accesses": board.cycles,
    }
    memory = getattr(board, "memory_config", None)
    if memory is not None:
        report["memory"] = dataclasses.asdict(memory)
    return report


def _message(result: Generation, frames: int) -> str:
    if result.complete:
        return "complete"
    done = result.codes.shape[1]
    return f"interrupted after {done} of {frames} frames: " + (
        "the video holds the frames that were finished" if done else "no frame was finished, there is no video")

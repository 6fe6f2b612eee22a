"""Conformance with vector files made by other implementations.

``python -m model.conformance DIR [--json]`` checks every ``*.npz`` file in DIR that holds vectors of a known kind,
prints one line per set or run, and exits 1 on any mismatch and 2 when DIR holds nothing to check. Kinds:

* MX formats: for every set ``in/<set>`` float ``[blocks, 32]`` and the expected dequantised values ``int8/<set>``
  (MXINT8) and ``fp4_e2m1/<set>`` (MXFP4), both or one of them.
* Decoder runs of the authors' code with replay: :mod:`model.conformance_llm`.
* Videos of VILA-U checkpoints, ``<name>_outputs.npz`` beside the folder ``<name>``: :mod:`model.conformance_vilau`.

Files without such arrays are left to other checks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np

from model.mx import dequantize, quantize

if TYPE_CHECKING:
    from model.conformance_llm import RunResult

FORMAT_OF_ARRAY = {"int8": "mxint8", "fp4_e2m1": "mxfp4"}
"""Prefix of an expected array -> format name of :mod:`model.mx`."""
INPUT_PREFIX = "in/"
OnStep = Callable[[str, int, int], None]
"""Progress: file, steps done, steps in all."""


class VectorError(Exception):
    """A vector file or folder that cannot be checked; the message says why and what to do."""


@dataclass(frozen=True)
class SetResult:
    """Outcome for one set and format; ``first`` describes the first differing element, empty when all agree."""

    file: str
    set: str
    format: str
    blocks: int
    mismatches: int
    first: str = ""

    @property
    def failed(self) -> bool:
        """Whether any value differs."""
        return self.mismatches > 0


def check_folder(folder: Path, on_step: OnStep | None = None) -> list[SetResult | RunResult]:
    """Check every vector file of ``folder``; raises VectorError when there is nothing to check."""
    if not folder.is_dir():
        raise VectorError(f"{folder} is not a folder; give the folder that holds the vector files (*.npz)")
    results = [result for path in sorted(folder.glob("*.npz")) for result in check_file(path, on_step)]
    if not any(not isinstance(result, SetResult) or result.blocks for result in results):
        raise VectorError(f"no vectors in {folder}: a *.npz file with arrays {INPUT_PREFIX}<set> and one of "
                          f"{', '.join(f'{prefix}/<set>' for prefix in FORMAT_OF_ARRAY)}, with config_json and "
                          "run/<run>/..., or with meta_json and prompt/input_ids is needed")
    return results


def check_file(path: Path, on_step: OnStep | None = None) -> Sequence[SetResult | RunResult]:
    """Results of one file, empty when it holds no vectors; raises VectorError for one that cannot be checked."""
    def progress(done: int, steps: int) -> None:
        if on_step is not None:
            on_step(path.name, done, steps)

    try:
        with np.load(path) as arrays:
            keys = set(arrays)
            if "config_json" in keys and any(key.startswith("run/") for key in keys):
                # Imported late: torch takes seconds, and MX vectors do without.
                from model.conformance_llm import check_llm
                return check_llm(path.name, dict(arrays), progress)
            if "meta_json" in keys and "prompt/input_ids" in keys:
                from model.conformance_vilau import check_vilau
                return check_vilau(path, dict(arrays), progress)
            return list(check_arrays(path.name, arrays))
    except (OSError, ValueError, BadZipFile) as error:
        raise VectorError(f"{path} cannot be checked: {error}") from error


def check_arrays(file: str, arrays: Mapping[str, np.ndarray]) -> Iterator[SetResult]:
    """Compare every expected array with the dequantised quantisation of its input, value by value."""
    for key in arrays:
        prefix, _, name = key.partition("/")
        if prefix not in FORMAT_OF_ARRAY:
            continue
        if INPUT_PREFIX + name not in arrays:
            raise VectorError(f"{file}: {key} has no input; add the array {INPUT_PREFIX}{name}")
        values, expected = arrays[INPUT_PREFIX + name], arrays[key].astype(np.float64)
        if values.shape != expected.shape:
            raise VectorError(f"{file}: {key} has shape {expected.shape} but {INPUT_PREFIX}{name} {values.shape}")
        fmt = FORMAT_OF_ARRAY[prefix]
        codes, scales = quantize(values, fmt)
        got = dequantize(codes, scales, fmt)
        wrong = (got != expected) & ~(np.isnan(got) & np.isnan(expected))
        first = ""
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            first = f"at {list(at)}: input {values[at]!r}, got {got[at]!r}, expected {expected[at]!r}"
        yield SetResult(file, name, fmt, int(scales.size), int(wrong.sum()), first)


def table(results: Sequence[SetResult]) -> str:
    """MX results as aligned text, with the first differing element below each line that has one."""
    lines = _aligned([("file", "set", "format", "blocks", "mismatches")]
                     + [(r.file, r.set, r.format, str(r.blocks), str(r.mismatches)) for r in results])
    for index in range(len(results), 0, -1):
        if results[index - 1].first:
            lines.insert(index + 1, f"    {results[index - 1].first}")
    return "\n".join(lines)


def run_table(results: Sequence[RunResult]) -> str:
    """Results of runs as aligned text."""
    return "\n".join(_aligned(
        [("file", "run", "decisions", "mask mismatches", "code mismatches", "largest error", "allowed", "in", "")]
        + [(r.file, r.run, str(r.decisions), str(r.mismatches), str(r.code_mismatches), f"{r.largest_error:.2g}",
            f"{r.tolerance:.2g}", r.where, "FAILED" if r.failed else "") for r in results]))


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in cells]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with *.npz vector files")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    try:
        results = _with_progress(options.folder)
    except VectorError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    sets = [result for result in results if isinstance(result, SetResult)]
    runs = [result for result in results if not isinstance(result, SetResult)]
    mismatches, failed = sum(result.mismatches for result in results), sum(result.failed for result in results)
    tables = ([table(sets)] if sets else []) + ([run_table(runs)] if runs else [])
    print("\n\n".join(tables), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps({"sets": [asdict(result) for result in sets],
                          "runs": [asdict(result) | {"failed": result.failed} for result in runs],
                          "mismatches": mismatches, "failed": failed}))
    else:
        print(f"{len(sets)} sets, {sum(result.blocks for result in sets)} blocks, {len(runs)} runs, "
              f"{mismatches} mismatches, {failed} failed")
    return 1 if failed else 0


def _with_progress(folder: Path) -> list[SetResult | RunResult]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    progress = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                        console=Console(stderr=True), transient=True)
    task = progress.add_task("")

    def on_step(file: str, done: int, steps: int) -> None:
        progress.start()  # not before: MX vectors take no time, and a bar would only leave an empty line
        progress.update(task, description=file, completed=done, total=steps)

    try:
        return check_folder(folder, on_step)
    finally:
        if progress.live.is_started:
            progress.stop()


if __name__ == "__main__":
    sys.exit(main())

"""Conformance of the MX formats with vector files made by another implementation.

``python -m model.conformance DIR [--json]`` checks every ``*.npz`` file in DIR that holds MX vectors, prints one line
per file, set and format, and exits 1 on any mismatch and 2 when DIR holds nothing to check. A file of that kind has,
for every set, ``in/<set>`` float ``[blocks, 32]`` and the expected dequantised values ``int8/<set>`` (MXINT8) and
``fp4_e2m1/<set>`` (MXFP4), both or one of them. Files without such arrays are left to other checks.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from model.mx import dequantize, quantize

FORMAT_OF_ARRAY = {"int8": "mxint8", "fp4_e2m1": "mxfp4"}
"""Prefix of an expected array -> format name of :mod:`model.mx`."""
INPUT_PREFIX = "in/"


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


def check_folder(folder: Path) -> list[SetResult]:
    """Check every MX vector file of ``folder``; raises VectorError when there is nothing to check."""
    if not folder.is_dir():
        raise VectorError(f"{folder} is not a folder; give the folder that holds the vector files (*.npz)")
    results = [result for path in sorted(folder.glob("*.npz")) for result in check_file(path)]
    if not any(result.blocks for result in results):
        raise VectorError(f"no MX vectors in {folder}: a *.npz file with arrays {INPUT_PREFIX}<set> and one of "
                          f"{', '.join(f'{prefix}/<set>' for prefix in FORMAT_OF_ARRAY)} is needed")
    return results


def check_file(path: Path) -> list[SetResult]:
    """Results of one file, empty when it holds no MX vectors; raises VectorError for one that cannot be read."""
    try:
        with np.load(path) as arrays:
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


def table(results: list[SetResult]) -> str:
    """The results as aligned text, with the first differing element below each line that has one."""
    header = ("file", "set", "format", "blocks", "mismatches")
    cells = [header] + [tuple(str(getattr(r, column)) for column in header) for r in results]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in cells]
    for index in range(len(results), 0, -1):
        if results[index - 1].first:
            lines.insert(index + 1, f"    {results[index - 1].first}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with *.npz vector files")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    options = parser.parse_args(argv)
    try:
        results = check_folder(options.folder)
    except VectorError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    mismatches = sum(result.mismatches for result in results)
    print(table(results), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps({"sets": [asdict(result) for result in results], "mismatches": mismatches}))
    else:
        print(f"{len(results)} sets, {sum(result.blocks for result in results)} blocks, {mismatches} mismatches")
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())

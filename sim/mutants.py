"""Breaks the RTL on purpose, one fault at a time in a scratch copy, and lists the tests that notice.

``python -m sim.mutants [NAME ...]`` runs the simulated board's tests on each mutant (a minute or more each, as all are
compiled anew) and fails when one survives. docs/verification.md keeps the result.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("hw", "model", "sim", "host", "pyproject.toml")
TESTS = "sim/test_board.py"
SEED = "1"


@dataclass(frozen=True)
class Mutant:
    """A fault: in ``file`` the text ``old``, which must occur once, becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant("align without the carry", "hw/align.py", "self.terms[row].carry.eq(shifted[0])",
           "self.terms[row].carry.eq(0)"),
    Mutant("rank counts the slot itself", "hw/drs.py", "rank.eq(sums[slot - 1] if slot else 0)", "rank.eq(sums[slot])"),
    Mutant("drain one cycle early", "hw/drains.py", "range(self.mac_latency - 2)", "range(self.mac_latency - 3)"),
    Mutant("replay above the threshold only", "hw/tas.py", "total >= self.threshold", "total > self.threshold"),
    Mutant("down phase does not wait for the hidden vector", "hw/schedule.py",
           "drains.occupied.bit_select(bank, 1) | hidden_missing", "drains.occupied.bit_select(bank, 1)"),
    Mutant("burst ignores the 4 KiB boundary", "hw/reader.py",
           "to_boundary.eq(BURST_BEATS - beat_address[:exact_log2(BURST_BEATS)])", "to_boundary.eq(BURST_BEATS)"),
    Mutant("hidden codes round half up", "hw/requantise.py",
           "half & (shifted[:KEPT_BITS].any() | value.sticky | code[0])", "half"),
    Mutant("BF16 truncates", "hw/bf16.py", "rounded.eq(kept + up)", "rounded.eq(kept)"),
    Mutant("watchdog never expires", "hw/job.py", "(self.watchdog != 0) & (idle_cycles >= self.watchdog)", "0"),
    Mutant("write errors are ignored", "hw/writer.py", "answered & (bus.bresp != axi.RESPONSE_OKAY)", "0"),
    Mutant("prefetch although all rows replay", "hw/sequencer.py", "self.prefetch.valid.eq(self.total != 0)",
           "self.prefetch.valid.eq(1)"),
)


def run(mutant: Mutant) -> list[str]:
    """Names of the tests that fail on the mutant. Raises ValueError when its text is not there exactly once."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        change(copy / mutant.file, mutant.old, mutant.new)
        # Not to be measured, only to be caught: compiling takes most of the time.
        change(copy / "sim" / "build.py", 'else "-O1"', 'else "-O0"')
        env = {**os.environ, "FASTCAR_BUILD": str(copy / "build"), "FASTCAR_SEED": SEED}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS]
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True)
        failed = re.findall(r"^(?:FAILED|ERROR) \S+?::([^ ]+)", done.stdout, re.MULTILINE)
        if done.returncode and not failed:
            raise RuntimeError(f"mutant {mutant.name!r}: pytest stopped with {done.returncode}:\n{done.stdout[-2000:]}")
        return failed


def change(path: Path, old: str, new: str) -> None:
    """Replace the only occurrence of ``old``."""
    text = path.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{path.name} holds {text.count(old)} times {old!r}, not once: adapt the mutant to the code")
    path.write_text(text.replace(old, new))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run (default: all)")
    options = parser.parse_args(arguments)
    known = {mutant.name: mutant for mutant in MUTANTS}
    for name in options.names:
        if name not in known:
            parser.error(f"unknown mutant {name!r}; known: {', '.join(map(repr, known))}")
    survivors = 0
    for mutant in [known[name] for name in options.names] or MUTANTS:
        began = time.monotonic()
        failed = run(mutant)
        survivors += not failed
        kinds = sorted({name.partition("[")[0] for name in failed})
        verdict = f"caught by {len(failed)} tests of {', '.join(kinds)}" if failed else "NOT CAUGHT"
        print(f"{mutant.name} ({mutant.file}): {verdict}  [{time.monotonic() - began:.0f} s]", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

"""Breaks the RTL on purpose, one fault at a time, and lists the tests that notice.

``python -m sim.mutants`` copies the project to a scratch folder, builds the tiny preset once with every fault behind a
selector input, runs ``sim/test_board.py`` without a fault (it must pass) and with each of them, and fails when a fault
survives. A fault that no job of this preset can show is given to a block's testbench, which is built anew for it.
docs/verification.md keeps the result.
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
    """In ``file``, where ``line`` occurs once, the expression ``old`` in it becomes ``new``; ``tests`` must notice."""

    name: str
    file: str
    line: str
    old: str
    new: str
    tests: str = TESTS


MUTANTS = (
    Mutant("alignment drops the rounding carry", "align.py", "carry.eq(shifted[0])", "shifted[0]", "0"),
    Mutant("rank counts the slot itself", "drs.py", "rank.eq(sums[slot - 1] if slot else 0)",
           "sums[slot - 1] if slot else 0", "sums[slot]"),
    # Every pass of this preset has more row groups than the MAC path has stages, so a job comes out right all the same.
    Mutant("pass drained one cycle early", "drains.py", "settled = delayed", "delayed",
           "delayed if stage else settled", "sim/test_blocks.py::test_block[schedule]"),
    Mutant("replay above the threshold only", "tas.py", "replay.eq(total >= self.threshold)", "total >= self.threshold",
           "total > self.threshold"),
    Mutant("down phase does not wait for the hidden vector", "schedule.py",
           "| hidden_missing)", "hidden_missing", "0"),
    Mutant("bank reused before it is drained", "schedule.py",
           "pass_starts & (drains.occupied.bit_select(bank, 1)", "drains.occupied.bit_select(bank, 1)", "0"),
    Mutant("burst ignores the 4 KiB boundary", "reader.py",
           "to_boundary.eq(BURST_BEATS - beat_address[:exact_log2(BURST_BEATS)])",
           "BURST_BEATS - beat_address[:exact_log2(BURST_BEATS)]", "BURST_BEATS"),
    Mutant("hidden codes round half up", "requantise.py", "value.sticky | code[0])", "code[0]", "1"),
    Mutant("BF16 rounds half up", "bf16.py", "value.sticky | kept[0])", "kept[0]", "1"),
    Mutant("BF16 truncates", "bf16.py", "rounded.eq(kept + up)", "kept + up", "kept"),
    Mutant("watchdog never expires", "job.py", "(idle_cycles >= self.watchdog)", "idle_cycles >= self.watchdog", "0"),
    Mutant("write errors are ignored", "writer.py", "(bus.bresp != axi.RESPONSE_OKAY)",
           "bus.bresp != axi.RESPONSE_OKAY", "0"),
    Mutant("weights fetched although all rows replay", "sequencer.py", "self.prefetch.valid.eq(self.total != 0)",
           "self.total != 0", "1"),
)

SELECTOR = '''"""Which fault is in force; 0 is none. A top without the port has the initial value."""
import os
from amaranth.hdl import Signal

MUTANT = Signal(8, name="mutant", init=int(os.environ["MUTANT"]))
'''

BUILD = '''
from amaranth.back import verilog as back
from amaranth.lib.wiring import In
from amaranth.hdl import Value
from amaranth.hdl._ir import PortDirection
from hw.config import preset
from hw.mutant import MUTANT
from hw.top import Top
from pathlib import Path
from sim import build

config = preset("tiny")
top = Top(config)
ports = {
    "__".join(map(str, path)): (Value.cast(value), PortDirection.Input if member.flow == In else PortDirection.Output)
    for path, member, value in top.signature.flatten(top)}
ports["mutant"] = (MUTANT, PortDirection.Input)
Path("mutants.v").write_text(back.convert(top, ports=ports, emit_src=False, strip_internal_attrs=True))
print(build.compile_board(config, [Path("mutants.v").absolute()]))
'''


def prepare(copy: Path) -> Path:
    """Fill ``copy`` with the project, all faults built in; the compiled library."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    (copy / "hw" / "mutant.py").write_text(SELECTOR)
    for number, mutant in enumerate(MUTANTS, start=1):
        faulty = f"FaultMux(MUTANT == {number}, {mutant.new}, {mutant.old})"
        change(copy / "hw" / mutant.file, mutant.line, mutant.line.replace(mutant.old, faulty))
    for file in {mutant.file for mutant in MUTANTS}:
        path = copy / "hw" / file
        imports = "from amaranth.hdl import Mux as FaultMux\nfrom hw.mutant import MUTANT\nfrom "
        path.write_text(re.sub(r"^from ", imports, path.read_text(), count=1, flags=re.MULTILINE))
    bind = "bind_ports(b->top, b->ports);"
    change(copy / "sim" / "harness.cpp", bind, bind + ' b->top.mutant = atoi(getenv("MUTANT"));')
    change(copy / "sim" / "harness.cpp", "#include <cstring>", "#include <cstring>\n#include <cstdlib>")
    change(copy / "sim" / "build.py", 'else "-O1"', 'else "-O0"')  # compiling takes longer than the tests
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=copy, env=environment(copy), text=True,
                          stdout=subprocess.PIPE)
    if done.returncode:
        raise RuntimeError("the faulty design cannot be built")
    library = Path(done.stdout.split()[-1])
    with open(copy / "sim" / "build.py", "a") as module:
        module.write(f"\n\ndef library(config, *, trace=False):\n    return Path({str(library)!r})\n")
    return library


def environment(copy: Path, number: int = 0) -> dict[str, str]:
    return {**os.environ, "FASTCAR_BUILD": str(copy / "build"), "FASTCAR_SEED": SEED, "MUTANT": str(number),
            "FASTCAR_TRACE": "0", "PYTHONPATH": str(copy)}


def run(copy: Path, number: int, tests: str) -> list[str]:
    """Names of the tests that fail with fault ``number``."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, cwd=copy, env=environment(copy, number), capture_output=True, text=True)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+?::(.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        raise RuntimeError(f"pytest stopped with {done.returncode}:\n{done.stdout[-2000:]}")
    return failed


def change(path: Path, old: str, new: str) -> None:
    """Replace the only occurrence of ``old``."""
    text = path.read_text()
    if text.count(old) != 1:
        raise ValueError(f"{path.name} holds {text.count(old)} times {old!r}, not once: adapt the mutant to the code")
    path.write_text(text.replace(old, new))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", default="", help="faults whose name holds TEXT (default: all)")
    only = parser.parse_args(arguments).only
    if not any(only in mutant.name for mutant in MUTANTS):
        parser.error(f"no fault's name holds {only!r}; they are: {', '.join(mutant.name for mutant in MUTANTS)}")
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        prepare(copy)
        broken = run(copy, 0, TESTS)
        if broken:
            print(f"tests fail without any fault: {', '.join(broken)}", file=sys.stderr)
            return 2
        for number, mutant in enumerate(MUTANTS, start=1):
            if only not in mutant.name:
                continue
            began = time.monotonic()
            failed = run(copy, number, mutant.tests)
            survivors += not failed
            kinds = sorted({name.partition("[")[0] for name in failed})
            verdict = f"{len(failed)} tests: {', '.join(kinds)}" if failed else "NOT CAUGHT"
            print(f"| {mutant.name} | `hw/{mutant.file}` | {verdict} |", flush=True)
            print(f"{mutant.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

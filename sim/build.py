"""Compiles an accelerator's Verilog and the harness to a shared library, once: cached by the hash of all inputs."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hw import build as hw_build
from hw.config import AcceleratorConfig
from sim import verilator

HARNESS = Path(__file__).with_name("harness.cpp")
BUILD_ROOT = Path(os.environ.get("FASTCAR_BUILD", Path(__file__).parents[1] / "build"))
"""Where simulations are built and kept; the environment variable FASTCAR_BUILD moves it."""

READ_PINS = ("araddr", "arlen", "arsize", "arburst", "arvalid", "arready",
             "rdata", "rresp", "rlast", "rvalid", "rready")
WRITE_PINS = ("awaddr", "awlen", "awsize", "awburst", "awvalid", "awready",
              "wdata", "wstrb", "wlast", "wvalid", "wready", "bresp", "bvalid", "bready")

VERILATOR_FLAGS = ("-O3", "--x-assign", "fast", "--x-initial", "fast", "--no-assert", "--no-timing")
COMPILER_FLAGS = ("-march=native", "-fPIC", "-fno-semantic-interposition", "-std=c++17")
LARGE_MACS = 512
"""From this size on speed pays for the compiler's best effort; a small build is compiled in half the time."""


class BuildFailed(Exception):
    """Verilator or the compiler reported an error; the message holds the end of its output."""


def library(config: AcceleratorConfig, *, trace: bool = False) -> Path:
    """Shared library of the simulated board for ``config``, built on first use.

    With ``trace`` it can write waveforms, and is several times slower. Raises :exc:`BuildFailed`, or
    :exc:`sim.verilator.ToolMissing` when no compiler is installed.
    """
    return compile_board(config, verilog(config), trace=trace)


def verilog(config: AcceleratorConfig) -> list[Path]:
    """Verilog files of the accelerator, written below BUILD_ROOT."""
    written = hw_build.emit(config, BUILD_ROOT / "verilog" / config.name)
    return [path for path in written if path.suffix in (".v", ".sv")]


def compile_board(config: AcceleratorConfig, sources: list[Path], *, trace: bool = False) -> Path:
    """As ``library``, from Verilog files whose top module is ``top``."""
    tools = verilator.find()
    trace_format = tools.trace_format() if trace else None
    ports = port_glue(config)
    digest = content_hash([*(path.read_bytes() for path in sources), HARNESS.read_bytes(), ports.encode(),
                           repr((VERILATOR_FLAGS, compiler_flags(config), trace_format)).encode(),
                           tools.version.encode(), machine().encode()])
    target = BUILD_ROOT / "sim" / f"{config.name}-{trace_format or 'fast'}-{digest}"
    built = target / "libboard.so"
    with exclusive(target.with_suffix(".lock")):
        if not built.exists():
            with staged(target) as folder:
                _compile(tools, config, sources, ports, folder, trace_format)
    return built


def compiler_flags(config: AcceleratorConfig) -> tuple[str, ...]:
    """Flags of the C++ compiler, the optimisation level first."""
    return ("-O3" if config.macs >= LARGE_MACS else "-O1", *COMPILER_FLAGS)


def port_glue(config: AcceleratorConfig) -> str:
    """C++ that binds the pins of every AXI port: port 0 is ``data`` (reads and writes), then the weight ports."""
    names = ["data", *(f"weights_{p}" for p in range(config.ports))]
    lines = [f"constexpr int kPorts = {len(names)};",
             "const char* const kPortNames[kPorts] = {" + ", ".join(f'"{n}"' for n in names) + "};",
             "struct Port;", "template <class P> void bind_ports(Vtop& t, P* ports) {"]
    for index, name in enumerate(names):
        lines.append(f"    ports[{index}].r = ReadPins{{" + ", ".join(_pin(name, pin) for pin in READ_PINS) + "};")
    lines.append("    ports[0].w = WritePins{" + ", ".join(_pin("data", pin) for pin in WRITE_PINS) + "};")
    lines.append("    ports[0].writes = true;\n}")
    return "\n".join(lines) + "\n"


def _pin(port: str, pin: str) -> str:
    member = f"t.{port}___05F{pin}"  # how Verilator writes two underscores
    return f"{member}.data()" if pin in ("rdata", "wdata") else f"&{member}"


def content_hash(parts: list[bytes]) -> str:
    """16 hexadecimal digits that change when any part does."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def machine() -> str:
    """What ``-march=native`` depends on: a build folder that moves to another processor is built anew."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return next((line for line in lines if line.startswith(("flags", "Features"))), os.uname().machine)


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a file lock: of several processes that need the same build, one makes it and the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A folder to build in that appears as ``target`` in one step, and only when the body succeeds.

    The caller holds the lock of ``target``, so what an interrupted build left behind is removed.
    """
    for stale in target.parent.glob(f"{target.name}.*/"):
        shutil.rmtree(stale, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        yield folder
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compile(tools: verilator.Tools, config: AcceleratorConfig, sources: list[Path], ports: str, folder: Path,
             trace_format: str | None) -> None:
    name, compiler = config.name, compiler_flags(config)
    (folder / "ports.inc").write_text(ports)
    work = folder / "obj"
    defines = [f"-DBOARD_TRACE_{trace_format.upper()}"] if trace_format else []
    trace_flags = ["--trace-fst" if trace_format == "fst" else "--trace-vcd"] if trace_format else []
    command = [tools.verilator, "--cc", "--exe", "--prefix", "Vtop", "--top-module", "top", "--Mdir", str(work),
               *VERILATOR_FLAGS, *trace_flags, *(f"-Wno-{w}" for w in verilator.WARNINGS_OFF),
               "-CFLAGS", " ".join([*compiler, f"-I{folder}", *defines]), "-LDFLAGS", "-shared -Wl,-O1",
               "-o", str(work / "libboard.so"), str(HARNESS), *map(str, sources)]
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"compiling the simulated board '{name}' (once)", total=None)
        run(command, tools, "Verilator")
        make = [tools.make, f"-j{os.cpu_count() or 1}", "-C", str(work), "-f", "Vtop.mk",
                f"OPT_FAST={compiler[0]}", "OPT_SLOW=-O0"]
        progress.update(task, total=run([*make, "-n"], tools, "make").count(" -c "))
        with subprocess.Popen(make, env=tools.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True) as process:
            lines = []
            for line in process.stdout or ():
                lines.append(line)
                progress.advance(task, 1 if " -c " in line else 0)
        if process.returncode:
            raise BuildFailed(f"compiling the simulated board failed ({process.returncode}):\n{''.join(lines)[-3000:]}")
    (work / "libboard.so").rename(folder / "libboard.so")
    shutil.rmtree(work)
    record = {"preset": name, "verilator": tools.version, "flags": [*VERILATOR_FLAGS, *compiler],
              "trace": trace_format}
    (folder / "build.json").write_text(json.dumps(record) + "\n")


def run(command: list[str], tools: verilator.Tools, what: str) -> str:
    """Run a build step; its output. Raises :exc:`BuildFailed` with the end of the output."""
    done = subprocess.run(command, env=tools.environment(), capture_output=True, text=True)
    if done.returncode:
        raise BuildFailed(f"{what} failed ({done.returncode}):\n{(done.stderr + done.stdout)[-3000:]}")
    if done.stderr:
        print(done.stderr, file=sys.stderr, end="")
    return done.stdout

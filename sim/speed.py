"""Measures the simulated board: clock cycles per second of wall time on real jobs.

``python -m sim.speed`` runs a layer with random weights several times and checks the outputs against the integer model;
the median over the runs is printed. Compiling (once) and checking are not part of the time.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from hw.config import PRESETS, AcceleratorConfig, preset
from sim import build, jobs, walk
from sim.board import SimulatedBoard
from sim.memory import MemoryConfig
from sim.verilator import ToolMissing, find


def layer_job(config: AcceleratorConfig, hidden: int, intermediate: int, rows: int, seed: int) -> jobs.Job:
    """``rows`` computing slots on a random layer."""
    rng = np.random.default_rng(seed)
    every = (1 << rows) - 1
    return jobs.Job(config=config, weights=walk.random_layer(rng, hidden, intermediate),
                    x=walk.random_matrix(rng, rows, hidden, 127, 6), active=every, mask=every,
                    old=np.zeros((rows, hidden), dtype=np.uint16))


def measure(config: AcceleratorConfig, *, hidden: int, intermediate: int, rows: int, runs: int, seed: int = 0,
            memory: MemoryConfig | None = None) -> dict:
    """Median speed of ``runs`` jobs with the conditions it was measured under. AssertionError on a wrong output."""
    job = layer_job(config, hidden, intermediate, rows, seed)
    memory = memory or MemoryConfig()
    speeds, cpu_speeds, counted = [], [], {}
    with SimulatedBoard(config, memory) as board, Progress(console=Console(stderr=True)) as progress:
        jobs.load(board, job)
        for _ in progress.track(range(runs), description="simulating"):
            before, began, cpu_began = board.cycles, time.perf_counter(), time.process_time()
            status = jobs.run(board)
            cycles = board.cycles - before
            speeds.append(cycles / (time.perf_counter() - began))
            cpu_speeds.append(cycles / (time.process_time() - cpu_began))
            counted = jobs.counters(board)
        jobs.compare(jobs.results(board, job), job.expected(), f"status {status}, seed {seed}")
        board.check()
    return {
        "cycles_per_s": round(statistics.median(speeds)), "slowest": round(min(speeds)), "fastest": round(max(speeds)),
        "cycles_per_cpu_s": round(statistics.median(cpu_speeds)),  # what an idle machine would give
        "runs": runs, "preset": config.name, "macs": config.macs, "hidden": hidden, "intermediate": intermediate,
        "rows": rows, "cycles_per_job": counted["CYCLES"], "mac_utilisation": round(counted["MAC_CYCLES"] * rows / (
            counted["CYCLES"] * config.cores * counted["BUSIEST_ROWS"]), 3), "memory": vars(memory), "seed": seed,
        "verilator": find().version, "flags": " ".join((*build.VERILATOR_FLAGS, *build.compiler_flags(config))),
        "processor": processor(), "processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1),
    }


def processor() -> str:
    """Model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="sim", choices=PRESETS, help="accelerator (default: %(default)s)")
    parser.add_argument("--hidden", type=int, default=0, help="hidden size, a multiple of 32 (default: up to 256)")
    parser.add_argument("--intermediate", type=int, default=0, help="likewise (default: up to 704)")
    parser.add_argument("--rows", type=int, default=8, help="computing rows, 1..32 (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=9, help="jobs to time; the median counts (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(arguments)
    config = preset(options.preset)
    hidden = options.hidden or min(256, 32 * config.max_hidden_blocks)
    intermediate = options.intermediate or min(704, 32 * config.max_intermediate_blocks)
    for name, value in (("hidden", hidden), ("intermediate", intermediate)):
        if value % 32 or value <= 0:
            parser.error(f"--{name} must be a positive multiple of 32, not {value}")
    if not 1 <= options.rows <= 32 or options.runs < 1:
        parser.error(f"--rows must be in 1..32 and --runs at least 1, not {options.rows} and {options.runs}")
    try:
        result = measure(config, hidden=hidden, intermediate=intermediate, rows=options.rows, runs=options.runs)
    except (ToolMissing, build.BuildFailed) as error:
        print(error, file=sys.stderr)
        return 3
    print(f"{result['cycles_per_s']:,} cycles/s (median of {result['runs']} jobs, {result['slowest']:,} to "
          f"{result['fastest']:,}; {result['cycles_per_cpu_s']:,} per second of processor time): "
          f"preset {result['preset']}, {result['macs']:,} MACs, MLP {hidden} x {intermediate}, "
          f"{options.rows} rows, {result['cycles_per_job']:,} cycles a job, outputs checked; {result['processor']}, "
          f"load {result['load']}", file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

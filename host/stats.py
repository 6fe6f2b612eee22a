"""Figures of one run: what the board counted, added up, and what follows from it."""

import hashlib
import importlib.metadata
import platform
from collections import Counter

import numpy as np
import torch

from host.engine import DECODE, PREFILL
from hw.config import AcceleratorConfig
from hw.registers import COUNTERS, PROTOCOL_VERSION

PHASES = {
    "program_fetch": "fetch_cycles", "scores": "score_cycles", "drs": "drs_cycles", "inputs": "input_cycles",
    "macs": "mac_cycles", "wait_for_weights": "stall_weight_cycles", "wait_for_drain": "stall_drain_cycles",
    "exposed": "exposed_cycles",
}
"""Phase of a job -> counter. Inputs and the rest of a job overlap, so the phases need not add up to the cycles."""
SCHEDULING = ("fetch_cycles", "score_cycles", "drs_cycles", "exposed_cycles")
"""Cycles in which the cores had nothing because the job was being scheduled."""


class JobStatistics:
    """Sums of the board's counters, prefill and decode apart. Give :meth:`add` to an engine as ``on_job``."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self.jobs_without_weights = 0
        self.counters = {kind: Counter({name.lower(): 0 for name in COUNTERS}) for kind in (PREFILL, DECODE)}
        self.layer_cycles: Counter[int] = Counter()
        self.rows: Counter[int] = Counter()
        """Rows that computed in a decode job -> number of such jobs."""
        self.busiest: Counter[int] = Counter()
        """Rows of the busiest core in a decode job -> number of such jobs."""

    def add(self, kind: str, layer: int, counters: dict[str, int]) -> None:
        self.jobs[kind] += 1
        self.counters[kind].update(counters)
        if kind == DECODE:
            self.layer_cycles[layer] += counters["cycles"]
            self.jobs_without_weights += counters["weight_bytes"] == 0
            self.rows[counters["rows_computed"]] += 1
            self.busiest[counters["busiest_rows"]] += 1

    def total(self, name: str) -> int:
        """Counter ``name`` over all jobs."""
        return sum(counters[name] for counters in self.counters.values())

    def rows_per_core(self, cores: int) -> list[int]:
        """Decode rows that each core computed: the k-th computing row of a job goes to core k mod ``cores``."""
        return [sum(len(range(core, rows, cores)) * jobs for rows, jobs in self.rows.items()) for core in range(cores)]

    def summary(self, config: AcceleratorConfig, hidden: int, intermediate: int) -> dict[str, object]:
        """All figures, JSON-ready. Cycles are those of jobs, register accesses of the host left out."""
        cycles = self.total("cycles")
        useful = self.total("rows_computed") * 3 * hidden * intermediate
        seconds = cycles / config.clock_hz
        return {
            "jobs": dict(self.jobs),
            "jobs_without_weight_reads": self.jobs_without_weights,
            "cycles": cycles,
            "cycles_prefill": self.counters[PREFILL]["cycles"],
            "cycles_decode": self.counters[DECODE]["cycles"],
            "cycles_per_layer": [self.layer_cycles[layer] for layer in sorted(self.layer_cycles)],
            "cycles_per_phase": {phase: self.total(counter) for phase, counter in PHASES.items()},
            "exposed_scheduling_cycles": sum(self.total(name) for name in SCHEDULING),
            "weight_bytes": self.total("weight_bytes"),
            "output_bytes": self.total("output_bytes"),
            "macs_useful": useful,
            "mac_utilisation": useful / (cycles * config.macs) if cycles else None,
            "mac_busy_share": self.total("mac_cycles") / cycles if cycles else None,
            "rows_per_core": self.rows_per_core(config.cores),
            "busiest_rows": {str(rows): jobs for rows, jobs in sorted(self.busiest.items())},
            "mlp_seconds_at_clock": seconds if cycles else None,
            "counters": {kind: dict(counters) for kind, counters in self.counters.items()},
        }


def provenance(board: str, clock_hz: int) -> dict[str, str]:
    """Where each group of figures comes from, in words, for the reader of a report. ``board``: its kind."""
    clock = "wall clock of this machine"
    if board == "sim":
        clock += ", which simulates the board"
        counted = (f"simulated: counters of the RTL under Verilator, MLP jobs only, memory model as in "
                   f"board.memory; seconds at the nominal {clock_hz / 1e6:g} MHz; no hardware was measured")
    elif board == "xdma":
        counted = (f"measured: counters of the card, MLP jobs only; seconds at the nominal {clock_hz / 1e6:g} MHz, "
                   "which is not measured")
    else:
        clock += ", which runs the integer model"
        counted = "golden board: rows and bytes as the accelerator would count them; it has no clock, so cycles are 0"
    return {
        "cycles*, counters, weight_bytes, output_bytes, mac_*, busiest_rows, exposed_*, mlp_seconds_at_clock": counted,
        "rows_per_core": "from the rows that computed in each job: the k-th goes to core k mod cores",
        "exposed_scheduling_cycles": "program fetch + scores + DRS + exposed cycles",
        "mac_utilisation": "useful MACs of the computed rows / (MACs per cycle of the array * cycles)",
        "replay_*": "index bits read back from the board; 'eligible' leaves frame 0 out",
        "tokens_per_s, wall_seconds": clock,
    }


def versions() -> dict[str, str]:
    """Versions of what a run depends on."""
    try:
        own = importlib.metadata.version("fastcar-hw")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed"
    return {"fastcar-hw": own, "protocol": str(PROTOCOL_VERSION), "python": platform.python_version(),
            "numpy": np.__version__, "torch": torch.__version__}


def tokens_hash(codes: torch.Tensor) -> str:
    """SHA-256 of codes ``[videos, frames, tokens]`` as little-endian int32: equal videos, equal hash."""
    return hashlib.sha256(codes.numpy().astype("<i4").tobytes()).hexdigest()

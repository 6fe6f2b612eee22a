"""The whole accelerator under cocotb: random jobs between AXI models, and a dump of a real generation."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hw.config import preset
from model import config as model_config
from model.dump import record
from model.engine import quantised_weights
from model.gates import ChangeGate, TasGate
from model.transformer import Transformer
from sim import bench_top, cocotb_runner, jobs, replay, walk, whole
from sim.board import SimulatedBoard

CONFIG = preset("tiny")


def random_jobs(rng: np.random.Generator, count: int) -> list[jobs.Job]:
    """Small jobs: mask and TAS source in turn, one where every row replays."""
    result = []
    for number in range(count):
        hidden, intermediate = 32 * int(rng.integers(1, 4)), 32 * int(rng.integers(1, 4))
        slots = int(rng.integers(1, 9))
        active = int(rng.integers(1, 1 << slots))
        choice: dict[str, Any] = {"mask": 0 if number == count - 1 else int(rng.integers(0, 256))}
        if number % 2:
            choice = {"scores": rng.integers(-(2**20), 2**20, (slots, 16)).astype(np.int32), "threshold": 0}
        result.append(jobs.Job(
            config=CONFIG, weights=walk.random_layer(rng, hidden, intermediate), active=active,
            x=walk.random_matrix(rng, slots, hidden, 127, 6), offset=4096 * int(rng.integers(0, 4)),
            old=rng.integers(0, 1 << 16, (slots, hidden)).astype(np.uint16), **choice))
    return result


def run_jobs(job_list: list[jobs.Job], label: str, rerun: str, folder: Path) -> None:
    path = folder / "jobs.pickle"
    path.write_bytes(pickle.dumps(job_list))
    cocotb_runner.run(whole.design(job_list[0].config), "sim.bench_top", label=label, rerun=rerun,
                      env={bench_top.JOBS_VARIABLE: str(path)})


def test_random_jobs(seed, tmp_path):
    run_jobs(random_jobs(np.random.default_rng([seed, 8]), 7), "top", "sim/test_top.py::test_random_jobs", tmp_path)


@pytest.fixture(scope="module", params=["tas", "change"])
def dump(request):
    """Two frames of an untrained model, with a guidance pair, at a threshold at which about half of the rows replay."""
    torch.manual_seed(0)
    transformer = Transformer(model_config.PRESETS["tiny"]).eval()
    gate = TasGate(0.0) if request.param == "tas" else ChangeGate(0.6)
    made = record(transformer, ["a red circle moves left", "a blue square moves right"], [1, 2], gate=gate, frames=2)
    return made, quantised_weights(transformer)


def test_a_dump_is_replayed(dump, tmp_path):
    """The board's index bits and replay cache are those of the generation, through all steps and layers of a frame."""
    made, weights = dump
    computed = made.arrays["computed"][made.arrays["eligible"] == 1]
    assert 0.1 < computed.mean() < 0.9, f"{computed.mean():.0%} of the rows compute: the threshold tests nothing"
    every = list(replay.dump_jobs(CONFIG, made, weights))
    for (step, layer), job in every:
        # The generation's own outputs, not only the integer model's for these inputs.
        jobs.compare(job.expected(), made.arrays["outputs"][step, layer], f"step {step}, layer {layer} of the dump")
        assert job.index == sum(int(bit) << row for row, bit in enumerate(made.arrays["computed"][step, layer]))
    stride = made.config.layout.stride
    chosen = [job for (step, _), job in every if step in (0, stride, stride + 1, stride + 2)]
    name = made.manifest["gate"]["name"]
    run_jobs(chosen, f"dump-{name}", f"sim/test_top.py::test_a_dump_is_replayed[{name}]", tmp_path)


def test_a_dump_on_the_simulated_board(dump):
    """All jobs of the dump, one after the other, on one board."""
    made, weights = dump
    with SimulatedBoard(CONFIG) as board:
        for (step, layer), job in replay.dump_jobs(CONFIG, made, weights):
            jobs.check(board, job, f"step {step}, layer {layer}")

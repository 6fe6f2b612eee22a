"""Every block alone under Verilator, driven by the cocotb testbenches ``sim/bench_*.py``."""

import pytest

from hw.config import preset
from sim import blocks, cocotb_runner

TESTS = {
    "csr": "sim.bench_control", "tas": "sim.bench_control", "drs": "sim.bench_control",
    "reader": "sim.bench_memory", "weights": "sim.bench_memory", "writer": "sim.bench_memory",
    "schedule": "sim.bench_datapath", "core": "sim.bench_datapath",
}
"""Block -> module with its tests, whose names begin with the block's."""


@pytest.fixture(scope="module")
def design():
    return blocks.design(preset("tiny"))


@pytest.mark.parametrize("block", TESTS)
def test_block(design, block):
    cocotb_runner.run(design, TESTS[block], tests=rf"\.{block}_\w+$", label=block,
                      rerun=f"sim/test_blocks.py::test_block[{block}]")

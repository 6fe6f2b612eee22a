"""Fixtures of the simulation tests: boards that share one compilation, and the seed of the run."""

import pytest

from sim import cocotb_runner
from sim.verilator import ToolMissing, find


def pytest_configure(config):
    """A machine without a compiler gets one line instead of a failure for every test."""
    try:
        find()
    except ToolMissing as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def seed(request) -> int:
    """Seed of the run, see ``cocotb_runner.seed``; tests put it into their failure messages."""
    value = cocotb_runner.seed()
    print(f"{cocotb_runner.SEED_VARIABLE}={value}")
    return value

"""A whole core against the integer model: codes, BF16 words, NaN, several local rows, back-pressure."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.config import AcceleratorConfig, preset
from hw.core import Core
from model.integer import BF16_NAN, MlpWeights, MxMatrix, mlp
from model.mx import BLOCK, SCALE_NAN
from tests.hw.core_driver import ROWS8, ROWS64, CoreDriver

TINY = preset("tiny")


def random_layer(rng: np.random.Generator, rows: int, hidden: int, intermediate: int) -> tuple[MxMatrix, MlpWeights]:
    """Inputs and weights whose block scales vary by powers of two, as trained ones do."""
    def matrix(outputs, inputs):
        spread = np.exp2(rng.integers(-6, 7, (outputs, inputs // BLOCK))).repeat(BLOCK, axis=1)
        return MxMatrix.from_float(rng.standard_normal((outputs, inputs)) * spread / np.sqrt(inputs))
    weights = MlpWeights(matrix(intermediate, hidden), matrix(intermediate, hidden), matrix(hidden, intermediate))
    return matrix(rows, hidden), weights


def run(config: AcceleratorConfig, jobs: list[tuple[MxMatrix, MlpWeights]], seed: int, **stalls):
    """Run jobs one after the other on one core; returns per job ``(words uint16 [rows, hidden], nan)``."""
    core = Core(config)
    driver = CoreDriver(core, np.random.default_rng(seed), **stalls)
    results = []

    async def bench(ctx):
        for x, weights in jobs:
            rows, size = len(x.codes), 2 * weights.hidden
            addresses = [(1 << 32) + local * 4096 for local in range(rows)]
            driver.memory.clear()
            await driver.start(ctx, x, weights, addresses)
            await driver.run(ctx, weights, rows)
            deadline = 400 + 40 * rows * weights.hidden // BLOCK
            while len(driver.memory) * 2 * BLOCK < rows * size:
                await ctx.tick()
                deadline -= 1
                assert deadline, f"seed {seed}: {len(driver.memory)} output beats, expected {rows * size // 64}"
            for _ in range(40):
                await ctx.tick()
            expected = {a + offset for a in addresses for offset in range(0, size, 2 * BLOCK)}
            assert set(driver.memory) == expected, f"seed {seed}: {sorted(driver.memory)} are the addresses written"
            words = [np.concatenate([driver.memory[a + offset] for offset in range(0, size, 2 * BLOCK)])
                     for a in addresses]
            results.append((np.stack(words), bool(ctx.get(core.nan))))

    simulator = Simulator(core)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.add_testbench(driver.collect, background=True)
    simulator.run()
    return results


def check(seed, words, expected):
    wrong = np.argwhere(words != expected)
    assert not len(wrong), (f"seed {seed}: {len(wrong)} words differ, first at row, column {tuple(wrong[0])}: "
                            f"{words[tuple(wrong[0])]:#06x}, expected {expected[tuple(wrong[0])]:#06x}")


@pytest.mark.parametrize("config, rows, hidden, intermediate, stalls", [
    (TINY, 3, 96, 64, {}),
    (TINY, 2, 64, 96, {"gap": 0.2, "output_stall": 0.8}),
    (ROWS8, 4, 128, 96, {"output_stall": 0.9}),
    pytest.param(ROWS64, 2, 96, 128, {"output_stall": 0.5}, marks=pytest.mark.slow),
])
def test_layers_equal_the_integer_model(config, rows, hidden, intermediate, stalls):
    seed = 1
    rng = np.random.default_rng(seed)
    jobs = [random_layer(rng, count, hidden, intermediate) for count in (rows, 1)]
    for (x, weights), (words, nan) in zip(jobs, run(config, jobs, seed, **stalls)):
        check(seed, words, mlp(x, weights).y)
        assert not nan


def test_nan_input_spoils_its_row_only_and_the_next_job_is_clean():
    seed = 2
    rng = np.random.default_rng(seed)
    x, weights = random_layer(rng, 3, 64, 64)
    bad = MxMatrix(x.codes.copy(), x.scales.copy())
    bad.scales[1, 1], bad.codes[1, BLOCK:] = SCALE_NAN, 0
    (words, nan), (clean, clean_nan) = run(TINY, [(bad, weights), (x, weights)], seed)
    check(seed, words, mlp(bad, weights).y)
    assert nan and (words[1] == BF16_NAN).all()
    check(seed, clean, mlp(x, weights).y)
    assert not clean_nan


@pytest.mark.parametrize("matrix", ["gate", "up"])
def test_nan_weight_spoils_every_row(matrix):
    seed = 3
    x, weights = random_layer(np.random.default_rng(seed), 2, 64, 64)
    getattr(weights, matrix).scales[-1, -1] = SCALE_NAN
    (words, nan), = run(TINY, [(x, weights)], seed)
    check(seed, words, mlp(x, weights).y)
    assert nan

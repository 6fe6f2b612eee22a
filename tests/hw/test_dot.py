import numpy as np
import pytest

from hw.dot import Dot
from model.integer import PRODUCT_BITS
from model.mx import BLOCK
from tests.hw.stimulus import assert_same, pack, through, unpack


@pytest.mark.parametrize("rows", [2, 8])
def test_sums_are_exact(rows):
    seed, count = 11, 40
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (count, BLOCK))
    weights = rng.integers(-127, 128, (count, rows, BLOCK))
    # Extremes: largest sums of all four sign combinations, next to each other in the two halves of a multiplier.
    codes[:4], weights[:4] = 127, 127
    codes[1] = -127
    weights[2], weights[3, 1::2] = -127, -127
    weights[4, 0] = 0
    dut = Dot(rows)

    def drive(ctx, cycle):
        # Weights run one cycle ahead of the codes.
        ctx.set(dut.weights.as_value(), pack(weights[min(cycle, count - 1)].ravel(), 8))
        ctx.set(dut.codes.as_value(), pack(codes[max(cycle - 1, 0)], 8))

    got = through(dut, Dot.LATENCY, range(count + 1), drive,
                  lambda ctx: unpack(ctx.get(dut.sums.as_value()), PRODUCT_BITS, rows, signed=True))
    assert_same(seed, "sums", got[1:], np.einsum("nk,nrk->nr", codes, weights))

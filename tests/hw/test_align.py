import numpy as np

from hw.align import Align, Term
from model.integer import GUARD_BITS, PRODUCT_BITS, _align
from tests.hw.stimulus import assert_same, pack, through

ROWS = 2


def test_terms_equal_the_integer_model():
    seed, count = 12, 3000
    rng = np.random.default_rng(seed)
    sums = rng.integers(-32 * 127 * 127, 32 * 127 * 127 + 1, (count, ROWS)) >> rng.integers(0, 20, (count, ROWS))
    sums[:4] = [[-1, 1], [0, 0], [-32 * 127 * 127, 32 * 127 * 127], [1 << 18, -(1 << 18)]]
    scale = rng.integers(0, 255, (count, ROWS))
    largest = np.minimum(scale + rng.integers(0, 40, (count, ROWS)), 254)
    x_drop = np.where(rng.random(count) < 0.5, rng.integers(0, 20, count), rng.integers(0, 255, count))
    # Every drop from 0 to past the limit on sums of both signs.
    x_drop[100:164], scale[100:164], largest[100:164] = np.arange(64), 7, 7
    dut = Align(ROWS)

    def drive(ctx, cycle):
        # Scales run EARLY cycles ahead of the sums.
        at, late = min(cycle, count - 1), max(cycle - Align.EARLY, 0)
        ctx.set(dut.x_drop, int(x_drop[at]))
        ctx.set(dut.largest.as_value(), pack(largest[at], 8))
        ctx.set(dut.scales.as_value(), pack(scale[at], 8))
        ctx.set(dut.sums.as_value(), pack(sums[late], PRODUCT_BITS))

    def sample(ctx):
        return [ctx.get(dut.terms[row].value) + ctx.get(dut.terms[row].carry) for row in range(ROWS)]

    got = through(dut, Align.LATENCY, range(count + Align.EARLY), drive, sample)
    assert Term.size == PRODUCT_BITS + GUARD_BITS + 1
    drop = x_drop[:, None] + largest - scale
    assert_same(seed, "terms", got[Align.EARLY:], _align((sums << GUARD_BITS).astype(np.int32), drop))

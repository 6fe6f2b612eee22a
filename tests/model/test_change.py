"""The change rule on MX codes against exact fractions, its ends, and how near it is to the float rule."""

from fractions import Fraction

import numpy as np
import pytest

from model.change import GUARD_BITS, LONGEST_SHIFT, change_replays, change_sums, change_threshold
from model.integer import MxMatrix

SEED = 11


def spread(rng: np.random.Generator, rows: int, blocks: int) -> MxMatrix:
    """Random codes, scales up to 20 octaves apart, some blocks zero."""
    codes = rng.integers(-127, 128, (rows, 32 * blocks)).astype(np.int8)
    codes.reshape(rows, blocks, 32)[rng.random((rows, blocks)) < 0.1] = 0
    return MxMatrix(codes, rng.integers(110, 131, (rows, blocks)).astype(np.uint8))


def exact(x: MxMatrix, r: MxMatrix, row: int, threshold: int) -> bool:
    """The rule of model/change.py in rational numbers, element by element."""
    own, common = int(x.scales[row].max()), int(max(x.scales[row].max(), r.scales[row].max()))
    norm = distance = 0
    for i, (a, b) in enumerate(zip(x.codes[row].tolist(), r.codes[row].tolist())):
        e, f = int(x.scales[row, i // 32]), int(r.scales[row, i // 32])
        norm += (a * 2**GUARD_BITS // 2 ** min(own - e, LONGEST_SHIFT)) ** 2
        distance += (a * 2**GUARD_BITS // 2 ** min(common - e, LONGEST_SHIFT)
                     - b * 2**GUARD_BITS // 2 ** min(common - f, LONGEST_SHIFT)) ** 2
    near = Fraction(distance) * Fraction(4) ** (common - own) <= Fraction(threshold, 2**24) * norm
    return common - own <= LONGEST_SHIFT and near


def test_rule_against_fractions():
    rng = np.random.default_rng(SEED)
    x, r = spread(rng, 60, 3), spread(rng, 60, 3)
    near = rng.random(60) < 0.5
    r.codes[near], r.scales[near] = np.clip(x.codes[near].astype(int) + rng.integers(-3, 4, (near.sum(), 96)), -127,
                                            127).astype(np.int8), x.scales[near]
    outcomes = set()
    for theta in (0.0, 0.01, 0.05, 0.9, 1.5, 100.0):
        threshold = change_threshold(theta)
        got = change_replays(x, r, threshold)
        assert got.tolist() == [exact(x, r, row, threshold) for row in range(60)], f"seed {SEED}, theta {theta}"
        outcomes |= set(got.tolist())
    assert outcomes == {False, True}


def test_equality_replays_and_one_more_does_not():
    x = MxMatrix(np.full((1, 32), 64, np.int8), np.full((1, 1), 127, np.uint8))
    r = MxMatrix(np.full((1, 32), 32, np.int8), np.full((1, 1), 127, np.uint8))
    assert change_threshold(0.5) == 1 << 22
    assert change_replays(x, r, 1 << 22).all() and not change_replays(x, r, (1 << 22) - 1).any()


def test_nan_zero_and_far_apart():
    one = MxMatrix(np.ones((1, 32), np.int8), np.full((1, 1), 120, np.uint8))
    zero = MxMatrix(np.zeros((1, 32), np.int8), np.zeros((1, 1), np.uint8))
    nan = MxMatrix(np.ones((1, 32), np.int8), np.full((1, 1), 255, np.uint8))
    highest = change_threshold(np.inf)
    assert highest == 2**32 - 1
    assert change_replays(zero, zero, 0).all() and change_replays(one, one, 0).all()
    assert not change_replays(zero, one, highest).any()
    assert change_replays(one, zero, highest).all() and not change_replays(one, zero, change_threshold(0.99)).any()
    for pair in ((nan, one), (one, nan), (nan, nan)):
        assert not change_replays(*pair, highest).any()
    far = MxMatrix(np.ones((1, 32), np.int8), np.full((1, 1), 120 + LONGEST_SHIFT + 1, np.uint8))
    assert not change_replays(one, far, highest).any()
    with pytest.raises(ValueError, match="theta must be at least 0, not -1.0"):
        change_threshold(-1.0)


def test_a_threshold_for_each_row():
    rng = np.random.default_rng(SEED)
    x, r = spread(rng, 4, 4), spread(rng, 4, 4)
    distance, norm, gap = (part.tolist() for part in change_sums(x, r))
    limits = [-(-(d << 2 * g + 24) // n) for d, n, g in zip(distance, norm, gap)]
    assert change_replays(x, r, limits).all()
    assert not change_replays(x, r, [limit - 1 for limit in limits]).any()


def test_it_is_the_float_rule_for_ordinary_values():
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((400, 128))
    r = x + rng.standard_normal(x.shape) * np.linspace(0, 1, 400)[:, None]
    relative = np.linalg.norm(x - r, axis=1) / np.linalg.norm(x, axis=1)
    got = change_replays(MxMatrix.from_float(x), MxMatrix.from_float(r), change_threshold(0.4))
    clear = abs(relative - 0.4) > 0.01
    assert np.array_equal(got[clear], relative[clear] <= 0.4) and clear.sum() > 300

"""Statistics against known values, and on series that are made to rise or not."""

import numpy as np
import pytest

from model.drift.trend import Bootstrap, MannKendall, Trend, mean_ranks, slopes, spearman, wilson


def test_wilson():
    """Expected: the closed formula of Wilson (1927), as in statsmodels' proportion_confint."""
    full, half = wilson(10, 10), wilson(5, 10)
    assert (full.value, full.high) == pytest.approx((1, 1)) and full.low == pytest.approx(0.7224672, abs=1e-6)
    assert (half.low, half.high) == pytest.approx((0.2365931, 0.7634069), abs=1e-6)
    assert wilson(0, 10).low == 0


def test_slopes_and_ranks():
    assert slopes(np.array([[1.0, 3, 5, 7], [2, 2, 2, 2], [3, 2, 1, 0]])) == pytest.approx([2, 0, -1])
    assert mean_ranks(np.array([5.0, 1, 5, 9])).tolist() == [1.5, 0, 1.5, 3]
    series = np.array([[1.0, 2, 3, 4, 100], [5, 4, 3, 2, 1], [1, 1, 1, 1, 1], [1, 3, 2, 2, 5]])
    # Expected: scipy.stats.spearmanr.
    assert spearman(series) == pytest.approx([1, -1, 0, 0.6668859288553501])


def test_mann_kendall():
    rising, flat = MannKendall.of(np.arange(20.0) ** 2), MannKendall.of(np.zeros(20))
    assert rising.tau == 1 and rising.p < 1e-6
    assert (flat.tau, flat.p) == (0, 1)
    # By hand: 7 pairs rise, 2 fall, 1 tie; variance (5 * 4 * 15 - 2 * 1 * 9) / 18; z = (5 - 1) / sqrt of it.
    mixed = MannKendall.of(np.array([1.0, 3, 2, 2, 5]))
    assert mixed.tau == pytest.approx(0.5) and mixed.p == pytest.approx(0.3122164, abs=1e-6)


def test_bootstrap_covers_the_mean_about_as_often_as_it_says():
    rng, hits = np.random.default_rng(1), 0
    for trial in range(300):
        found = Bootstrap(32, trial, 400).mean(rng.normal(3, 1, 32))
        hits += found.low <= 3 <= found.high
    assert 0.88 <= hits / 300 <= 0.98


def test_intervals_repeat_with_the_seed():
    values = np.random.default_rng(0).normal(size=12)
    assert Bootstrap(12, 5).mean(values) == Bootstrap(12, 5).mean(values) != Bootstrap(12, 6).mean(values)


@pytest.mark.parametrize("step, direction", [(0.05, 1), (-0.05, -1), (0.0, 0)])
def test_direction_of_noisy_series(step, direction):
    rng = np.random.default_rng(3)
    series = 1 + step * np.arange(40) + rng.normal(0, 0.3, (16, 40)) + rng.normal(0, 1, (16, 1))
    trend = Trend.of(series, 1, Bootstrap(16, 0))
    assert trend.direction == direction and (trend.frames, trend.ends, trend.first_frame) == (39, 8, 1)
    assert trend.change.value == pytest.approx(step * 31, abs=0.2)
    assert np.sign(trend.kendall.tau) == direction or not direction


def test_no_direction_where_slope_and_ends_disagree():
    """A peak in the middle of the second half has a slope, but ends where it began."""
    series = np.zeros((8, 40))
    series[:, 20:31] = 1
    trend = Trend.of(series, 0, Bootstrap(8, 0))
    assert trend.slope.direction == 1 and trend.change.direction == 0 and trend.direction == 0

"""Interpolation at equal replay ratio."""

import numpy as np
import pytest

from model.drift.frontier import frontier
from model.drift.plan import DENSE, Run
from model.drift.results import Result
from model.drift.trend import Bootstrap
from tests.model.drift.synthetic import result


def line(gate: str, points: dict[float, float]) -> list[Result]:
    return [result(Run(gate=gate, target=ratio), ratio=ratio, motion=motion) for ratio, motion in points.items()]


def test_values_lie_on_the_line_and_nothing_is_extrapolated():
    points = frontier(result(DENSE), [line("tas", {0.4: 0.6, 0.8: 0.2}), line("change", {0.5: 0.9})], [0.2, 0.6],
                      [8, 24], Bootstrap(6, 0))
    found = {(point.gate, point.ratio): point for point in points
             if (point.measure, point.frames) == ("motion_kept", 24)}
    assert found["tas", 0.2].value.value == pytest.approx(0.8)  # between dense (0, 1) and (0.4, 0.6)
    assert found["tas", 0.6].value.value == pytest.approx(0.4)
    assert found["change", 0.2].value.value == pytest.approx(0.96)
    assert found["change", 0.2].difference.value == pytest.approx(0.16) and found["tas", 0.2].difference is None
    assert ("change", 0.6) not in found, "0.5 is the most that it reached"
    assert {point.frames for point in points} == {8, 24}


def test_interval_is_that_of_the_prompts():
    runs = line("tas", {0.5: 0.5})
    runs[0].arrays["check_motion_kept"][:] = np.linspace(0, 1, 6)[:, None]
    point = frontier(result(DENSE), [runs], [0.5], [24], Bootstrap(6, 0))[1]
    assert point.measure == "motion_kept" and point.value.value == pytest.approx(0.5)
    assert 0.15 < point.value.low < 0.35 and 0.65 < point.value.high < 0.85

"""The verdict on series whose answers are known."""

import json

import numpy as np
import pytest

from model.drift.plan import DENSE, Run
from model.drift.verdict import as_json, dense_is_stable, judge, summary
from tests.model.drift.synthetic import result

RUN = Run(gate="tas", target=0.5)
TIME = np.arange(24)


def verdict(**options):
    return judge(result(RUN, **options), result(DENSE), seed=7)


def test_growing_distance_is_monotone():
    found = verdict(distance=0.02 * TIME, ratio=0.5)
    assert found.monotone and found.grows_late and found.late_layers == (0, 1)
    assert not found.climbs and not found.full and not any(found.falls.values())
    text = " ".join(found.sentences())
    assert "own codes: is monotone in t" in text and "dense codes" not in text
    assert "does not run to 100 %: shows no trend" in text


def test_distance_that_settles_does_not_grow_late():
    found = verdict(distance=0.3 * (1 - np.exp(-TIME / 0.8)))
    assert found.distance.whole.direction == 1 and not found.monotone
    assert not found.grows_late and found.late_layers == ()
    assert "not monotone" in " ".join(found.sentences())


def test_flat_distance_has_no_trend():
    found = verdict(distance=0.3)
    assert found.distance.whole.direction == 0 and not found.monotone


def test_the_forced_distance_decides_where_there_is_one():
    found = verdict(distance=0.02 * TIME, forced=3)
    assert found.forced_distance is not None and found.judged is found.forced_distance
    assert "dense codes fed: is monotone" in " ".join(found.sentences())


@pytest.mark.parametrize("ratio, climbs, full", [(TIME / 23, True, False), (np.minimum(1, TIME / 12), False, True),
                                                 (np.full(24, 0.8), False, False)])
def test_ratio_over_time(ratio, climbs, full):
    found = verdict(ratio=ratio)
    assert (found.climbs, found.full) == (climbs, full)
    assert (found.full_prompts, found.full_layers) == ((6, (0, 1)) if full else (0, ()))


def test_falling_quality_is_told_by_measure():
    found = verdict(error=1.0 + TIME, right=1 - TIME / 46, motion=1.0)
    assert found.falls == {"psnr_db": True, "right": True, "motion": False}
    assert found.against_dense["right"].high < 0 and found.against_dense["motion"].value == 0
    row = summary([found])[0]
    assert row["PSNR falls"].startswith("yes, -")
    assert row["motion kept falls"] == "no, +0.00" and row["run"] == "tas 50%"


def test_low_but_level_quality_does_not_fall():
    found = verdict(motion=0.1)
    assert not found.falls["motion"] and found.against_dense["motion"].value == pytest.approx(-0.9)


def test_stability_of_dense():
    assert dense_is_stable(result(DENSE), 0)[0]
    stable, lines = dense_is_stable(result(DENSE, right=1 - TIME / 100), 0)
    assert not stable and "not shown to be stable over 24 frames: 6 of 6 videos right" in lines[0]
    assert not dense_is_stable(result(DENSE, motion=1 - TIME / 100), 0)[0]


def test_json_has_numbers_and_answers():
    content = json.loads(json.dumps(as_json(verdict(distance=0.02 * TIME, forced=2, ratio=0.4)), allow_nan=False))
    assert content["answers"]["d_monotone"] is True and content["ratio_eligible"] == pytest.approx(0.4)
    assert content["distance"]["whole"]["slope"]["value"] == pytest.approx(0.02, abs=1e-3)

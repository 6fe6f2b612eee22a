"""Thresholds of a study: the rollouts that try them, and what they reach."""

import json

import numpy as np
import pytest

from model.calibrate import ROUNDS
from model.drift import thresholds
from model.drift.plan import Run, Settings
from model.drift.store import Store
from model.drift.thresholds import Calibration, GateError, calibrated, gate_options
from model.gates import make_gate
from model.generate import generate
from model.replay import FloatMlp
from tests.model.small import PROMPTS, random_model

SEEDS = [1, 2, 3, 4]


def calibration(transformer, frames=4):
    return Calibration(transformer=transformer, engine=FloatMlp(transformer), prompts=PROMPTS, seeds=SEEDS,
                       frames=frames)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("gate, values", [("tas", [-0.5, 0.0, np.inf]), ("oracle", [0.5, 1.0, 1.5])])
def test_one_rollout_tries_all_thresholds(gate, values, window):
    transformer = random_model()
    single = [generate(transformer, PROMPTS, SEEDS, frames=4, window=window,
                       gate=make_gate(gate, value, transformer=transformer)).statistics.replay_ratio_eligible
              for value in values]
    assert calibration(transformer).ratios(gate, window, values) == pytest.approx(single, abs=0.01)


def test_points_are_near_their_targets():
    transformer = random_model()
    trial = calibration(transformer)
    points = trial.points("change", None, [0.3, 0.6], trial.statistic("change"))
    assert {target: ratio for target, (ratio, _) in points.items()} == pytest.approx({0.3: 0.3, 0.6: 0.6}, abs=0.03)


def test_a_jump_is_closed_in_on(monkeypatch):
    """A ratio that jumps from 0.5 to 1 at 1.1, far from the straight line: bisection finds the nearer side."""
    trial = calibration(random_model())
    tried = []

    def ratios(self, gate, window, values):
        tried.append(len(values))
        return [0.45 * value if value <= 1.1 else 1.0 for value in values]

    monkeypatch.setattr(thresholds.Calibration, "ratios", ratios)
    ratio, threshold = trial.points("change", None, [0.49], np.linspace(0, 2, 100)[None])[0.49]
    assert ratio == pytest.approx(0.49, abs=0.05) and threshold <= 1.1
    assert len(tried) <= ROUNDS + thresholds.BISECTIONS


def test_thresholds_are_found_once(tmp_path, monkeypatch):
    transformer = random_model()
    store = Store(tmp_path, Settings(fingerprint="", engine="float", frames=4, prompts=2, seed=0, batch=2, forced=2,
                                     calibration=4))
    runs = [Run(), Run(gate="tas", target=0.5), Run(gate="random", target=0.3)]
    values = calibrated(store, runs, calibration(transformer))
    assert values.keys() == {"tas-0.5", "random-0.3"} and values["random-0.3"] == 0.3
    assert store.thresholds["tas-0.5"]["ratio"] == pytest.approx(0.5, abs=0.03)
    monkeypatch.setattr(Calibration, "ratios", lambda *args: pytest.fail("calibrated twice"))
    assert calibrated(store, runs, calibration(transformer)) == values


def test_gates_and_how_they_are_set():
    transformer = random_model()
    for gate in ("tas", "change", "random", "oracle", "oracle-residual", "change-float"):
        options = gate_options(gate, transformer)
        assert options["joint_pairs"] is False and options["max_age"] == 0
        assert json.loads(json.dumps(options)), "all of it can be stored"
    assert gate_options("tas-released", transformer)["variant"] == "released"
    for gate in ("dense", "nonsense"):
        with pytest.raises(GateError, match=f"gate must be one of .*tas.* not '{gate}'"):
            gate_options(gate, transformer)
    with pytest.raises(GateError, match="gate 'controlled' needs more than a threshold .*target"):
        gate_options("controlled", transformer)

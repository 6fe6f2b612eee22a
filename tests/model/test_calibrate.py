"""Calibration: the solver, curves, presets on disk, and a real one on a random model."""

import functools
import json

import numpy as np
import pytest

from model import calibrate, checkpoint, world
from model.gates import THRESHOLD_GATES, FloatChangeGate, TasGate
from model.generate import generate
from model.presets import Curve, PresetError, ReplayPresets, fingerprint, load_presets
from model.visual import VisualConfig, VisualTokenizer
from tests.model.small import PROMPTS, random_model


@pytest.mark.parametrize("low, high", [(0.0, 4.0), (4.0, 0.0)])
def test_solver_reaches_targets_in_few_rounds(low, high):
    rounds = []

    def measure(thresholds: list[float]) -> list[float]:
        rounds.append(len(thresholds))
        return [((threshold - low) / (high - low)) ** 0.7 for threshold in thresholds]

    points = calibrate.solve(measure, [0.3, 0.5, 0.8], [low, 2.0, high])
    assert [ratio for ratio, _ in points] == pytest.approx([0.3, 0.5, 0.8], abs=0.03)
    assert rounds[0] == 3 and 2 <= len(rounds) <= calibrate.ROUNDS and max(rounds[1:]) <= 3
    assert measure([threshold for _, threshold in points]) == [ratio for ratio, _ in points]


def test_solver_takes_the_nearest_where_a_target_is_out_of_reach():
    points = calibrate.solve(lambda thresholds: [0.4 if threshold > 1 else 0.1 for threshold in thresholds],
                             [0.3, 0.9], [0.0, 4.0])
    assert [ratio for ratio, _ in points] == [0.4]


@pytest.mark.parametrize("name", ["tas", "change"])
@pytest.mark.parametrize("joint", [False, True])
def test_sweep_is_one_generation_per_threshold(name, joint):
    transformer = random_model()
    thresholds = {"tas": [-0.5, 0.0, np.inf], "change": [0.5, 1.0, 1.2]}[name]
    make = functools.partial(THRESHOLD_GATES[name], joint_pairs=joint)
    swept = calibrate.sweep(transformer, make, thresholds, prompts=PROMPTS, seeds=[1, 2, 3, 4], frames=3)
    single = [generate(transformer, PROMPTS, [1, 2, 3, 4], frames=3,
                       gate=THRESHOLD_GATES[name](threshold, joint_pairs=joint)).statistics.replay_ratio_eligible
              for threshold in thresholds]
    assert swept == pytest.approx(single, abs=0.01)


@pytest.mark.parametrize("name, joint", [("tas", False), ("change", True)])
def test_calibrated_thresholds_reach_their_ratio(name, joint):
    transformer = random_model()
    make = functools.partial(THRESHOLD_GATES[name], joint_pairs=joint)
    curve = calibrate.calibrate(transformer, name, make, targets=[0.3, 0.6], joint_pairs=joint, prompts=PROMPTS,
                                seeds=[1, 2, 3, 4], frames=4)
    assert [ratio for ratio, _ in curve.points] == pytest.approx([0.3, 0.6], abs=0.06)
    again = generate(transformer, PROMPTS, [1, 2, 3, 4], frames=4, gate=make(curve.points[1][1]))
    assert again.statistics.replay_ratio_eligible == pytest.approx(curve.points[1][0], abs=0.01)


def test_statistic_is_what_the_gate_compares():
    transformer = random_model()
    scores, inputs = [], {}

    def observe(item):
        if item.layer == 1:
            inputs[item.step.number] = item.x.clone()
            if item.step.eligible:
                scores.append(item.scores.mean(dim=1).numpy())

    generate(transformer, PROMPTS[:2], [1, 2], frames=3, observer=observe)
    tas, change = (calibrate.dense_statistic(transformer, make, PROMPTS[:2], [1, 2], frames=3)
                   for make in (TasGate, FloatChangeGate))
    assert tas.shape == change.shape == (2, 31 * 4)
    np.testing.assert_allclose(tas[1], np.concatenate(scores), rtol=1e-5)
    # Without replay the reference is the input one frame earlier.
    expected = [((inputs[n] - inputs[n - 16]).norm(dim=1) / inputs[n].norm(dim=1)).numpy() for n in range(16, 47)]
    np.testing.assert_allclose(change[1], np.concatenate(expected), rtol=1e-5)


def test_prompts_are_those_of_the_training_set():
    prompts = calibrate.sample_prompts(20, seed=1)
    assert prompts == calibrate.sample_prompts(20, seed=1) != calibrate.sample_prompts(20, seed=2)
    assert not any(world.held_out(world.parse(prompt)) for prompt in prompts)


def test_curve_interpolates():
    curve = Curve(gate="tas", joint_pairs=False, points=((0.2, 3.0), (0.5, 0.0), (0.8, -6.0)))
    assert curve.threshold(0.5) == 0.0
    assert curve.threshold(0.35) == pytest.approx(1.5)
    assert curve.threshold(0.65) == pytest.approx(-3.0)
    assert curve.threshold(0.81) == -6.0, "a target that the calibration just missed"
    with pytest.raises(PresetError, match=r"replay ratio 0.9 of gate tas is outside the calibrated 0.20..0.80"):
        curve.threshold(0.9)
    with pytest.raises(ValueError, match="points need ascending ratios"):
        Curve(gate="tas", joint_pairs=False, points=((0.5, 0.0), (0.2, 3.0)))


def test_presets_on_disk(tmp_path):
    transformer, other = random_model(), random_model(seed=1)
    with pytest.raises(PresetError, match="no calibrated thresholds"):
        load_presets(transformer, tmp_path)
    single, joint = (Curve(gate="tas", joint_pairs=pairs, points=((0.5, 1.0 + pairs),)) for pairs in (False, True))
    presets = ReplayPresets(fingerprint=fingerprint(transformer)).with_curve(joint).with_curve(single)
    path = presets.save(tmp_path)
    loaded = load_presets(transformer, tmp_path)
    assert loaded == presets
    assert loaded.curve("tas", joint_pairs=True).threshold(0.5) == 2.0
    assert loaded.with_curve(Curve(gate="tas", joint_pairs=True, points=((0.5, 7.0),))).curves[0] == single
    with pytest.raises(PresetError, match="no calibration of gate change with joint pairs"):
        loaded.curve("change", joint_pairs=True)
    with pytest.raises(PresetError, match="was calibrated for weights"):
        load_presets(other, tmp_path)
    path.write_text("{}")
    with pytest.raises(PresetError, match="is damaged"):
        load_presets(transformer, tmp_path)


def test_command_writes_presets_and_prints_quantiles(tmp_path, capsys):
    transformer = random_model()
    checkpoint.save(tmp_path, transformer.config, transformer, VisualTokenizer(VisualConfig(codebook=32, width=8)))
    arguments = ["--model", str(tmp_path), "--prompts", "2", "--frames", "3", "--target", "0.5", "--json"]
    assert calibrate.main(["--gate", "tas", *arguments]) == 0
    assert calibrate.main(["--gate", "change", "--joint-pairs", *arguments]) == 0
    captured = capsys.readouterr()
    assert "quantiles per layer" in captured.err and "50%" in captured.err
    report = json.loads(captured.out.splitlines()[-1])
    ratio = report["gates"]["change"]["points"][0]["ratio"]
    assert ratio == pytest.approx(0.5, abs=0.05)
    loaded = load_presets(transformer, tmp_path)
    assert {(curve.gate, curve.joint_pairs) for curve in loaded.curves} == {("tas", False), ("change", True)}
    assert loaded.curve("change", joint_pairs=True).points[0][0] == ratio
    assert calibrate.main(["--model", str(tmp_path / "none")]) == 3
    assert "no model file" in capsys.readouterr().err

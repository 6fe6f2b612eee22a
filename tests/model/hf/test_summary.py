"""The summary says what happened, calibration reaches its target, presets belong to their weights."""

import dataclasses

import numpy as np
import pytest
import torch

from model.hf import (
    ReplayConfig,
    ReplayError,
    ReplayPreset,
    calibrate_replay,
    disable_replay,
    enable_replay,
    replay_statistics,
    replay_summary,
)
from model.hf.calibrate import search
from model.hf.statistics import SAMPLES, Sample
from tests.model.hf.tiny import SEPARATOR, feed, make, tokens

CONFIG = {"tokens_per_frame": 4, "stride": 5, "separator_ids": (SEPARATOR,)}


def summary(frames=4, rows=2, **changes):
    model = make()
    enable_replay(model, ReplayConfig(**CONFIG, **changes))
    feed(model, tokens(rows, 6, frames, 4), 6)
    return replay_summary(model), replay_statistics(model)


def test_no_replay_is_explained():
    text, statistics = summary(thresholds=50.0)
    most = max(sample.most for sample in statistics.samples)
    assert f"0 replays: τ = 50.0 is above every score seen (max {most:.4g})" in text.splitlines()
    text, statistics = summary(variant="change", thresholds=-1.0)
    least = min(sample.least for sample in statistics.samples)
    assert f"0 replays: θ = -1.0 is below every relative change seen (min {least:.4g})" in text.splitlines()
    text, _ = summary(thresholds=(50.0, 60.0, 70.0))
    assert "0 replays: every layer's τ is above every score it saw (max " in text
    text, _ = summary(frames=1, thresholds=0.0)
    assert "0 replays: the generations ended before a step could replay; 1 warm-up frames of stride 5" in text
    model = make()
    enable_replay(model, ReplayConfig(**CONFIG, thresholds=0.0))
    assert "0 replays: no single-token step was made in a frame" in replay_summary(model)


def test_numbers():
    text, statistics = summary(thresholds=float("-inf"), guided=True)
    lines = text.splitlines()
    assert lines[0] == ("replay (paper): 1 sequences, 120 row steps, 90 of them eligible, 90 replayed: 100.0% of the "
                        "eligible, 75.0% of all")
    assert lines[1] == "MLP calls: 15 made, 45 saved of 60; 30 rows computed of 120"
    assert lines[2].endswith(" 3840 at most")
    assert lines[3:5] == [f"{branch}: 100.0% of the eligible replayed" for branch in ("conditional", "unconditional")]
    layers = [line.split() for line in lines[6:9]]
    assert [line[:5] for line in layers] == [[str(n), "30", "100.0%", "2.00", "3"] for n in range(3)]
    for line, sample in zip(layers, statistics.samples):
        np.testing.assert_allclose(float(line[7]), np.median(sample.values), atol=1e-3)
    assert [line.split() for line in lines[10:]] == [["0", "0", "-", "0.00", "0"], ["1", "30", "100.0%", "1.00", "1"],
                                                     ["2", "30", "100.0%", "2.00", "2"],
                                                     ["3", "30", "100.0%", "3.00", "3"]]


def test_samples_are_bounded_and_fair():
    sample, seed = Sample(0), 11
    values = np.random.default_rng(seed).normal(size=(5 * SAMPLES, 2)).astype(np.float32)
    for pair in values:
        sample.add(pair)
    assert sample.count == values.size and len(sample.values) == SAMPLES
    assert (sample.least, sample.most) == (values.min(), values.max())
    np.testing.assert_allclose(np.quantile(sample.values, [0.1, 0.5, 0.9]), np.quantile(values, [0.1, 0.5, 0.9]),
                               atol=0.1, err_msg=f"seed {seed}")


def test_search_brackets_a_steep_curve():
    asked = []

    def ratio(threshold):
        asked.append(threshold)
        return float(1 / (1 + np.exp(8 * (threshold - 3))))

    found, threshold = search(ratio, 0.8, guess=0.0, never=10.0, always=-10.0)
    assert abs(found - 0.8) <= 0.01 and found == 1 / (1 + np.exp(8 * (threshold - 3))) and len(asked) <= 9


def run_given(model, prompt):
    feed(model, torch.cat([prompt, tokens(len(prompt), 1, 6, 4, seed=int(prompt[0, 0]))[:, 1:]], dim=1),
         prompt.shape[1])


@pytest.mark.parametrize("variant", ["paper", "cosine", "change"])
def test_calibration_reaches_the_target_and_is_tied_to_the_weights(variant, tmp_path):
    model = make()
    prompts = [torch.tensor([[3, 4, 5], [6, 7, 8]]), torch.tensor([[9, 9], [4, 4]])]
    preset = calibrate_replay(model, prompts, 0.6, config=ReplayConfig(**CONFIG, variant=variant, thresholds=0.0),
                              generate=run_given)
    assert abs(preset.ratio - 0.6) < 0.05 and preset.config.thresholds_for == variant
    preset.save(tmp_path / "preset.json")
    again = ReplayPreset.load(tmp_path / "preset.json")
    assert again == preset
    enable_replay(model, again)
    for prompt in prompts:
        run_given(model, prompt)
    assert replay_statistics(model).ratio() == preset.ratio
    other = make()
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    with pytest.raises(ReplayError, match="^the preset was calibrated for weights [0-9a-f]{16}, these are "):
        enable_replay(other, again)
    enable_replay(other, again.config)


def test_calibration_of_an_enabled_model_by_its_own_generate():
    model = make()
    config = ReplayConfig(tokens_per_frame=4, stride=4, separator_ids=(), thresholds=1.5)
    enable_replay(model, config)
    preset = calibrate_replay(model, [torch.tensor([[3, 4, 5]])], frames=3)
    assert 0 < preset.ratio < 1 and preset.target == 0.8
    assert dataclasses.replace(preset.config, thresholds=1.5, thresholds_for=None) == config
    assert replay_statistics(model).sequence_count == 0
    disable_replay(model)


def test_calibration_errors():
    model, prompt = make(), torch.tensor([[3, 4, 5]])
    config = ReplayConfig(**CONFIG, thresholds=0.0)
    with pytest.raises(ValueError, match="^target must be above 0 and below 1, not 1$"):
        calibrate_replay(model, [prompt], 1, config=config)
    with pytest.raises(ValueError, match="^at least one prompt is needed$"):
        calibrate_replay(model, [], config=config)
    with pytest.raises(ValueError, match="^frames must be above warmup_frames = 1, not 1$"):
        calibrate_replay(model, [prompt], config=config, frames=1)
    with pytest.raises(ReplayError, match="^replay is not enabled on this LlamaForCausalLM"):
        calibrate_replay(model, [prompt])
    with pytest.raises(ReplayError, match="^no step could replay: the generations ended within the first 2 frames of"):
        calibrate_replay(model, [prompt], config=config, generate=lambda subject, prompt: None)
    with pytest.raises(ReplayError, match="is no replay preset"):
        ReplayPreset.load(__file__)

"""The configuration validates itself and round-trips."""

import json
from dataclasses import replace

import pytest

from model.hf import ReplayConfig
from model.hf.decoder import check_version
from model.hf.errors import ReplayError

GOOD = {"thresholds": -4.0, "tokens_per_frame": 16, "stride": 17}


@pytest.mark.parametrize("config", [
    ReplayConfig(**GOOD),
    ReplayConfig(**{**GOOD, "thresholds": (float("inf"), float("-inf"), 0.5)}, separator_ids=(7,), prelude=3),
    ReplayConfig(variant="cosine", thresholds=0.25, tokens_per_frame=4, stride=4, separator_ids=(), groups="pairs",
                 guided=True, exclude_layers=(0, 2), warmup_frames=2, max_consecutive=1, thresholds_for="cosine")])
def test_round_trip_through_standard_json(config):
    text = config.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert ReplayConfig.from_json(text) == config


@pytest.mark.parametrize("changes,message", [
    ({"variant": "released"}, "variant 'released' takes the query before RoPE, and a registered attention function "
     "sees queries only after it; use 'paper', with thresholds calibrated for it"),
    ({"variant": "tas"}, "variant must be one of paper, cosine, change, not 'tas'"),
    ({"thresholds": float("nan")}, "thresholds must be a number, or one per layer, not nan"),
    ({"thresholds": ()}, "thresholds must be a number, or one per layer, not ()"),
    ({"variant": "cosine"}, "a cosine threshold must be in -1..1 or infinite, not -4.0"),
    ({"stride": 15}, "stride must be at least tokens_per_frame = 16, not 15"),
    ({"tokens_per_frame": 0}, "tokens_per_frame must be at least 1, not 0"),
    ({"prelude": 0}, "prelude must be None or at least 1, not 0"),
    ({"max_consecutive": 0}, "max_consecutive must be None or at least 1, not 0"),
    ({"groups": "pair"}, "groups must be one of rows, pairs, batch, not 'pair'"),
    ({"groups": "pairs"}, "groups='pairs' needs guided=True: the second half of the batch unconditional"),
    ({"exclude_layers": (-1,)}, "exclude_layers must be layer numbers from 0, not (-1,)"),
    ({"warmup_frames": 0}, "warmup_frames must be at least 1, frame 0 never replays, not 0"),
    ({"thresholds_for": "cosine"}, "the thresholds were calibrated for 'cosine', not for 'paper'; calibrate again, or "
     "set thresholds_for='paper' to use them all the same"),
    ({"stride": 16, "separator_ids": (5,)}, "1 separator_ids, but stride - tokens_per_frame = 16 - 16 = 0; the stride "
     "counts the separators, so it should be 17")])
def test_errors_name_the_value(changes, message):
    with pytest.raises(ValueError) as error:
        ReplayConfig(**{**GOOD, **changes})
    assert str(error.value) == message


def test_thresholds_of_one_variant_are_refused_for_another():
    calibrated = ReplayConfig(**{**GOOD, "thresholds": 0.5}, thresholds_for="paper")
    with pytest.raises(ValueError, match="calibrated for 'paper', not for 'cosine'"):
        replace(calibrated, variant="cosine")
    assert replace(calibrated, variant="cosine", thresholds_for="cosine").thresholds == 0.5


def test_thresholds_and_layers_must_fit_the_model():
    with pytest.raises(ValueError, match="^2 thresholds for 3 layers; give one, or one per layer$"):
        ReplayConfig(**{**GOOD, "thresholds": (1, 2)}).per_layer(3)
    with pytest.raises(ValueError, match="^exclude_layers must be below 3, the layer count, not \\(3,\\)$"):
        ReplayConfig(**GOOD, exclude_layers=(3,)).per_layer(3)


@pytest.mark.parametrize("text,message", [
    ('{"threshold": 1}', "a replay configuration has the keys"),
    ('{"thresholds": 1, "stride": 4}', "a replay configuration needs tokens_per_frame"),
    ("[]", "a replay configuration has the keys")])
def test_other_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        ReplayConfig.from_json(text)


@pytest.mark.parametrize("version", ["4.56.2", "5.25.0", "6.0"])
def test_other_versions_of_transformers_are_refused(version):
    with pytest.raises(ReplayError, match=f"^transformers {version} is outside the tested range 4.57 to 5.24; "):
        check_version(version)


@pytest.mark.parametrize("version", ["4.57.6", "5.0.0", "5.24.0.dev0"])
def test_versions_in_the_tested_range_pass(version):
    check_version(version)

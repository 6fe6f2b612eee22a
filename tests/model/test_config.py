"""Tests of model/config.py."""

import dataclasses

import pytest

from model.config import PRESETS, ModelConfig, Sampling


@pytest.mark.parametrize("name", PRESETS)
def test_json_round_trip(name: str) -> None:
    assert ModelConfig.from_json(PRESETS[name].to_json()) == PRESETS[name]


def test_paper_tokens_per_frame() -> None:
    config = PRESETS["fastcar-256"]
    assert config.layout.tokens_per_frame == 256
    assert config.separator_code == config.codebook


@pytest.mark.parametrize(("change", "message"), [
    ({"hidden": 100}, "hidden must be a positive multiple of 32, not 100"),
    ({"intermediate": 0}, "intermediate must be a positive multiple of 32, not 0"),
    ({"layers": 0}, "layers must be at least 1, not 0"),
    ({"heads": 3}, "heads must divide hidden = 64 into even widths, not 3"),
    ({"window": 16}, "window must be more than the stride 16, not 16: "
                     "the temporal attention score needs the key of the frame before"),
    ({"rope_theta": 1.0}, "rope_theta must be more than 1, not 1.0"),
    ({"rms_eps": float("nan")}, "rms_eps must be positive, not nan"),
])
def test_bad_sizes(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        dataclasses.replace(PRESETS["tiny"], **change)
    assert str(caught.value) == message


@pytest.mark.parametrize(("change", "message"), [
    ({"cfg_scale": -0.5}, "cfg_scale must be at least 0, not -0.5"),
    ({"temperature": float("nan")}, "temperature must be at least 0, not nan"),
    ({"top_k": 0}, "top_k must be at least 1, not 0"),
])
def test_bad_sampling(change: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Sampling(**change)
    assert str(caught.value) == message


def test_json_of_something_else() -> None:
    with pytest.raises(ValueError, match="not a model configuration: 'layout'"):
        ModelConfig.from_json("{}")
    with pytest.raises(ValueError):
        ModelConfig.from_json("not JSON")

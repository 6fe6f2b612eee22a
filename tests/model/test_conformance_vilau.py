"""Videos of the authors' generation code from tiny checkpoints: reproduced, and differences found."""

import json

import numpy as np
import pytest
import torch

from model.conformance import VectorError, check_file
from model.conformance_vilau import check_image, check_parts, check_run
from model.vilau.loader import load
from model.vilau.prompt import Tokenizer
from tests.model.vilau.folder import REFERENCE


@pytest.fixture(scope="module")
def opened():
    """Arrays, settings, model and tokenizer by name, opened once."""
    cache = {}

    def get(name):
        if name not in cache:
            path = REFERENCE / f"{name}_outputs.npz"
            if not path.is_file():
                pytest.skip(f"no reference vectors {path.name}")
            with np.load(path) as file:
                arrays = dict(file)
            model = load(REFERENCE / name)
            cache[name] = (arrays, json.loads(bytes(arrays["meta_json"])), model,
                           Tokenizer(REFERENCE / name / "llm", model.config.llm.vocab))
        return cache[name]

    return get


RUNS = [("vilau_tiny_16", "greedy_replay50"), ("vilau_tiny_16", "sampled_replay"),
        *(pytest.param("vilau_tiny_16", run, marks=pytest.mark.slow) for run in (
            "greedy_dense", "greedy_replay20", "greedy_replay80", "greedy_perlayer", "greedy_all", "sampled_dense")),
        *(pytest.param("vilau_tiny_256", run, marks=pytest.mark.slow) for run in (
            "greedy_dense", "greedy_replay50", "greedy_all", "sampled_replay"))]


@pytest.mark.parametrize("name, run", RUNS)
def test_codes_and_masks_are_identical_and_values_close(opened, name, run):
    if run.startswith("sampled") and not torch.__version__.startswith("2.13."):
        pytest.skip(f"the random stream of these runs is that of torch 2.13, not {torch.__version__}")
    arrays, meta, model, tokenizer = opened(name)
    result = check_run(name, run, meta, arrays, model, tokenizer)
    assert not result.failed, f"{result}"
    assert result.code_mismatches == 0 and result.mismatches == 0 and result.decisions == arrays[f"{run}/skip"].size


@pytest.mark.parametrize("name", ["vilau_tiny_16", "vilau_tiny_256"])
def test_image_tokenizer_projector_and_filter(opened, name):
    arrays, _, model, _ = opened(name)
    result = check_parts(name, arrays, model)
    assert not result.failed, f"{result}"


def test_one_image(opened):
    arrays, meta, model, tokenizer = opened("vilau_tiny_16")
    result = check_image("vilau_tiny_16", meta, arrays, model, tokenizer)
    assert not result.failed, f"{result}"


def test_differences_are_found(opened):
    arrays, meta, model, tokenizer = opened("vilau_tiny_16")
    changed = dict(arrays)
    changed["image_greedy/image_ids"] = arrays["image_greedy/image_ids"] ^ 1
    changed["encode/z_q"] = arrays["encode/z_q"] + np.float32(0.01)
    image = check_image("file", meta, changed, model, tokenizer)
    assert image.failed and image.code_mismatches == changed["image_greedy/image_ids"].size
    parts = check_parts("file", changed, model)
    assert parts.failed and parts.where == "encode/z_q" and parts.code_mismatches == 0


def test_outputs_without_their_checkpoint_are_refused(tmp_path):
    np.savez(tmp_path / "model_outputs.npz", **{"meta_json": np.zeros(2, np.uint8), "prompt/input_ids": np.zeros(2)})
    with pytest.raises(VectorError, match="the checkpoint folder model is not beside model_outputs.npz"):
        check_file(tmp_path / "model_outputs.npz")

"""Dumps: what is in them agrees with the integer model and with each other, and survives the disk."""

import json

import numpy as np
import pytest

from model import checkpoint, dump
from model.engine import quantised_weights
from model.gates import ChangeGate, Gate, TasGate, tas_replays
from model.integer import MxMatrix, mlp
from model.presets import fingerprint
from model.visual import VisualConfig, VisualTokenizer
from tests.model.small import PROMPTS, SEPARATED, random_model


def check(recorded: dump.Dump, transformer) -> None:
    """Outputs follow from inputs, weights and masks alone."""
    arrays, stride = recorded.arrays, transformer.config.layout.stride
    weights = quantised_weights(transformer)
    for step, layer in np.ndindex(arrays["computed"].shape[:2]):
        x = MxMatrix(arrays["input_codes"][step, layer], arrays["input_scales"][step, layer])
        computed = arrays["computed"][step, layer].astype(bool)
        expected = mlp(x, weights[layer]).y
        if not computed.all():
            expected = np.where(computed[:, None], expected, arrays["outputs"][step - stride, layer])
        assert np.array_equal(arrays["outputs"][step, layer], expected), f"step {step} layer {layer}"
    assert arrays["computed"][:stride].all()


@pytest.mark.parametrize("gate", [TasGate([0.0, 0.2]), ChangeGate(1.0)], ids=lambda gate: gate.name)
def test_outputs_follow_from_inputs_and_masks(gate: Gate, tmp_path):
    transformer = random_model(SEPARATED)
    recorded = dump.record(transformer, PROMPTS[:2], [1, 2], gate=gate, frames=3)
    recorded.save(tmp_path / "dump")
    loaded = dump.load_dump(tmp_path / "dump")
    assert loaded.manifest == recorded.manifest
    assert loaded.config == transformer.config
    assert loaded.manifest["fingerprint"] == fingerprint(transformer)
    assert all(np.array_equal(loaded.arrays[name], array) for name, array in recorded.arrays.items())
    arrays = loaded.arrays
    assert arrays["computed"].shape == (2 * 18 + 15, 2, 4) and arrays["codes"].shape == (2, 3, 16)
    assert 0.1 < loaded.manifest["replay_ratio_eligible"] == 1 - arrays["computed"][18:].mean() < 0.9
    check(loaded, transformer)


def test_masks_follow_from_scores_and_thresholds():
    transformer = random_model()
    recorded = dump.record(transformer, PROMPTS[:1], [1], gate=TasGate([0.0, 0.2]), frames=3)
    gate, arrays = recorded.manifest["gate"], recorded.arrays
    assert gate["source"] == "tas" and gate["thresholds"] == [0.0, 0.2]
    assert gate["thresholds_fixed"] == [0, 26214]
    for step in range(16, 47):
        assert arrays["eligible"][step]
        for layer in range(2):
            by_word = arrays["scores_fixed"][step, layer].sum(axis=1, dtype=np.int64) >= gate["thresholds_fixed"][layer]
            assert np.array_equal(by_word, tas_replays(arrays["scores"][step, layer], gate["thresholds"][layer]))
            assert np.array_equal(arrays["computed"][step, layer], ~by_word), f"step {step} layer {layer}"


def test_command(tmp_path, capsys):
    transformer = random_model()
    model = tmp_path / "model"
    checkpoint.save(model, transformer.config, transformer, VisualTokenizer(VisualConfig(codebook=32, width=8)))
    arguments = ["--prompt", PROMPTS[0], "--model", str(model), "--out", str(tmp_path / "out"), "--json"]
    assert dump.main([*arguments, "--threshold", "0.1"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["steps"], summary["layers"], summary["rows"]) == (31, 2, 2)
    assert 0 < summary["replay_ratio_eligible"] < 1
    check(dump.load_dump(tmp_path / "out"), transformer)
    assert dump.main(arguments) == 2
    assert "no calibrated thresholds" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert dump.main([*arguments[:4], "--out", str(tmp_path / "file"), "--gate", "dense"]) == 2
    assert "cannot write the dump" in capsys.readouterr().err
    assert dump.main(["--prompt", "a red moves", *arguments[2:]]) == 2
    assert "the grammar is" in capsys.readouterr().err


def test_bad_folders(tmp_path):
    with pytest.raises(dump.DumpError, match="holds no readable dump"):
        dump.load_dump(tmp_path)
    recorded = dump.record(random_model(), PROMPTS[:1], [1], gate=ChangeGate(0.0), frames=1)
    dump.Dump(manifest={**recorded.manifest, "format": 7}, arrays=recorded.arrays).save(tmp_path)
    with pytest.raises(dump.DumpError, match="has dump format 7, this program reads 1"):
        dump.load_dump(tmp_path)

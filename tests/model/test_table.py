"""The evidence table on a random model: every row is measured, kept, and not measured twice."""

import dataclasses
import json

import numpy as np
import pytest

from model import checkpoint, table, world
from model.config import PRESETS
from model.frames import FrameLayout
from model.presets import Curve, ReplayPresets, fingerprint
from model.visual import VisualConfig, VisualTokenizer
from tests.model.small import random_model

CONFIG = dataclasses.replace(PRESETS["tiny"], window=65,
                             layout=FrameLayout(prelude=16, tokens_per_frame=64, frames=2, stride=64))


@pytest.fixture
def model(tmp_path):
    """Folder of a random model of the world's frame size, with presets."""
    transformer = random_model(CONFIG)
    folder = tmp_path / "model"
    checkpoint.save(folder, transformer.config, transformer, VisualTokenizer(VisualConfig(codebook=32, width=8)))
    curves = (Curve(gate="tas", joint_pairs=False, points=((0.2, 0.5), (0.8, -0.5))),
              Curve(gate="change", joint_pairs=False, points=((0.2, 0.9), (0.8, 1.2))))
    ReplayPresets(fingerprint=fingerprint(transformer), curves=curves).save(folder)
    return folder


def test_rows_are_measured_once(model, tmp_path, capsys, monkeypatch):
    arguments = ["--model", str(model), "--out", str(tmp_path / "out"), "--videos", "3", "--batch", "2", "--json"]
    assert table.main([*arguments, "--row", "random 50%", "--row", "change 20%"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["rows"]) == ["dense", "change 20%", "random 50%"]
    dense, change, random = result["rows"].values()
    assert dense["psnr"] is None and dense["replay_ratio"] == 0 and dense["videos"] == 3
    assert change["threshold"] == 0.9 and change["psnr"] > 0
    assert random["replay_ratio_eligible"] == pytest.approx(0.5, abs=0.05)
    # 63 of the 127 steps fed belong to the second frame
    assert random["replay_ratio"] == pytest.approx(random["replay_ratio_eligible"] * 63 / 127)
    text = (tmp_path / "out" / table.TABLE).read_text()
    assert "| dense | 0.0% | 0.0% | same |" in text and "| random 50% |" in text

    calls = []
    render = table.render
    monkeypatch.setattr(table, "render", lambda *args, **options: calls.append(1) or render(*args, **options))
    assert table.main([*arguments, "--row", "random 50%", "--row", "random 20%"]) == 0
    assert len(calls) == 1, "only the new row is generated"
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert rows["random 50%"] == random and "random 20%" in rows
    assert table.main([*arguments, "--videos", "1", "--row", "dense"]) == 0, "other settings"
    assert list(json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]) == ["dense"]


def test_true_videos_are_right_and_move():
    """The measures on rendered truth, and on a copy that stands still."""
    prompts = table.held_out_prompts(6, seed=3)
    assert all(world.held_out(world.parse(prompt)) for prompt in prompts)
    truth = np.stack([world.render(world.parse(prompt), (10, 20), 5) for prompt in prompts])
    statistics = [{"row_steps_replayed": 6, "row_steps": 40, "row_steps_eligible": 20}]
    same = table.measure(truth, statistics, truth, prompts, None)
    assert (same.accuracy, same.psnr, same.replay_ratio, same.replay_ratio_eligible) == (1, None, 0.15, 0.3)
    assert same.motion_kept == pytest.approx(1, abs=0.05)
    still = table.measure(np.repeat(truth[:, :1], 5, axis=1), statistics, truth, prompts, None)
    assert (still.colour, still.shape, still.direction, still.accuracy, still.motion_kept) == (1, 1, 0, 0, 0)
    assert still.psnr < 30


def test_psnr():
    zeros = np.zeros((2, 4, 4, 3), np.uint8)
    assert table.psnr(zeros + np.uint8(255), zeros) == 0
    assert table.psnr(zeros + np.uint8(1), zeros) == pytest.approx(48.13, abs=0.01)
    assert table.psnr(zeros, zeros) is None


def test_missing_calibration_is_told(model, tmp_path, capsys):
    (model / "replay_presets.json").unlink()
    assert table.main(["--model", str(model), "--out", str(tmp_path / "out"), "--row", "tas 50%"]) == 3
    assert "no calibrated thresholds" in capsys.readouterr().err

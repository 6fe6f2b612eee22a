"""The benchmark counts what it claims to count, and fails when it should. Times of tiny models mean nothing here."""

import json

import numpy as np
import pytest

from model import bench
from model.hf import ReplayConfig
from model.hf.measure import MODES, random_llama, random_tokens, timed_run

TINY = {"hidden": 16, "intermediate": 32, "heads": 2}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(bench, "LLAMA_7B", TINY)
    monkeypatch.setattr(bench, "SMALL", TINY)
    monkeypatch.setattr(bench, "SMALL_LAYERS", 2)


def run(capsys, *options):
    code = bench.main(["--stride", "5", "--frames", "5", "--rounds", "1", "--json", *options])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def test_report_and_exit_code(tiny, capsys, monkeypatch):
    monkeypatch.setattr(bench, "JOINT_LIMIT", 1e6)
    monkeypatch.setattr(bench, "ALONE_LIMIT", 1e6)
    code, found, err = run(capsys)
    assert code == 0 and found["failures"] == [], err
    for item in found["layer"]:
        assert item["dense_calls"] == 20
        assert item["replay_ratio"] == 0.8, item
        if item["any_row_bound"] is None:
            assert item["replay_calls"] == round(20 * (1 - item["replay_ratio"]))
        else:
            assert item["any_row_bound"] == 1 - item["replay_ratio"] ** 8
    calls = found["model"]["mlp_calls"]
    assert calls["dense"] == calls["select"] == 40 > calls["replay"]
    monkeypatch.setattr(bench, "JOINT_LIMIT", 0.0)
    code, found, err = run(capsys)
    assert code == 1 and [text.split(":")[0] for text in found["failures"]] == ["one row", "8 rows, joint decision"]
    assert err.count("bench: missed: ") == 2


def test_calls_that_do_not_drop_are_a_failure(tiny, capsys, monkeypatch):
    monkeypatch.setattr(bench, "calibrated", lambda model, layers, ids, stride, groups: ReplayConfig(
        thresholds=float("inf"), tokens_per_frame=stride, stride=stride, separator_ids=(), groups=groups))
    code, found, _ = run(capsys)
    assert code == 1
    assert "one row: 20 MLP calls, dense makes 20" in found["failures"]
    assert "whole model: 40 MLP calls, dense makes 40" in found["failures"]


def test_the_baseline_replays_the_same_rows_and_evaluates_all():
    model, ids = random_llama(2, **TINY, positions=128), random_tokens(3, 20, seed=4)
    config = ReplayConfig(thresholds=0.0, tokens_per_frame=5, stride=5, separator_ids=())
    dense, replay, select = (timed_run(model, config, ids, mode) for mode in MODES)
    assert dense.calls == select.calls == 2 * 15 and dense.steps == 15
    np.testing.assert_allclose(replay.replay_ratio, select.replay_ratio, atol=0.05)
    assert 0 < replay.replay_ratio < 1 and 0 < replay.mlp_s < replay.step_s


@pytest.mark.parametrize("options", [["--frames", "1"], ["--rounds", "0"], ["--stride", "0"]])
def test_usage_errors(options, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(options)
    assert stop.value.code == 2
    assert "at least one token per frame, two frames and one round are needed" in capsys.readouterr().err

"""The plan of a study, and its results on disk."""

import dataclasses

import numpy as np
import pytest

from model.drift.plan import OTHER_SEED, Run, Settings, runs
from model.drift.store import Store, StoreError

SETTINGS = Settings(fingerprint="abc", engine="float", frames=8, prompts=5, seed=3, batch=2, forced=2, calibration=2)


def test_settings():
    assert SETTINGS.seeds == [3, 4, 5, 6, 7]
    assert [(part.start, part.stop) for part in SETTINGS.batches] == [(0, 2), (2, 4), (4, 5)]
    with pytest.raises(ValueError, match="frames must be at least 4, not 3"):
        dataclasses.replace(SETTINGS, frames=3)
    with pytest.raises(ValueError, match="forced must be at most the number of prompts 5, not 6"):
        dataclasses.replace(SETTINGS, forced=6)


def test_plan():
    names = [run.name for run in runs(["tas", "random"], [0, 0.5, 0.8], [None, 16], "float")]
    assert names == ["dense-other-seed", "dense-window-16", "tas-0.5", "tas-0.8", "tas-0.8-window-16", "random-0.5",
                     "random-0.8", "random-0.8-window-16"]
    assert len(set(names)) == len(names)
    assert [run.name for run in runs(["tas"], [0.5], [None, 16], "float")] == ["dense-other-seed", "tas-0.5"]
    assert Run(engine="float") in runs([], [0], [None], "integer")
    assert Run(seed_offset=OTHER_SEED).name == "dense-other-seed"


def test_results_come_back(tmp_path):
    store = Store(tmp_path, SETTINGS)
    assert not store.has("tas-0.5") and store.thresholds == {}
    store.save("tas-0.5", {"codes": np.arange(6).reshape(2, 3), "value": np.array(np.nan)})
    store.save_thresholds({"tas-0.5": {"ratio": 0.49, "threshold": -1.5}})
    again = Store(tmp_path, SETTINGS)
    assert again.has("tas-0.5") and again.load("tas-0.5")["codes"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert again.thresholds["tas-0.5"]["threshold"] == -1.5
    assert not list(tmp_path.rglob("*.partial"))


def test_other_settings_are_refused_with_both_values(tmp_path):
    Store(tmp_path, SETTINGS)
    with pytest.raises(StoreError, match=r"frames 8 there, 16 here; seed 3 there, 4 here"):
        Store(tmp_path, dataclasses.replace(SETTINGS, frames=16, seed=4))
    Store(tmp_path, SETTINGS)


def test_a_gate_that_is_set_otherwise_is_refused(tmp_path):
    Store(tmp_path, SETTINGS).claim("change", {"max_age": 0, "weights": (1.0, 2.0)})
    store = Store(tmp_path, SETTINGS)
    store.claim("tas", {"max_age": 4})
    store.claim("change", {"max_age": 0, "weights": (1.0, 2.0)})
    with pytest.raises(StoreError, match="a gate change with other settings .max_age 0 there, 8 here"):
        store.claim("change", {"max_age": 8, "weights": (1.0, 2.0)})


def test_a_damaged_result_is_told(tmp_path):
    store = Store(tmp_path, SETTINGS)
    (tmp_path / "runs" / "tas-0.5.npz").write_bytes(b"PK")
    with pytest.raises(StoreError, match="is missing or damaged"):
        store.load("tas-0.5")

"""Runs of the authors' code on their LLaMA: reproduced, and differences found."""

import numpy as np
import pytest

from model import conformance
from model.conformance_llm import check_llm
from tests.model.vilau.folder import REFERENCE

SLOW = pytest.mark.slow


def vectors(name):
    path = REFERENCE / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no reference vectors {path.name}")
    with np.load(path) as arrays:
        return dict(arrays)


@pytest.mark.parametrize("name, runs, decisions", [
    ("llm_tpf16", 7, 768), ("llm_tpf16_strict", 2, 192), ("llm_tpf16_leftpad", 3, 512),
    ("llm_tpf16_longprompt", 2, 192), ("llm_tpf16_ropescale2", 2, 256),
    pytest.param("llm_tpf256_hd128", 6, 3072, marks=SLOW),
    pytest.param("llm_full_width_unmodified", 3, 2304, marks=SLOW)])
def test_masks_are_identical_and_values_close(name, runs, decisions):
    results = check_llm(name, vectors(name))
    assert len(results) == runs and {result.decisions for result in results} == {decisions}
    for result in results:
        assert not result.failed, f"{result}"
        assert result.mismatches == 0 and result.largest_error <= 1e-4


@pytest.mark.parametrize("key, change, mismatches, where", [
    ("skip", lambda array: array ^ (np.arange(array.size).reshape(array.shape) == 100), 1, None),
    ("tas_code", lambda array: array + np.float32(2e-4), 0, "tas_code"),
    ("mlp_out", lambda array: np.where(np.arange(array.size).reshape(array.shape) == 9, np.nan, array), 0, "mlp_out"),
    ("prefill_hidden_final", lambda array: array * np.float32(1.001), 0, "prefill_hidden_final"),
    ("thresholds", lambda array: array + 0.5, None, None),
])
def test_differences_are_found(key, change, mismatches, where):
    arrays = vectors("llm_tpf16_ropescale2")
    arrays[f"run/replay50/{key}"] = change(arrays[f"run/replay50/{key}"])
    dense, replay = check_llm("file", arrays)
    assert dense.run == "dense" and not dense.failed
    assert replay.failed
    assert replay.mismatches == mismatches if mismatches is not None else replay.mismatches > 20
    assert where is None or replay.where == where


def test_missing_and_misshapen_arrays_are_named():
    arrays = vectors("llm_tpf16_ropescale2")
    with pytest.raises(ValueError, match="lacks an array or field: 'run/dense/skip'"):
        check_llm("file", {key: value for key, value in arrays.items() if key != "run/dense/skip"})
    arrays["run/dense/mlp_out"] = np.zeros((2, 3, 2, 64), np.float32)
    with pytest.raises(ValueError, match=r"run/dense/mlp_out has shape \[2, 3, 2, 64\], not \[2, 64, 2, 64\]"):
        check_llm("file", arrays)


def test_command_prints_runs_and_fails_on_a_mismatch(tmp_path, capsys):
    arrays = vectors("llm_tpf16_strict")
    np.savez(tmp_path / "mine.npz", **arrays)
    assert conformance.main([str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "mask mismatches" in table and "thr_below" in table and "2 runs, 0 mismatches, 0 failed" in table
    arrays["run/thr_below/skip"] = ~arrays["run/thr_below/skip"]
    np.savez(tmp_path / "mine.npz", **arrays)
    assert conformance.main([str(tmp_path), "--json"]) == 1
    assert '"run": "thr_below", "decisions": 192, "mismatches": 192' in capsys.readouterr().out

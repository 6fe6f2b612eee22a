"""The conformance command: what it finds, counts and refuses."""

import json

import numpy as np
import pytest

from model import conformance
from model.mx import dequantize, quantize


def save(path, values, expected, key="int8/a"):
    np.savez(path, **{"in/a": values.astype(np.float32), key: expected.astype(np.float32)})


@pytest.fixture
def vectors():
    values = np.random.default_rng(1).standard_normal((5, 32)).astype(np.float32)
    return values, dequantize(*quantize(values))


def test_agreement_exits_zero_and_other_files_are_left_alone(tmp_path, vectors, capsys):
    save(tmp_path / "mine.npz", *vectors)
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    assert conformance.main([str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["mismatches"] == 0
    assert report["sets"] == [
        {"file": "mine.npz", "set": "a", "format": "mxint8", "blocks": 5, "mismatches": 0, "first": ""}]


def test_one_wrong_value_exits_one_and_is_named(tmp_path, vectors, capsys):
    values, expected = vectors
    expected[2, 7] += 1
    save(tmp_path / "mine.npz", values, expected)
    assert conformance.main([str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "at [2, 7]: input" in out and "1 sets, 5 blocks, 0 runs, 1 mismatches" in out


def test_expected_nan_matches_only_nan(tmp_path, vectors):
    values, expected = vectors
    values[1, 0], expected[1] = np.nan, np.nan
    save(tmp_path / "mine.npz", values, expected)
    assert [r.mismatches for r in conformance.check_folder(tmp_path)] == [0]
    expected[1, 3] = 0
    save(tmp_path / "mine.npz", values, expected)
    assert [r.mismatches for r in conformance.check_folder(tmp_path)] == [1]


@pytest.mark.parametrize("make, message", [
    (lambda d: np.savez(d / "x.npz", weights=np.zeros(3)), "no vectors in"),
    (lambda d: np.savez(d / "x.npz", **{"in/a": np.zeros((0, 32)), "int8/a": np.zeros((0, 32))}), "no vectors in"),
    (lambda d: np.savez(d / "x.npz", **{"int8/a": np.zeros((1, 32))}), "add the array in/a"),
    (lambda d: save(d / "x.npz", np.zeros((2, 32)), np.zeros((1, 32))), r"int8/a has shape \(1, 32\)"),
    (lambda d: save(d / "x.npz", np.zeros((2, 31)), np.zeros((2, 31))), "multiple of 32"),
    (lambda d: (d / "x.npz").write_bytes(b"PK\x03\x04 cut short"), "cannot be checked"),
])
def test_nothing_to_check_or_broken_files_exit_two(tmp_path, capsys, make, message):
    make(tmp_path)
    assert conformance.main([str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("conformance: ")
    with pytest.raises(conformance.VectorError, match=message):
        conformance.check_folder(tmp_path)


def test_missing_folder_is_named(tmp_path, capsys):
    assert conformance.main([str(tmp_path / "none")]) == 2
    assert "none is not a folder" in capsys.readouterr().err

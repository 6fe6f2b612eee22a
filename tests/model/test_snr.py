"""The integer pipeline stays within 0.1 dB of exact arithmetic on the same operands."""

import json

import numpy as np
import pytest

from model import snr
from model.integer import MlpWeights, bf16_to_float, mlp

GAP_DB = 0.1


@pytest.fixture(scope="module")
def small() -> snr.Measurement:
    return snr.Measurement(snr.Shape(hidden=512, intermediate=1376, rows=16, seed=50))


def check(results: list[snr.Sqnr]) -> None:
    assert [r.inputs for r in results] == ["gaussian", "student-t(2)"]
    for result in results:
        assert abs(result.gap_db) <= GAP_DB, result
    gaussian, heavy = results
    assert 32 < gaussian.exact_db < 33.5, gaussian
    assert 29.5 < heavy.exact_db < 32, heavy


def test_gap_at_a_small_shape(small):
    check(small.sqnr())


@pytest.mark.slow
def test_gap_at_the_7b_shape():
    check(snr.Measurement(snr.Shape(rows=8)).sqnr())


def test_the_measured_pipeline_is_the_integer_mlp(small):
    result = mlp(small.x_mx, MlpWeights(small.gate.mx, small.up.mx, small.down.mx))
    assert (bf16_to_float(result.y) == small.integer).all()


def test_the_reference_is_the_float64_mlp_of_bf16_operands(small):
    gate, up, down = (np.concatenate(list(m._chunks())).astype(np.float64) for m in (small.gate, small.up, small.down))
    x = small.x.astype(np.float64)
    for values in (gate, x):
        assert not (values.astype(np.float32).view(np.uint32) & 0xFFFF).any(), "operands must be BF16 values"
    gated = x @ gate.T
    want = (gated / (1 + np.exp(-gated)) * (x @ up.T)) @ down.T
    assert np.allclose(small.reference, want, rtol=1e-9, atol=1e-12)


def test_each_step_keeps_its_stated_error(small):
    """The bounds of the table in docs/numerics.md."""
    steps = small.steps()
    for name, at_least in {"x to MXINT8": 31, "gate, up to MXINT8": 38, "down to MXINT8": 40, "hidden to MXINT8": 37,
                           "alignment of gate": 90, "alignment of up": 90, "16-bit gate mantissa": 95,
                           "sigmoid table": 80, "alignment of down": 90, "output to BF16": 55}.items():
        assert min(steps[name].values()) >= at_least, (name, steps[name])


def test_command_prints_both_figures_and_the_gap(capsys):
    assert snr.main(["--hidden", "64", "--intermediate", "96", "--rows", "2", "--steps", "--json"]) == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out.splitlines()[-1])
    assert report["hidden"] == 64 and len(report["sqnr"]) == 2 and "sigmoid table" in report["steps"]
    for row in report["sqnr"]:
        assert row["gap_db"] == row["exact_db"] - row["integer_db"]
    assert snr.main(["--hidden", "64", "--intermediate", "96", "--rows", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["inputs", "exact", "dB", "integer", "dB", "gap", "dB"]


@pytest.mark.parametrize("sizes, message", [
    ({"hidden": 33}, "hidden must be a positive multiple of 32, not 33"),
    ({"intermediate": 0}, "intermediate must be a positive multiple of 32, not 0"),
    ({"rows": 0}, "rows must be at least 1, not 0"),
])
def test_sizes_are_checked(sizes, message):
    with pytest.raises(ValueError, match=message):
        snr.Shape(**sizes)
    with pytest.raises(SystemExit):
        snr.main([f"--{name}={value}" for name, value in sizes.items()])

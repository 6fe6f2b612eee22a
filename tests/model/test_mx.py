"""MX formats: every rule of docs/numerics.md on chosen values, and the rest against the slow definition."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model import conformance
from model.mx import BLOCK, FORMATS, SCALE_NAN, dequantize, quantize
from tests.model import slow_mlp

VECTORS = Path(__file__).parents[3] / "shared" / "reference"
FORMAT_NAMES = sorted(FORMATS)
SMALLEST_FLOAT32 = 2.0**-149
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

blocks = st.lists(st.floats(width=32), min_size=BLOCK, max_size=BLOCK)
finite_blocks = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=BLOCK, max_size=BLOCK)


def block(*head: float, fill: float = 0.0) -> np.ndarray:
    """One block that starts with ``head``."""
    return np.array([*head] + [fill] * (BLOCK - len(head)))


def codes_of(*head: float, fmt: str = "mxint8") -> list[int]:
    codes, _ = quantize(block(*head), fmt)
    return codes[:len(head)].tolist()


def assert_slow_agrees(values: np.ndarray, fmt: str, where: str) -> None:
    codes, scales = quantize(values, fmt)
    for index, row in enumerate(values.reshape(-1, BLOCK).astype(np.float64).tolist()):
        want = slow_mlp.quantize_block(row, fmt)
        got = slow_mlp.Block(tuple(codes.reshape(-1, BLOCK)[index].tolist()), int(scales.reshape(-1)[index]))
        assert got == want, f"{where}: {fmt} block {index} of {row}"


# Chosen values

@pytest.mark.parametrize("fmt, emax", [("mxint8", 0), ("mxfp4", 2)])
@pytest.mark.parametrize("peak, power", [(1.0, 0), (1.999, 0), (2.0, 1), (-4.0, 2), (0.75, -1), (2.0**100, 100)])
def test_scale_is_floor_log2_of_the_peak(fmt, emax, peak, power):
    assert quantize(block(peak, peak / 3), fmt)[1].tolist() == [power - emax + 127]


def test_mxint8_ties_go_to_even():
    unit = 1 / 64
    assert codes_of(1.0, 0.5 * unit, 1.5 * unit, 2.5 * unit, -0.5 * unit, -1.5 * unit) == [64, 0, 2, 2, 0, -2]
    assert codes_of(1.0, np.nextafter(0.5 * unit, 1), np.nextafter(1.5 * unit, 0)) == [64, 1, 1]


def test_mxint8_clamps_and_never_gives_minus_128():
    assert codes_of(127.4 / 64, 127.5 / 64, np.nextafter(2.0, 0), -np.nextafter(2.0, 0)) == [127, 127, 127, -127]


def test_mxfp4_ties_go_to_the_even_mantissa():
    # Peak 4 gives scale 1; between 0.5 and 1 the tie goes to 1, between 1 and 1.5 to 1, between 3 and 4 to 4, 2.5 to 2.
    assert codes_of(4.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -0.25, -0.75, fmt="mxfp4") == [8, 0, 2, 2, 4, 4, 8, 0, -2]


def test_mxfp4_clamps_to_six_and_uses_only_e2m1_values():
    assert codes_of(7.9, 5.0, 5.1, -7.9, fmt="mxfp4") == [12, 8, 12, -12]
    codes, _ = quantize(np.random.default_rng(3).standard_normal((100, 32)), "mxfp4")
    assert set(np.abs(codes).ravel().tolist()) == {0, 1, 2, 3, 4, 6, 8, 12}


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_block(fmt, zero):
    codes, scales = quantize(np.full(BLOCK, zero), fmt)
    assert scales.tolist() == [0] and not codes.any()
    assert dequantize(codes, scales, fmt).tolist() == [0.0] * BLOCK


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_mark_their_block_only(fmt, bad):
    values = np.ones((2, 64))
    values[1, 40] = bad
    codes, scales = quantize(values, fmt)
    assert (scales == SCALE_NAN).tolist() == [[False, False], [False, True]]
    assert not codes[1, 32:].any() and codes[1, :32].all()
    assert np.isnan(dequantize(codes, scales, fmt)).tolist() == np.repeat(scales == SCALE_NAN, BLOCK, axis=1).tolist()


def test_mxint8_ends_of_the_scale_range():
    # float32 subnormals lie below the smallest scale, 2**-127: codes shrink to 0 while the scale byte stays 0.
    codes, scales = quantize(block(SMALLEST_FLOAT32, 2.0**-133, 2.0**-134, 3 * 2.0**-134))
    assert scales.tolist() == [0] and codes[:4].tolist() == [0, 1, 0, 2]
    assert quantize(block(2.0**-127))[1].tolist() == [0] and quantize(block(2.0**-126))[1].tolist() == [1]
    codes, scales = quantize(block(LARGEST_FLOAT32, -LARGEST_FLOAT32))
    assert scales.tolist() == [254] and codes[:2].tolist() == [127, -127]
    codes, scales = quantize(block(2.0**128, -1e300, 2.0**127))  # wider than float32: the largest scale, clamped
    assert scales.tolist() == [254] and codes[:3].tolist() == [127, -127, 64]


def test_mxfp4_ends_of_the_scale_range():
    codes, scales = quantize(block(2.0**-126, 2.0**-128, 2.0**-129), "mxfp4")  # floor(log2) - 2 would be -128
    assert scales.tolist() == [0] and codes[:3].tolist() == [4, 1, 0]
    codes, scales = quantize(block(LARGEST_FLOAT32), "mxfp4")
    assert scales.tolist() == [127 - 2 + 127] and codes[0] == 12


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@pytest.mark.parametrize("shape", [(32,), (3, 64), (2, 3, 96), (0, 64), (2, 0)])
def test_shapes_and_dtypes(fmt, shape):
    codes, scales = quantize(np.ones(shape, dtype=np.float32), fmt)
    assert codes.shape == shape and codes.dtype == np.int8
    assert scales.shape == (*shape[:-1], shape[-1] // BLOCK) and scales.dtype == np.uint8
    values = dequantize(codes, scales, fmt)
    assert values.shape == shape and values.dtype == np.float64 and (values == 1).all()


def test_errors_name_the_value_and_what_is_allowed():
    with pytest.raises(ValueError, match=r"multiple of 32, not shape \(2, 33\); pad it with zeros"):
        quantize(np.zeros((2, 33)))
    with pytest.raises(ValueError, match=r"multiple of 32, not shape \(\)"):
        quantize(np.float64(1))
    with pytest.raises(ValueError, match="unknown MX format 'mxint4'; known: mxint8, mxfp4"):
        quantize(np.zeros(32), "mxint4")
    with pytest.raises(ValueError, match="unknown MX format 'int8'"):
        dequantize(np.zeros(32, np.int8), np.zeros(1, np.uint8), "int8")
    with pytest.raises(ValueError, match=r"codes \(2, 64\) need a scale per 32 elements .* not \(2, 1\)"):
        dequantize(np.zeros((2, 64), np.int8), np.zeros((2, 1), np.uint8))


# Random values

@pytest.mark.parametrize("fmt", FORMAT_NAMES)
def test_random_blocks_equal_the_slow_definition(fmt):
    seed = 20
    rng = np.random.default_rng(seed)
    gauss = rng.standard_normal((40, BLOCK))
    spikes = gauss.copy()
    spikes[np.arange(40), rng.integers(0, BLOCK, 40)] = 1000.0
    ties = rng.integers(-255, 256, (40, BLOCK)) / 128
    wide = gauss * 2.0 ** rng.integers(-160, 128, (40, 1))
    for name, values in (("gauss", gauss), ("spikes", spikes), ("ties", ties), ("wide", wide)):
        assert_slow_agrees(values, fmt, f"seed {seed}, {name}")


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@given(values=blocks)
@example(values=[SMALLEST_FLOAT32] * BLOCK)
@example(values=[LARGEST_FLOAT32, *[-0.0] * (BLOCK - 1)])
def test_any_float32_block_equals_the_slow_definition(fmt, values):
    assert_slow_agrees(np.array(values, dtype=np.float32), fmt, "hypothesis")


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@given(values=finite_blocks)
def test_round_trip_error_is_half_a_step_or_the_clamp(fmt, values):
    x = np.array(values)
    codes, scales = quantize(x, fmt)
    spec = FORMATS[fmt]
    unit = 2.0 ** (int(scales[0]) - 127 - spec.fraction_bits)
    # MXFP4 steps are 1, 2 and 4 units; elements above the largest code are off by less than the next power of two.
    step = unit if fmt == "mxint8" else unit * np.where(np.abs(codes) < 4, 1, np.where(np.abs(codes) < 8, 2, 4))
    clamp = 2.0 ** (spec.fraction_bits + spec.emax + 1) * unit - spec.largest * unit
    error = np.abs(dequantize(codes, scales, fmt) - x)
    assert (error <= np.where(np.abs(codes) == spec.largest, np.maximum(step / 2, clamp), step / 2)).all()


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=BLOCK, max_size=BLOCK), power=st.integers(-40, 40))
def test_a_power_of_two_moves_only_the_scale(fmt, values, power):
    x = np.array(values)
    if 0 < np.abs(x).max() < 2.0**-60:
        x = x * 2.0**80  # keep the scale of both blocks inside the E8M0 range
    codes, scales = quantize(x, fmt)
    moved_codes, moved_scales = quantize(x * 2.0**power, fmt)
    assert (moved_codes == codes).all()
    assert int(moved_scales[0]) == (int(scales[0]) + power if codes.any() else 0)


@pytest.mark.parametrize("fmt", FORMAT_NAMES)
@given(values=finite_blocks)
def test_quantising_a_quantised_block_changes_no_value(fmt, values):
    codes, scales = quantize(np.array(values), fmt)
    once = dequantize(codes, scales, fmt)
    assert (dequantize(*quantize(once, fmt), fmt) == once).all()


@given(values=finite_blocks)
def test_sign_is_symmetric(values):
    codes, scales = quantize(np.array(values))
    negated, negated_scales = quantize(-np.array(values))
    assert (negated == -codes).all() and (negated_scales == scales).all()


# Vectors of another implementation

def test_reference_vectors_are_reproduced():
    if not (VECTORS / "mx_vectors.npz").exists():
        pytest.skip("the reference vectors (../shared/reference/mx_vectors.npz) are not on this machine")
    results = [r for r in conformance.check_folder(VECTORS) if r.file == "mx_vectors.npz"]
    assert sum(r.blocks for r in results) == 2 * (10 * 256 + 4023)
    assert {r.format for r in results} == set(FORMAT_NAMES)
    assert [r for r in results if r.mismatches] == []



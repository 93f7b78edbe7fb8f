"""Contract under test: every weight is within half a step of its code, and what cannot be held is
refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import testing
from numba_marlin.formats import QuantizedWeight, marlin
from numba_marlin.formats.floats import round_to
from numba_marlin.quantizers import dequantize, quantize, rtn

# not "large": a grid over both signs' extremes leaves float16
SPANNED = ("normal", "heavy_tailed", "tiny", "sparse", "zero")


def naive_quantize(w, group_size, bits=4, symmetric=True):
    """The rule, one group of one column at a time, in float64."""
    k, n = w.shape
    rows = k if group_size == -1 else group_size
    top, half = 2**bits - 1, 2 ** (bits - 1)
    codes, scales, zeros = (
        np.empty((k, n), np.uint8),
        np.empty((k // rows, n), np.float16),
        np.empty((k // rows, n), np.uint8),
    )
    for group in range(k // rows):
        for column in range(n):
            part = w[group * rows : (group + 1) * rows, column].astype(np.float64)
            low, high = min(part.min(), 0), max(part.max(), 0)
            span = 2 * np.abs(part).max() if symmetric else high - low
            scale = np.float16(max(span / top, 2.0**-24) if span else 1)
            zero = half if symmetric else min(max(round(-low / float(scale)), 0), top)
            scales[group, column], zeros[group, column] = scale, zero
            for row, value in enumerate(part):
                codes[group * rows + row, column] = min(
                    max(round(value / float(scale)) + zero, 0), top
                )
    return codes, scales, zeros


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@given(data=st.data(), problem=testing.problems(max_n=64, max_k=256))
@settings(max_examples=15, deadline=None)
def test_quantisation_follows_the_rule(data, problem, bits, symmetric):
    w = data.draw(
        testing.weights(problem.k, problem.n, testing.WEIGHT_KINDS if symmetric else SPANNED)
    )
    weight = quantize(w, bits, problem.group_size, symmetric)
    codes, scales, zeros = naive_quantize(w[:, :4], problem.group_size, bits, symmetric)
    assert np.array_equal(weight.scales[:, :4], scales)
    assert weight.zeros is None if symmetric else np.array_equal(weight.zeros[:, :4], zeros)
    # float32 quotients may round a tie the other way; they may not do anything else.
    differs = weight.codes[:, :4] != codes
    step = np.repeat(scales.astype(np.float64), problem.k // problem.groups, axis=0)
    quotient = w[:, :4].astype(np.float64) / step
    assert (np.abs(np.abs(quotient - np.floor(quotient)) - 0.5)[differs] < 1e-6).all()


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@given(data=st.data(), problem=testing.problems(max_n=128, max_k=512))
@settings(max_examples=10, deadline=None)
def test_no_weight_is_further_than_half_a_step(data, problem, bits, symmetric, scale_dtype):
    if scale_dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    w = data.draw(
        testing.weights(problem.k, problem.n, testing.WEIGHT_KINDS if symmetric else SPANNED)
    )
    weight = quantize(w, bits, problem.group_size, symmetric, scale_dtype)
    step = np.repeat(weight.scales.astype(np.float64), weight.rows_per_group, axis=0)
    error = np.abs(dequantize(weight, np.float64) - w)
    # Beyond half a step only because the scale was rounded, by 2**-11 (2**-8) of it or, subnormal,
    # by 2**-25, and the grid is that much too short over all of its length, or half of it where
    # zero is in the middle.
    steps = (2**bits - 1) * (0.5 if symmetric else 1)
    rounding = np.maximum(step * 2.0**-11, 2.0**-25) if scale_dtype == "float16" else step * 2.0**-8
    assert (error <= 0.5 * step * (1 + 2.0**-12) + steps * rounding).all()
    assert np.isfinite(dequantize(weight).astype(np.float64)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", "bfloat16"])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_dtype_and_strides_do_not_matter(dtype, order):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    # Exact in all of them.
    values = (np.random.default_rng(0).integers(-32, 33, (256, 64)) / 32).astype(np.float32)
    w = values.astype(dtype)
    if order == "F":
        w = np.asfortranarray(w)
    elif order == "strided":
        w = np.repeat(np.repeat(w, 2, axis=0), 3, axis=1)[::2, ::3]
    weight, expected = quantize(w, group_size=64), quantize(values, group_size=64)
    assert np.array_equal(weight.codes, expected.codes) and np.array_equal(
        weight.scales, expected.scales
    )


@pytest.mark.parametrize("group_size", [-1, 32, 64, 128])
def test_tiles_of_work_leave_no_seam(group_size, monkeypatch):
    w = testing.make_weights("normal", 256, 320, 0)
    whole = quantize(w, group_size=group_size)
    for tile_elements in (1, 8192, 64 * 100):
        monkeypatch.setattr(rtn, "_TILE_ELEMENTS", tile_elements)
        tiled = quantize(w, group_size=group_size)
        assert np.array_equal(tiled.codes, whole.codes) and np.array_equal(
            tiled.scales, whole.scales
        )


def test_grid_points_quantise_to_themselves():
    """Weights on a grid come back as its codes, if their group reaches out to 7.5 steps, which
    fixes the scale."""
    codes = testing.make_codes("uniform", 64, 64, 0)
    w = 0.25 * (codes.astype(np.float32) - 8)
    w[0], w[32] = 0.25 * 7.5, -0.25 * 7.5
    weight = quantize(np.clip(w, -0.25 * 7.5, 0.25 * 7.5), group_size=32)
    assert (weight.scales == 0.25).all()
    inner = (codes > 0) & (np.arange(64)[:, None] % 32 != 0)
    assert np.array_equal(weight.codes[inner], codes[inner])
    assert (weight.codes[0] == 15).all() and (weight.codes[32] == 0).all()


def test_all_zero_groups_get_scale_one_and_code_eight():
    w = np.zeros((64, 64), np.float32)
    w[40, 3] = -1
    weight = quantize(w, group_size=32)
    assert (weight.scales[0] == 1).all() and (weight.codes[:32] == 8).all()
    assert weight.scales[1, 3] == np.float16(2 / 15) and weight.scales[1, 4] == 1


def test_vanishing_scales_become_the_smallest():
    w = np.full((32, 64), 1e-12)
    w[:, 1] = 2.0**-23
    weight = quantize(w, group_size=32)
    assert (weight.scales == np.float16(2.0**-24)).all()
    assert (weight.codes[:, 0] == 8).all() and (weight.codes[:, 1] == 10).all()


def test_scales_whose_grid_overflows_are_refused():
    w = np.ones((64, 64))
    w[40, 5] = 7.5 * 8188
    assert quantize(w, group_size=32).scales.max() == 8188
    for value in (-61500.0, 1e300):
        w[40, 5] = value
        with pytest.raises(
            ValueError, match=r"group 1, column 5: max\|w\|=.* must be at most 8188"
        ):
            quantize(w, group_size=32)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_nonfinite_weight_is_named(value):
    w = np.ones((256, 64), np.float32)
    w[200, 1] = w[70, 9] = w[70, 4] = value
    with pytest.raises(ValueError, match=r"w\[70, 4\]=.*must be finite"):
        quantize(w, group_size=64)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(w=np.ones((64, 64), np.int32)), TypeError, "w.dtype=int32 must be one of"),
        (dict(w=np.ones((64, 64), complex)), TypeError, "w.dtype=complex128"),
        (dict(w=[["a"]]), TypeError, "w.dtype="),
        (dict(w=np.ones(64)), ValueError, r"w.shape=\(64,\) must have 2 dimensions"),
        (dict(w=np.ones((64, 0))), ValueError, r"w.shape=\(64, 0\) must not be empty"),
        (dict(w=np.ones((64, 64)), group_size=48), ValueError, "group_size=48 must divide k=64"),
        (dict(w=np.ones((64, 64)), group_size=-2), ValueError, "group_size=-2 must be positive"),
        (dict(w=np.ones((64, 64)), group_size=64, bits=3), ValueError, "bits=3"),
        (
            dict(w=np.ones((64, 64)), group_size=64, scale_dtype="float32"),
            ValueError,
            "scale_dtype='float32' must be one of",
        ),
    ],
)
def test_bad_input_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        quantize(**arguments)


def exact_weight(weight):
    zeros = (
        1 << (weight.bits - 1)
        if weight.symmetric
        else np.repeat(weight.zeros.astype(np.float64), weight.rows_per_group, axis=0)
    )
    return (weight.codes.astype(np.float64) - zeros) * np.repeat(
        weight.scales.astype(np.float64), weight.rows_per_group, axis=0
    )


@given(
    testing.quantized_weights(
        testing.problems(max_n=64, max_k=128, **testing.EVERY_SHAPE), **testing.EVERY_TYPE
    )
)
@settings(max_examples=60, deadline=None)
def test_dequantised_weights_are_rounded_once(weight):
    exact = exact_weight(weight)
    assert np.array_equal(dequantize(weight, np.float64), exact)
    single = dequantize(weight, np.float32)
    assert np.array_equal(single, exact.astype(np.float32)) and (
        weight.zeros_kind == "float16" or np.array_equal(single, exact)
    )
    for dtype in ("float16", "bfloat16"):
        once = round_to(exact, dtype)
        assert np.array_equal(dequantize(weight, dtype), once)
        assert np.array_equal(dequantize(marlin.pack(weight), dtype), once)
    assert dequantize(weight).dtype.name == weight.scale_dtype


def test_zero_points_of_float16_are_subtracted_exactly():
    """15 - 2**-14 needs 18 bits: in float16 it would be 15, and in float32 the product with
    1023/1024 would be rounded twice."""
    zeros, scales = np.full((1, 2), 2.0**-14, np.float16), np.full((1, 2), 1 - 2.0**-11, np.float16)
    weight = QuantizedWeight(np.full((16, 2), 15, np.uint8), scales, zeros)
    assert (dequantize(weight, np.float64) == (15 - 2.0**-14) * (1 - 2.0**-11)).all()


def test_spanning_grids_hold_zero_and_reach_the_ends():
    # one side; zero is spanned too; both negative; nothing
    w = np.array([[0.0, 1, -6, 0], [15, 5, -18, 0]])
    weight = quantize(np.repeat(w, 8, axis=0), symmetric=False, group_size=-1)
    assert weight.scales[0].tolist() == [1, np.float16(1 / 3), np.float16(1.2), 1]
    assert weight.zeros[0].tolist() == [0, 0, 15, 0]
    assert weight.codes[[0, 8]].T.tolist() == [[0, 15], [3, 15], [10, 0], [0, 0]]


def test_spanning_grids_that_overflow_are_refused():
    w = np.ones((64, 64))
    w[40, 5], w[41, 5] = 65000, -65000
    # 130000 / 255 steps, zero in the middle
    weight = quantize(w, group_size=32, symmetric=False, bits=8)
    assert np.isfinite(dequantize(weight)).all()
    w[41, 5] = -65504 * 1.01
    with pytest.raises(
        ValueError, match=r"group 1, column 5: the grid of weights from -66159 to 65000 reaches"
    ):
        quantize(w, group_size=32, symmetric=False, bits=8)
    w[41, 5] = -1e300
    with pytest.raises(
        ValueError,
        match=r"group 1, column 5: max\(w, 0\) - min\(w, 0\)=1e\+300 .* must be at most 65504",
    ):
        quantize(w, group_size=32, symmetric=False)


def test_scales_of_bfloat16_reach_further():
    pytest.importorskip("ml_dtypes")
    weight = quantize(np.full((32, 64), 1e30), scale_dtype="bfloat16", group_size=32)
    assert weight.scale_dtype == "bfloat16" and (weight.codes >= 15).all()
    assert (
        quantize(np.full((32, 64), 1e-45), scale_dtype="bfloat16").scales.astype(float) == 2.0**-126
    ).all()


def test_dequantisation_subtracts_zero_points():
    zeros = np.array([[3, 0], [15, 8]], dtype=np.uint8)
    weight = QuantizedWeight(
        np.full((4, 2), 5, np.uint8), np.full((2, 2), 0.5, np.float16), zeros, group_size=2
    )
    assert dequantize(weight).tolist() == [[1, 2.5], [1, 2.5], [-5, -1.5], [-5, -1.5]]


def test_dequantise_refuses_other_dtypes_and_types():
    weight = quantize(np.ones((64, 64)), group_size=64)
    with pytest.raises(TypeError, match="dtype=int8"):
        dequantize(weight, np.int8)
    with pytest.raises(TypeError, match="weight is a ndarray"):
        dequantize(np.ones((64, 64)))

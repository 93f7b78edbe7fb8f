"""Contract under test: small floats are worth what ml_dtypes says, block-scaled weights are read
and dequantised exactly, and what does not fit is refused."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import testing
from numba_marlin.formats import QuantizedWeight, changes
from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.files import STORED, find_stored
from numba_marlin.formats.small_floats import BITS, decode, table
from numba_marlin.quantizers import dequantize
from tests.formats import layers

ml_dtypes = pytest.importorskip("ml_dtypes")

TYPES = {
    "e2m1": "float4_e2m1fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e8m0": "float8_e8m0fnu",
}


@pytest.mark.parametrize("name", TYPES)
def test_every_code_is_worth_what_ml_dtypes_says(name):
    if not hasattr(ml_dtypes, TYPES[name]):
        pytest.skip(f"this ml_dtypes has no {TYPES[name]}")
    codes = np.arange(1 << BITS[name], dtype=np.uint8)
    expected = codes.view(getattr(ml_dtypes, TYPES[name])).astype(np.float32)
    assert np.array_equal(decode(codes, name), expected, equal_nan=True)
    assert np.array_equal(
        np.signbit(table(name)[expected == 0]), np.signbit(expected[expected == 0])
    )


def test_a_number_format_that_is_not_there():
    with pytest.raises(ValueError, match="name='e3m2' must be one of e2m1, e4m3, e5m2, e8m0"):
        table("e3m2")


def nvfp4(k=64, n=12, factor=0.25, **fields):
    rng = np.random.default_rng(3)
    codes, scales = (
        rng.integers(0, 16, (k, n), dtype=np.uint8),
        rng.integers(0, 127, (k // 16, n), dtype=np.uint8),
    )
    return BlockWeight(codes, "e2m1", scales, "e4m3", (16, 1), factor, **fields)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_modelopt_nvfp4_dequantises_as_written_out(dtype):
    """From the bytes of the file, by ml_dtypes: low nibble first, weight_scale_2 multiplies."""
    weight = nvfp4(factor=float(np.float32(0.0123)))
    tensors = find_stored("modelopt-nvfp4").write(weight)
    nibbles = np.stack([tensors["weight"] & 15, tensors["weight"] >> 4], axis=2).reshape(12, 64)
    values = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    scales = np.repeat(
        tensors["weight_scale"].view(ml_dtypes.float8_e4m3fn).astype(np.float64), 16, axis=1
    )
    expected = (values * scales * np.float64(tensors["weight_scale_2"])).T
    from numba_marlin.formats.floats import round_to

    result = dequantize(find_stored("modelopt-nvfp4").read(tensors), dtype)
    assert result.dtype.name == dtype and np.array_equal(
        result.astype(np.float64), round_to(expected, dtype).astype(np.float64)
    )


def test_nvfp4_codes_times_scales_are_exact_in_float16():
    """e2m1 x e4m3 has at most 6 significant bits: what makes the format fit for tensor cores of 16
    bits."""
    products = table("e2m1").astype(np.float64)[:, None] * table("e4m3").astype(np.float64)[None]
    products = products[np.isfinite(products)]
    assert np.array_equal(products.astype(np.float16).astype(np.float64), products)


def test_blocks_of_fp8_are_cut_off_at_the_edges():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 127, (200, 300), dtype=np.uint8)
    scales = rng.uniform(0.5, 2, (3, 2)).astype(np.float32)
    tensors = {"weight": np.ascontiguousarray(codes.T), "weight_scale_inv": scales}
    expected = (
        codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
        * np.repeat(np.repeat(scales.T, 128, 0), 128, 1)[:200, :300]
    )
    for form, name in (("fp8-block", "weight_scale_inv"), ("fp8", "weight_scale")):
        weight = find_stored(form).read({"weight": tensors["weight"], name: scales})
        assert weight.block == (128, 128) and np.array_equal(
            dequantize(weight, np.float64), expected
        )


def test_scales_of_tensors_and_channels_may_be_written_in_several_shapes():
    form = find_stored("fp8")
    codes = np.full((6, 8), 0x38, np.uint8)  # 1.0
    for shape in ((), (1,), (1, 1)):
        assert (
            dequantize(
                form.read({"weight": codes, "weight_scale": np.full(shape, 0.5, np.float32)})
            )
            == 0.5
        ).all()
    for shape in ((6,), (6, 1)):
        weight = form.read(
            {"weight": codes, "weight_scale": np.arange(6, dtype=np.float32).reshape(shape)}
        )
        assert np.array_equal(dequantize(weight), np.broadcast_to(np.arange(6), (8, 6)))
    assert np.array_equal(
        dequantize(
            find_stored("fp8-block").read(
                find_stored("fp8-block").write(
                    form.read({"weight": codes, "weight_scale": np.float32(3)[None]})
                )
            )
        ),
        np.full((8, 6), 3),
    )
    with pytest.raises(ValueError, match="no place for scales of blocks of 8 x 1"):
        find_stored("fp8-block").losses(weight)


@given(st.floats(2.0**-60, 2.0**60, width=32))
@settings(max_examples=60, deadline=None)
def test_a_global_scale_is_turned_over_only_if_that_is_exact(factor):
    """ModelOpt multiplies by weight_scale_2, compressed-tensors divides by weight_global_scale."""
    weight = nvfp4(factor=factor)
    target = find_stored("nvfp4-pack-quantized")
    if np.frexp(factor)[0] == 0.5:
        assert target.losses(weight) == ()
        assert np.array_equal(
            dequantize(target.read(target.write(weight)), np.float64),
            dequantize(weight, np.float64),
        )
        return
    with pytest.raises(
        changes.LossError, match="would be stored as its reciprocal, rounded to float32"
    ):
        target.write(weight)
    there = dequantize(target.read(target.write(weight, allow_loss=True)), np.float64)
    assert np.allclose(there, dequantize(weight, np.float64), rtol=2.0**-23, atol=0)


def test_scales_of_activations_are_kept_or_the_loss_is_named():
    weight = nvfp4(input_scale=0.5)
    back = find_stored("nvfp4-pack-quantized").read(
        find_stored("nvfp4-pack-quantized").write(weight)
    )
    assert (back.input_scale, back.input_divides) == (2.0, True)
    mx = BlockWeight(weight.codes, "e2m1", weight.scales[::2], "e8m0", (32, 1), input_scale=0.5)
    with pytest.raises(changes.LossError, match="scale of activations 0.5 would be dropped"):
        find_stored("mxfp4-pack-quantized").write(mx)


def test_numbers_of_another_kind_must_be_quantised_anew():
    integers = testing.make_quantized("uniform", "ordinary", 64, 64, 32, 1)
    floats = {
        form.name: form.read(layers.random_layer(form, form.test_geometries[0], 0))
        for form in STORED.values()
        if form.holds == "BlockWeight"
    }
    for form in STORED.values():
        for weight in [integers] if form.holds == "BlockWeight" else floats.values():
            with pytest.raises(ValueError, match="quantise anew"):
                form.losses(weight)
    for name, weight in floats.items():
        assert find_stored(name).losses(weight) == ()
        with pytest.raises(ValueError, match="quantise anew"):
            find_stored(
                "fp8" if name != "fp8" and "fp8" not in name else "mxfp4-pack-quantized"
            ).losses(weight)
    with pytest.raises(
        TypeError, match="must be a QuantizedWeight, a BlockWeight, or one of them packed"
    ):
        dequantize("weight")
    assert isinstance(integers, QuantizedWeight)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(grid="e3m2"), ValueError, "grid='e3m2' must be one of"),
        (dict(block=(16, 2)), ValueError, r"scales.shape=\(4, 12\) must be \(4, 6\)"),
        (dict(block=(0, 1)), ValueError, r"block=\(0, 1\) must be between"),
        (dict(codes=np.zeros((64, 12), np.int8)), TypeError, "codes is int8"),
        (dict(codes=np.full((64, 12), 16, np.uint8)), ValueError, "codes must be below 16"),
        (
            dict(scales=np.full((4, 12), 0x7F, np.uint8)),
            ValueError,
            r"scales\[0, 0\]=127 must be finite",
        ),
        (dict(scale_grid=None), TypeError, "scales is uint8, must be a numpy.ndarray of float32"),
        (dict(global_scale=float("inf")), ValueError, "global_scale=inf must be a finite"),
        (dict(block=16), TypeError, r"block=16 must be \(rows, columns\), two integers"),
        (dict(block=(16.5, 1)), TypeError, "two integers"),
        (dict(global_scale="1"), TypeError, "global_scale is '1', must be a number"),
        (dict(global_scale=np.ones(1, np.float32)), TypeError, "global_scale is a ndarray"),
        (dict(input_scale=1e39), ValueError, "input_scale=1e"),
        (dict(global_scale=0.1), ValueError, "of float32 other than 0"),
        (dict(input_scale=0.0), ValueError, "input_scale=0.0"),
        (dict(codes=np.zeros((0, 12), np.uint8)), ValueError, "2 sizes above 0"),
    ],
)
def test_a_block_weight_that_exists_is_valid(change, error, message):
    with pytest.raises(error, match=message):
        replace(nvfp4(), **change)

"""Contract under test: block-scaled quantisers round to the nearest code of the scale they choose,
choose the scale they say, and refuse what has none."""

from dataclasses import replace

import numpy as np
import pytest

from numba_marlin.formats.operands import (
    BLOCK_FORMATS,
    BlockScaled,
    from_weight,
    pack_codes,
    to_weight,
    unpack_codes,
)
from numba_marlin.formats.small_floats import BITS, LARGEST, decode, encode, table
from numba_marlin.quantizers import dequantize
from numba_marlin.quantizers.operands import default_global_scale, quantize_blocks

ml_dtypes = pytest.importorskip("ml_dtypes")

TYPES = {
    "e2m1": "float4_e2m1fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "e8m0": "float8_e8m0fnu",
}


def hard_numbers(name):
    """Every number of the format, everything half way between two, the neighbours of that, and
    every half."""
    numbers = np.unique(table(name)[np.isfinite(table(name))]).astype(np.float64)
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    values = np.concatenate(
        [
            numbers.astype(np.float32),
            middles,
            np.nextafter(middles, np.float32(np.inf)),
            np.nextafter(middles, np.float32(-np.inf)),
            halves,
        ]
    )
    return values[np.isfinite(values)]


@pytest.mark.parametrize("name", TYPES)
def test_codes_are_those_that_ml_dtypes_rounds_to(name):
    if not hasattr(ml_dtypes, TYPES[name]):
        pytest.skip(f"this ml_dtypes has no {TYPES[name]}")
    values = hard_numbers(name)
    if name == "e8m0":  # ml_dtypes makes NaN of zero, and rounds subnormal float32 in two steps
        values = values[values >= 2.0**-126]
    with np.errstate(over="ignore"):
        expected = values.astype(getattr(ml_dtypes, TYPES[name])).view(np.uint8)
    assert np.array_equal(encode(values, name, saturate=name in ("e2m1", "e8m0")), expected)
    assert np.array_equal(
        encode(values.astype(np.float64), name, saturate=name in ("e2m1", "e8m0")), expected
    )


@pytest.mark.parametrize("name", TYPES)
def test_every_number_of_a_format_is_its_own_code(name):
    codes = np.arange(1 << BITS[name], dtype=np.uint8)
    codes = codes[np.isfinite(table(name))]
    assert np.array_equal(encode(table(name)[codes], name), codes)


@pytest.mark.parametrize(
    "name, largest, nan", [("e2m1", 0x7, 0x7), ("e4m3", 0x7E, 0x7F), ("e5m2", 0x7B, 0x7F)]
)
def test_what_is_too_large_is_cut_off_and_nan_is_what_ptx_makes_of_it(name, largest, nan):
    sign = 1 << BITS[name] - 1
    values = np.array([LARGEST[name] * 1.2, np.inf, -1e30, -np.inf, np.nan, -0.0], np.float32)
    assert encode(values, name).tolist() == [
        largest,
        largest,
        sign | largest,
        sign | largest,
        nan,
        sign,
    ]


def test_powers_of_two_know_no_sign_and_no_zero():
    assert encode(np.array([0, np.inf, -1, np.nan, 1e-45, 3e38]), "e8m0").tolist() == [
        0,
        254,
        255,
        255,
        0,
        254,
    ]
    with pytest.raises(ValueError, match="e8m0 has no code for what is too large"):
        encode(np.ones(1), "e8m0", saturate=False)
    with pytest.raises(TypeError, match="values.dtype=int64 must be float32 or float64"):
        encode(np.ones(1, int), "e2m1")


def some_numbers(rows=6, columns=192, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_t(3, (rows, columns)) * np.exp(rng.normal(0, 3, (rows, 1)))).astype(
        np.float32
    )


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("rounding", ("floor", "ceil"))
def test_no_other_code_of_the_same_scale_is_nearer(name, rounding):
    x = some_numbers()
    q = quantize_blocks(x, name, rounding=rounding)
    scale = (
        np.repeat(decode(q.scales, q.form.scale_grid).astype(np.float64), q.form.block, axis=1)
        * q.global_scale
    )
    values = table(q.form.element)[np.isfinite(table(q.form.element))].astype(np.float64)
    nearest = np.abs(values[None, None] * scale[:, :, None] - x[:, :, None]).min(axis=2)
    assert np.array_equal(dequantize(q, np.float64), decode(q.codes(), q.form.element) * scale)
    # float32 may take a tie for none
    assert (np.abs(dequantize(q, np.float64) - x) <= nearest + 2.0**-22 * np.abs(x)).all()


def test_nvfp4_scales_are_the_rounded_largest_numbers():
    x = some_numbers()
    q = quantize_blocks(x)
    amax = np.abs(x).reshape(6, -1, 16).max(axis=2).astype(np.float64)
    assert q.global_scale == np.float32(np.abs(x).max() / np.float32(6 * 448))
    assert (
        np.abs(decode(q.scales, "e4m3") * q.global_scale * 6 - amax)
        <= np.maximum(2.0**-4 * amax, 2.0**-10 * 6 * q.global_scale) * 1.000001
    ).all()
    assert decode(q.scales, "e4m3").max() == 448
    assert (
        quantize_blocks(np.zeros((2, 16), np.float32)).data == 0
    ).all() and default_global_scale(0.0) == 1.0


@pytest.mark.parametrize("name, emax", [("mxfp4", 2), ("mxfp8-e4m3", 8), ("mxfp8-e5m2", 15)])
def test_mx_scales_are_powers_by_both_rules(name, emax):
    x = some_numbers(seed=4)
    x[0, :32] = np.ldexp(LARGEST[BLOCK_FORMATS[name].element], 3)  # the largest number exactly
    x[1, :32] = 0
    amax = np.abs(x).reshape(6, -1, 32).max(axis=2).astype(np.float64)
    with np.errstate(divide="ignore"):
        floor = np.where(amax == 0, 0, np.maximum(np.floor(np.log2(amax)) - emax + 127, 0))
        ceil = np.where(
            amax == 0,
            0,
            np.maximum(np.ceil(np.log2(amax / LARGEST[BLOCK_FORMATS[name].element])) + 127, 0),
        )
    assert np.array_equal(quantize_blocks(x, name).scales, floor)
    q = quantize_blocks(x, name, rounding="ceil")
    assert np.array_equal(q.scales, ceil) and q.scales[0, 0] == 130
    assert (amax <= decode(q.scales, "e8m0").astype(np.float64) * LARGEST[q.form.element])[
        amax > 0
    ].all()


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_numbers_on_the_grid_come_back(name):
    form = BLOCK_FORMATS[name]
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 1 << form.bits, (4, 4 * form.block), dtype=np.uint8)
    codes[~np.isfinite(decode(codes, form.element))] = 0
    codes[:, :: form.block] = encode(np.full((4, 4), LARGEST[form.element]), form.element)
    scales = rng.integers(120, 126, (4, 4), dtype=np.uint8)
    given = BlockScaled(name, codes.shape, pack_codes(codes, form.bits), scales)
    again = quantize_blocks(
        dequantize(given), name, **({"global_scale": 1.0} if form.has_global_scale else {})
    )
    assert np.array_equal(again.scales, scales) and np.array_equal(
        dequantize(again, np.float64), dequantize(given, np.float64)
    )


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_both_orders_of_scales_and_weights_say_the_same(name):
    q = quantize_blocks(some_numbers(140, 96), name)
    tiled = q.with_scales("128x4")
    assert tiled.with_scales("128x4") is tiled and np.array_equal(
        tiled.with_scales("plain").scales, q.scales
    )
    assert np.array_equal(dequantize(tiled), dequantize(q)) and dequantize(q).dtype == np.float32
    weight = to_weight(tiled)
    assert np.array_equal(dequantize(weight), dequantize(q).T) and np.array_equal(
        from_weight(weight).data, q.data
    )
    assert np.array_equal(unpack_codes(pack_codes(q.codes(), q.form.bits), q.form.bits), q.codes())


def test_extremes_stay_finite():
    for name in BLOCK_FORMATS:
        for size in (1e-45, 1e-38, 1.0, 3.4e38):
            values = dequantize(
                quantize_blocks(np.full((1, 32), size, np.float32), name), np.float64
            )
            assert np.isfinite(values).all() and (values <= 1.15 * max(size, 2.0**-126)).all()
    q = quantize_blocks(
        np.array([[np.float32(6)] + 15 * [0] + 16 * [np.float32(2.0**-12)]]), global_scale=1.0
    )
    assert q.scales.tolist() == [[0x38, 0]] and (q.data[0, 8:] == 0).all(), (
        "a block below the smallest scale is zeros"
    )


GOOD = quantize_blocks(np.ones((4, 32), np.float32))


@pytest.mark.parametrize(
    "change, error, message",
    [
        (dict(format="fp4"), ValueError, "format='fp4' must be one of nvfp4"),
        (dict(shape=(4, 24)), ValueError, "a multiple of 16"),
        (dict(shape=(5, 32)), ValueError, r"data.shape=\(4, 16\) must be \(5, 16\)"),
        (dict(data=GOOD.data.view(np.int8)), TypeError, "data.dtype=int8 must be uint8"),
        (dict(scale_order="128x4"), ValueError, r"scales.shape=\(4, 2\) must be \(512,\)"),
        (dict(scale_order="4x128"), ValueError, "scale_order='4x128' must be one of"),
        (
            dict(shape=(4.5, 32)),
            TypeError,
            r"shape=\(4.5, 32\) must be \(rows, columns\), two integers",
        ),
        (dict(shape=(4, 32, 1)), TypeError, "two integers"),
        (dict(shape=4), TypeError, "two integers"),
        (dict(global_scale=None), TypeError, "global_scale is None, must be a number"),
        (dict(global_scale=1e39), ValueError, "must be a finite"),
        (dict(global_scale=10**400), ValueError, "global_scale=inf must be a finite"),
        (dict(format=["nvfp4"]), ValueError, "must be one of nvfp4"),
        (dict(global_scale=0.0), ValueError, "global_scale=0.0 must be a finite"),
        (dict(global_scale=0.1), ValueError, "of float32"),
        (dict(data=[1]), TypeError, "data is a list"),
    ],
)
def test_a_block_scaled_matrix_that_exists_is_valid(change, error, message):
    with pytest.raises(error, match=message):
        replace(GOOD, **change)


@pytest.mark.parametrize(
    "x, options, error, message",
    [
        (np.ones((2, 24), np.float32), {}, ValueError, "a multiple of 16"),
        (np.ones((2, 32), np.int32), {}, TypeError, "must be a float type"),
        (np.full((2, 32), np.nan, np.float32), {}, ValueError, r"x\[0, 0\]=nan must be finite"),
        (
            np.full((2, 32), 1e39),
            {},
            ValueError,
            r"x\[0, 0\]=1e\+39 must be finite, in float32 too",
        ),
        (
            np.where(np.arange(64).reshape(2, 32) == 37, np.inf, 1.0),
            {},
            ValueError,
            r"x\[1, 5\]=inf",
        ),
        (
            np.ones((2, 32), np.float32),
            {"global_scale": "1"},
            TypeError,
            "global_scale is '1', must be a number",
        ),
        (
            np.ones((2, 32), np.float32),
            {"format": ["nvfp4"]},
            ValueError,
            r"format=\['nvfp4'\] must be one of",
        ),
        (np.ones((2, 32), np.float32), {"global_scale": 1e-45}, ValueError, "its inverse finite"),
        (np.ones((2, 32), np.float32), {"rounding": "up"}, ValueError, "rounding='up'"),
        (
            np.ones((2, 32), np.float32),
            {"format": "mxfp4", "global_scale": 2.0},
            ValueError,
            "must be None: mxfp4 has none",
        ),
    ],
)
def test_what_has_no_scale_is_refused(x, options, error, message):
    with pytest.raises(error, match=message):
        quantize_blocks(x, **options)


def test_nan_is_nan():
    nan = replace(GOOD, scales=np.array([[0x7F, 0x38]] * 4, np.uint8))
    assert np.array_equal(np.isnan(dequantize(nan)), np.arange(32)[None].repeat(4, 0) < 16)
    with pytest.raises(ValueError, match="must be finite"):
        to_weight(nan)


class OnADevice:
    """Has shape and dtype, and memory that NumPy cannot read."""

    def __init__(self, shape):
        self.shape, self.dtype = shape, "uint8"

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion to a host array is not allowed")


def test_arrays_on_a_device_are_brought_to_the_host_first():
    q = replace(GOOD, data=OnADevice(GOOD.data.shape), scales=OnADevice(GOOD.scales.shape))
    for read in (q.codes, q.plain_scales, lambda: q.with_scales("128x4"), lambda: dequantize(q)):
        with pytest.raises(
            TypeError, match="is a OnADevice that NumPy cannot read .*: bring it to the host"
        ):
            read()


def test_a_weight_of_another_kind_is_no_operand():
    with pytest.raises(ValueError, match="is none of nvfp4"):
        from_weight(replace(to_weight(GOOD), block=(32, 1), scales=to_weight(GOOD).scales[:1]))
    with pytest.raises(ValueError, match="global_scale=inf must be"):
        from_weight(replace(to_weight(GOOD), global_scale=2.0**-149, divides=True))
    for turn in (from_weight, to_weight):
        with pytest.raises(TypeError, match="is a ndarray, must be a Block"):
            turn(GOOD.data)

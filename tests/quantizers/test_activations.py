"""Contract under test: rows quantised to 8 bits are as near as the rules say, and say what they
are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numba_marlin as nm
from numba_marlin.formats.activations import LARGEST, QuantizedActivations, offsets_of
from numba_marlin.formats.floats import float_type
from numba_marlin.quantizers.activations import quantize_rows


def rows(seed, m, k, dtype="float16", scale=1.0):
    x = np.random.default_rng(seed).standard_normal((m, k)) * scale
    return x.astype(float_type(dtype))


RANDOM = st.builds(
    rows,
    st.integers(0, 2**32 - 1),
    st.integers(1, 4),
    st.sampled_from((32, 64, 96)),
    st.sampled_from(("float16", "bfloat16")),
    st.sampled_from((1e-6, 1e-3, 1.0, 1e3)),
)


@settings(max_examples=60, deadline=None)
@given(RANDOM, st.sampled_from((None, 16, 32)))
def test_int8_is_within_half_a_step(x, group_size):
    q = quantize_rows(x, "int8", group_size)
    error = np.abs(q.dequantized(np.float64) - x.astype(np.float64))
    assert (error <= (0.5 + 2.0**-16) * q.scale_rows()).all()
    assert q.codes.min() >= -127
    largest = np.abs(q.plain_codes().reshape(*q.scales.shape, -1)).max(-1)
    assert np.array_equal(largest, np.where(q.scales > 0, 127, 0))


@settings(max_examples=60, deadline=None)
@given(RANDOM, st.sampled_from((None, 16, 32)))
def test_fp8_is_within_half_a_unit_in_the_last_place(x, group_size):
    q = quantize_rows(x, "fp8", group_size)
    exact = np.abs(x.astype(np.float64))
    error = np.abs(q.dequantized(np.float64) - x.astype(np.float64))
    assert (
        error <= np.maximum(exact * 2.0**-4, q.scale_rows() * 2.0**-10) + exact * 2.0**-22
    ).all()
    largest = np.abs(q.values().reshape(*q.scales.shape, -1)).max(-1)
    assert np.array_equal(largest, np.where(q.scales > 0, LARGEST["fp8"], 0))


@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_zeros_stay_zeros_and_signs_stay(kind):
    x = np.zeros((2, 32), np.float16)
    x[1, 5], x[1, 6] = 3, -3
    q = quantize_rows(x, kind)
    assert q.scales[0] == 0 and not q.codes[0].any()
    assert np.array_equal(q.dequantized()[1, 5:7], [3, -3])


@pytest.mark.parametrize("dtype, least", (("float16", 2.0**-24), ("bfloat16", 2.0**-133)))
def test_the_smallest_numbers_have_a_scale(dtype, least):
    x = np.full((1, 16), least).astype(float_type(dtype))
    q = quantize_rows(x, "int8")
    assert (q.plain_codes() == 127).all()
    assert q.dequantized(np.float64) == pytest.approx(least, rel=0.01)


@pytest.mark.parametrize("bad", (np.nan, np.inf, -np.inf))
def test_what_is_not_finite_is_refused_with_its_place(bad):
    x = rows(1, 3, 32)
    x[2, 7] = bad
    with pytest.raises(ValueError, match=r"x\[2, 7\].*must be finite"):
        quantize_rows(x)


@pytest.mark.parametrize(
    "x, options, error, match",
    (
        (np.zeros((1, 16)), {}, TypeError, "x.dtype=float64 must be one of float16, bfloat16"),
        (np.zeros(16, np.float16), {}, ValueError, r"x.shape=\(16,\) must be \(m, k\)"),
        (np.zeros((1, 24), np.float16), {}, ValueError, "k=24 must be a positive multiple of 16"),
        (rows(1, 1, 64), {"group_size": 48}, ValueError, "group_size=48 .* divides k=64"),
        (rows(1, 1, 64), {"group_size": True}, TypeError, "group_size=True must be an int"),
        (rows(1, 1, 64), {"kind": "int4"}, ValueError, "kind='int4' must be one of int8, fp8"),
    ),
)
def test_wrong_arguments_name_the_rule(x, options, error, match):
    with pytest.raises(error, match=match):
        quantize_rows(x, **options)


def test_it_says_what_it_is():
    q = nm.quantize_activations(rows(2, 3, 64), "int8", group_size=32)
    assert isinstance(q, QuantizedActivations)
    assert (q.shape, q.codes.dtype, q.scales.shape, q.dtype) == (
        (3, 64),
        np.int8,
        (3, 2),
        "float16",
    )
    assert repr(q) == ("<QuantizedActivations 3 x 64 int8, groups of 32, of float16: 216 bytes>"), (
        repr(q)
    )


@pytest.mark.parametrize(
    "change, error, match",
    (
        ({"scales": np.ones(2, np.float32)}, ValueError, r"scales.shape=\(2,\) must be \(3,\)"),
        ({"codes": np.zeros((3, 64), np.uint8)}, TypeError, "codes.dtype=uint8 must be int8"),
        ({"dtype": "float32"}, ValueError, "dtype='float32' must be one of"),
    ),
)
def test_what_does_not_fit_together_is_refused(change, error, match):
    given = {"codes": np.zeros((3, 64), np.int8), "scales": np.ones(3, np.float32)}
    with pytest.raises(error, match=match):
        QuantizedActivations("int8", **(given | change))


# ---- offsets


@pytest.mark.parametrize("dtype, count, digits", (("float16", 1, 11), ("bfloat16", 2, 16)))
@pytest.mark.parametrize("k", (16, 144, 8192, 8208))
def test_offsets_are_those_of_the_formula(dtype, count, digits, k):
    """Each code is taken by itself, and added to the group that its k is of; ``count`` parts of so
    many bits together differ from the sum by half a unit of the last."""
    q = quantize_rows(rows(4, 3, k, dtype), "fp8")
    assert q.offsets.dtype == float_type(dtype) and q.offsets.flags.c_contiguous
    assert q.offsets.shape == (3, count, 128 if k > 8192 else 64)
    wanted = np.zeros((3, q.offsets.shape[2]))
    for i, column in enumerate(q.values().T):
        wanted[:, i // 128] += column * (7 if i % 2 else -8) / 512
    parts = q.offsets.astype(np.float64)
    assert (np.abs(parts.sum(1) - wanted) <= 2.0**-digits * np.abs(wanted)).all()
    # the first is the sum rounded; here no sum is so near to half way that float32 decides
    assert np.array_equal(q.offsets[:, 0], wanted.astype(float_type(dtype)))
    assert (np.abs(parts[:, 1:]) <= 2.0 ** (-digits // count) * np.abs(parts[:, :1])).all()
    assert not q.offsets[..., -(-k // 128) :].any()


@settings(max_examples=60, deadline=None)
@given(RANDOM)
def test_a_product_with_codes_is_corrected(x):
    """c at even and c - 15 at odd k, in units of 2**-9, and the offsets: the product with c - 8, as
    far as 11 bits (of bfloat16 twice 8) hold the correction."""
    q = quantize_rows(x, "fp8")
    codes = np.random.default_rng(x.shape).integers(0, 16, q.k)
    values, odd = q.values(), np.arange(q.k) % 2
    wrong = values @ ((codes - 15 * odd) / 512)
    parts = q.offsets.astype(np.float64).sum((1, 2))
    # of the sum, which is this little more than its parts; there is one group
    bound = 2.0 ** (-11 if x.dtype == np.float16 else -16) * 1.001 * np.abs(parts) + 1e-12
    assert (np.abs(wrong + parts - values @ ((codes - 8) / 512)) <= bound).all()


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_the_largest_offsets_are_finite(dtype):
    """448 at all even k and -448 at all odd."""
    found = offsets_of(np.tile([448.0, -448.0], 64)[None], dtype)
    assert found[0, :, 0].astype(float).sum() == -15 * 64 * 448 / 512


@pytest.mark.parametrize(
    "dtype, more, parts",
    (("float16", 2**16, [2.0**9]), ("bfloat16", 2**15 + 2**7, [2.0**9, 2.0**-3])),
)
def test_an_offset_is_a_float32_before_it_is_rounded_again(dtype, more, parts):
    """2**27 + more + 1, in units of 2**-18: without the 1, for which float32 has no bit, the last
    part is half way between two numbers of the type, and goes to the even one."""
    odd = 36 * 229376 + 7
    even, left = divmod(7 * odd - (2**27 + more + 1), 8)
    assert not left
    values = np.zeros((1, 128))
    values[0, :2] = np.array([even, odd]) / 512
    found = offsets_of(values, dtype)[0, :, 0].astype(float)
    assert np.array_equal(found, parts)


def test_no_offset_is_a_negative_zero():
    for dtype in ("float16", "bfloat16"):
        found = offsets_of(np.full((1, 128), -0.0), dtype)
        assert not found.view(np.uint16).any()


def test_rows_are_taken_with_their_offsets():
    q = quantize_rows(rows(5, 4, 32), "fp8")
    for taken in (slice(1, 3), np.array([3, 1])):
        some = q.rows(taken)
        assert np.array_equal(some.codes, q.codes[taken])
        assert np.array_equal(some.scales, q.scales[taken])
        assert np.array_equal(some.offsets, q.offsets[taken])
    assert quantize_rows(rows(5, 4, 32), "int8").rows(slice(1, 3)).offsets is None


@pytest.mark.parametrize("dtype, count", (("float16", 1), ("bfloat16", 2)))
def test_bytes_of_offsets_are_counted(dtype, count):
    plain, x = 3 * 64 + 4 * 3, rows(2, 3, 64, dtype)
    assert quantize_rows(x, "int8").nbytes == plain
    assert quantize_rows(x, "fp8").nbytes == plain + 3 * count * 64 * 2


@pytest.mark.parametrize(
    "change, error, match",
    (
        ({"offsets": None}, TypeError, "offsets=None must be .*QuantizedActivations.of_codes"),
        (
            {"offsets": np.zeros((3, 1, 1), np.float16)},
            ValueError,
            r"offsets.shape=\(3, 1, 1\) must be \(3, 1, 64\)",
        ),
        (
            {"offsets": np.zeros((3, 1, 64), np.float32)},
            TypeError,
            "offsets.dtype=float32 must be float16",
        ),
        ({"dtype": "bfloat16"}, ValueError, r"offsets.shape=.* must be \(3, 2, 64\)"),
        (
            {"dtype": "bfloat16", "offsets": np.zeros((3, 2, 64), np.float16)},
            TypeError,
            "offsets.dtype=float16 must be bfloat16",
        ),
        (
            {"kind": "int8", "codes": np.zeros((3, 64), np.int8)},
            ValueError,
            "must be None for kind='int8' with group_size=None",
        ),
        (
            {"group_size": 32, "scales": np.ones((3, 2), np.float32)},
            ValueError,
            "must be None for kind='fp8' with group_size=32",
        ),
    ),
)
def test_offsets_that_do_not_fit_are_refused(change, error, match):
    given = {
        "kind": "fp8",
        "codes": np.zeros((3, 64), np.uint8),
        "scales": np.ones(3, np.float32),
        "offsets": np.zeros((3, 1, 64), np.float16),
    }
    QuantizedActivations(**given)
    with pytest.raises(error, match=match):
        QuantizedActivations(**(given | change))


def test_offsets_of_a_library_that_names_its_types_otherwise():
    torch = pytest.importorskip("torch")
    q = quantize_rows(rows(6, 3, 32, "bfloat16"), "fp8")
    given = {"codes": torch.from_numpy(q.codes), "scales": torch.from_numpy(q.scales)}
    offsets = torch.zeros(q.offsets.shape, dtype=torch.bfloat16)
    QuantizedActivations("fp8", **given, dtype="bfloat16", offsets=offsets)
    with pytest.raises(TypeError, match="offsets.dtype=bfloat16 must be float16"):
        QuantizedActivations("fp8", **given, offsets=offsets[:, :1])


def test_sums_are_those_of_the_codes_in_any_order():
    q = quantize_rows(rows(3, 2, 96), "int8")
    assert np.array_equal(q.sums(), q.codes.astype(np.int64).sum(1, keepdims=True))
    assert np.array_equal(q.sums(32), q.plain_codes().astype(int).reshape(2, 3, 32).sum(2))

"""Contract under test: a QuantizedWeight that exists is valid; errors name the value and the
rule."""

import numpy as np
import pytest

from numba_marlin.formats import QuantizedWeight


def codes(k=64, n=8):
    return np.full((k, n), 8, dtype=np.uint8)


def scales(groups=1, n=8):
    return np.ones((groups, n), dtype=np.float16)


def with_value(array, index, value):
    array[index] = value
    return array


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (dict(codes=[[1]], scales=scales()), TypeError, "codes is a list"),
        (
            dict(codes=codes().astype(np.int8), scales=scales()),
            TypeError,
            "codes.dtype=int8 must be uint8",
        ),
        (
            dict(codes=codes()[0], scales=scales()),
            ValueError,
            r"codes.shape=\(8,\) must have 2 dimensions",
        ),
        (dict(codes=codes(0), scales=scales()), ValueError, "must not be empty"),
        (
            dict(codes=codes(), scales=scales(2)),
            ValueError,
            r"scales.shape=\(2, 8\) must be \(groups, n\)=\(1, 8\)",
        ),
        (
            dict(codes=codes(), scales=scales().astype(np.float32)),
            TypeError,
            "scales.dtype=float32 must be float16 or bfloat16",
        ),
        (
            dict(codes=codes(), scales=with_value(scales(), (0, 3), np.inf)),
            ValueError,
            r"scales\[0, 3\]=inf",
        ),
        (
            dict(codes=with_value(codes(), (5, 2), 16), scales=scales()),
            ValueError,
            r"codes\[5, 2\]=16 must be",
        ),
        (
            dict(codes=codes(), scales=scales(3), group_size=24),
            ValueError,
            "group_size=24 must divide k=64",
        ),
        (
            dict(codes=codes(), scales=scales(), group_size=0),
            ValueError,
            "group_size=0 must be positive",
        ),
        (
            dict(codes=codes(), scales=scales(), group_size=32.0),
            TypeError,
            "group_size=32.0 must be an integer",
        ),
        (
            dict(codes=codes(), scales=scales(), bits=5),
            ValueError,
            r"bits=5 must be one of \(2, 3, 4, 8\)",
        ),
        (
            dict(codes=codes(), scales=scales(), bits=True),
            ValueError,
            r"bits=True must be one of \(2, 3, 4, 8\)",
        ),
        (dict(codes=codes(), scales=scales(), zeros=codes(2)), ValueError, r"zeros.shape=\(2, 8\)"),
        (dict(codes=codes(), scales=scales(), zeros=codes(1) + 8), ValueError, r"zeros\[0, 0\]=16"),
        (
            dict(codes=codes(), scales=scales(), zeros=scales().astype(np.float32)),
            TypeError,
            "zeros.dtype=float32 must be uint8 or float16",
        ),
        (
            dict(codes=codes(), scales=scales(), zeros=with_value(scales(), (0, 5), np.nan)),
            ValueError,
            r"zeros\[0, 5\]=nan must be finite",
        ),
    ],
)
def test_invalid_weights_are_refused(fields, error, message):
    with pytest.raises(error, match=message):
        QuantizedWeight(**fields)


def test_one_group_over_k_has_one_spelling():
    weight = QuantizedWeight(codes(), scales(), group_size=64)
    assert weight.group_size == -1 and weight.per_column and weight.rows_per_group == 64
    assert QuantizedWeight(codes(), scales(), group_size=128).group_size == -1, (
        "a group that reaches over all of k is all of k"
    )


def test_properties():
    weight = QuantizedWeight(codes(), scales(2), group_size=np.int64(32))
    assert (weight.k, weight.n, weight.groups, weight.group_size) == (64, 8, 2, 32)
    assert type(weight.group_size) is int
    assert (
        weight.symmetric
        and not weight.per_column
        and weight.zeros_kind is None
        and weight.scale_dtype == "float16"
    )
    for zeros, kind in ((codes(1), "integer"), (scales() - 8, "float16")):
        weight = QuantizedWeight(codes(), scales(), zeros=zeros)
        assert not weight.symmetric and weight.zeros_kind == kind


def test_bytes_are_codes_of_8_bits():
    assert QuantizedWeight(codes() + 247, scales(), codes(1) + 200, bits=8).codes.max() == 255


def test_scales_may_be_bfloat16():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    weight = QuantizedWeight(codes(), scales().astype(bfloat16))
    assert weight.scale_dtype == "bfloat16" and weight.scales.dtype == bfloat16
    with pytest.raises(ValueError, match=r"scales\[0, 3\]=inf must be finite"):
        QuantizedWeight(codes(), with_value(scales().astype(bfloat16), (0, 3), np.inf))


def test_unusual_arrays_are_copied_into_usual_ones():
    strided = np.full((128, 16), 3, dtype=np.uint8)[::2, ::2]
    misaligned = np.frombuffer(bytes(17), dtype=np.uint8)[1:].view(np.float16)[None, :]
    assert not misaligned.flags.aligned
    big_endian = scales().astype(">f2")
    weight = QuantizedWeight(strided, misaligned)
    assert weight.codes.flags.c_contiguous and np.array_equal(weight.codes, strided)
    assert weight.scales.flags.aligned and np.array_equal(weight.scales, misaligned)
    assert QuantizedWeight(codes(), big_endian).scales.dtype.isnative


def test_usual_arrays_are_not_copied():
    plain = codes()
    assert QuantizedWeight(plain, scales()).codes is plain

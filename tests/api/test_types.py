"""Contract under test: from float weights to a product, the public functions carry every type: 8
bits, zero points, bfloat16, a bias, any n % 8 == 0."""

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin import reference
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import round_to

pytest.importorskip("ml_dtypes")

K, N = 128, 72


def weight_of(bits, zeros, scale_dtype, group_size=32):
    w = np.random.default_rng(0).standard_normal((K, N))
    weight = nm.quantize(w, bits, group_size, zeros is None, scale_dtype=scale_dtype)
    return (
        weight
        if zeros != "float16"
        else QuantizedWeight(
            weight.codes, weight.scales, weight.zeros - np.float16(0.25), bits, group_size
        )
    )


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["reference", "emulator"])
@pytest.mark.parametrize(
    "dtype, bits, zeros, scale_dtype, bias",
    [
        # tests/kernels/test_decode has every pair of them
        pytest.param("float16", 8, None, "float16", False, marks=pytest.mark.thorough),
        pytest.param("float16", 4, "integer", "float16", True, marks=pytest.mark.thorough),
        pytest.param("bfloat16", 4, None, "bfloat16", True, marks=pytest.mark.thorough),
        pytest.param("bfloat16", 8, "integer", "float16", False, marks=pytest.mark.thorough),
        ("bfloat16", 4, "float16", "bfloat16", True),
    ],
)
def test_every_type_is_multiplied(dtype, bits, zeros, scale_dtype, bias, backend):
    weight = weight_of(bits, zeros, scale_dtype)
    packed = nm.pack(weight)
    x = round_to(np.random.default_rng(1).standard_normal((3, K)), dtype)
    addend = round_to(np.random.default_rng(2).standard_normal(N), dtype) if bias else None
    y, info = nm.matmul(x, packed, backend, bias=addend, return_info=True)
    assert y.shape == (3, N) and y.dtype.name == dtype
    problem = info.problem
    assert (problem.dtype, problem.bits, problem.zeros, problem.scale_dtype, problem.bias) == (
        dtype,
        bits,
        zeros,
        scale_dtype,
        bias,
    )
    report = reference.check(y, x, weight, addend, order="random")
    assert report.ok, report


def test_the_weight_comes_back():
    for bits, zeros, scale_dtype in ((8, "integer", "bfloat16"), (4, "float16", "float16")):
        weight = weight_of(bits, zeros, scale_dtype)
        back = nm.unpack(nm.pack(weight))
        assert np.array_equal(back.codes, weight.codes) and np.array_equal(back.zeros, weight.zeros)
        assert (
            np.array_equal(nm.dequantize(nm.pack(weight)), nm.dequantize(weight))
            and nm.dequantize(weight).dtype.name == scale_dtype
        )


def test_a_kernel_that_cannot_says_which_can():
    x = np.ones((1, K), np.float16)
    with pytest.raises(
        ValueError,
        match="kernel 'ampere' does not take bits=8; nor n=72, .*; kernels that do: .*general",
    ):
        nm.matmul(x, nm.pack(weight_of(8, None, "float16")), "emulator", kernel="ampere")


def test_explain_knows_types():
    explanation = nm.explain(4, N, K, 32, "H200", bits=8, zeros="integer")
    assert explanation.problem.bits == 8 and explanation.choice.kernel != "ampere"

"""Contract under test: C of any float type is added to a product of two block-scaled operands,
whatever the type of the result."""

import numpy as np
import pytest

import numba_marlin as nm
from numba_marlin.formats import small_floats
from numba_marlin.reference.operands import block_scaled_bounds
from tests.api.block_operands import operands


@pytest.mark.thorough
def test_a_source_in_float32_and_a_result_in_fp4():
    """alpha * A B^T + beta * C, activated and quantised in one epilogue."""
    a, b = operands()
    c = np.random.default_rng(3).normal(size=(20, 32)).astype(np.float32)
    given = {"alpha": 1.5, "beta": 0.5, "c": c, "activation": "relu"}
    fp4 = {"out_format": "nvfp4", "out_global_scale": 0.01}
    d, info = nm.block_scaled_matmul(a, b, **given, **fp4, backend="emulator", return_info=True)
    expected, _ = block_scaled_bounds(a, b, **given)
    step = 0.01 * small_floats.decode(d.plain_scales(), "e4m3").repeat(16, axis=1)
    assert (np.abs(nm.dequantize(d) - expected) <= step + 1e-6).all() and step.any()
    assert info.problem.c_dtype == "float32" and "C of float32 is added" in str(info)
    again = nm.block_scaled_matmul(a, b, **given, out_format="float32", backend="emulator")
    assert again.dtype == np.float32 and np.allclose(again, expected, atol=1e-3)
    narrow = {**given, "c": c.astype(np.float16)}  # the same call, but for the type of C
    half = nm.block_scaled_matmul(a, b, **narrow, backend="emulator", return_info=True)[1]
    assert half.problem.c_dtype is None

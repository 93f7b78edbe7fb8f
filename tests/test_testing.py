"""Contract under test: the public strategies make what they promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import reference, testing
from numba_marlin.formats import marlin


@given(testing.problems(max_m=8, max_n=192, max_k=256))
@settings(deadline=None)
def test_problems_fit_the_layout_and_the_limits(problem):
    marlin.check_problem(problem.k, problem.n, problem.group_size)
    assert 1 <= problem.m <= 8 and problem.n <= 192 and problem.k <= 256
    assert (
        problem.groups * (problem.k if problem.group_size == -1 else problem.group_size)
        == problem.k
    )


@pytest.mark.parametrize("kind", testing.CODE_KINDS)
def test_codes_stay_on_the_grid(kind):
    codes = testing.make_codes(kind, 32, 64, 7)
    assert codes.dtype == np.uint8 and codes.shape == (32, 64) and codes.max() < 16


@pytest.mark.parametrize("kind", testing.SCALE_KINDS)
def test_scales_are_finite_and_of_their_kind(kind):
    scales = testing.make_scales(kind, 4, 64, 7).astype(np.float64)
    assert scales.shape == (4, 64) and np.isfinite(scales).all()
    if kind == "denormal":
        assert (0 < scales).all() and (scales < 2.0**-14).all()
    if kind == "power_of_two":
        assert (np.frexp(scales)[0] == 0.5).all()


@pytest.mark.parametrize("make", [testing.make_codes, testing.make_scales, testing.make_weights])
def test_unknown_kinds_are_refused_and_seeds_repeat(make):
    with pytest.raises(ValueError, match="kind='nope' must be one of"):
        make("nope", 16, 64, 0)
    kinds = {testing.make_codes: testing.CODE_KINDS, testing.make_scales: testing.SCALE_KINDS}
    for kind in kinds.get(make, testing.WEIGHT_KINDS):
        assert np.array_equal(make(kind, 16, 64, 5), make(kind, 16, 64, 5))


@pytest.mark.parametrize(
    ("m", "n", "k", "group_size"),
    [(1, 64, 16, -1), (1, 64, 8192, 128), (3, 128, 1024, -1), (65, 64, 128, 32)],
)
def test_exact_problems_use_every_part_of_k(m, n, k, group_size):
    problem = testing.exact_problem(m, n, k, group_size, seed=1)
    assert reference.is_exact_problem(problem.x, problem.weight)
    assert set(np.unique(problem.weight.codes)) == set(range(16))
    for first in range(0, k, 16):
        assert problem.x[:, first : first + 16].any(), (
            f"a kernel could leave out rows {first}..{first + 15}"
        )


def test_impossible_exactness_is_refused():
    with pytest.raises(ValueError, match="spread=16 is too large"):
        testing.exact_problem(1, 64, 16, 16, seed=0, spread=16)


@given(st.data())
@settings(max_examples=20, deadline=None)
def test_weights_come_in_several_dtypes_and_strides(data):
    w = data.draw(testing.weights(32, 64))
    assert w.shape == (32, 64) and w.dtype.kind == "f" and np.isfinite(w).all()


@pytest.mark.parametrize("zeros_kind", [None, "integer", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_exact_problems_of_other_types_use_every_part_of_k(dtype, bits, zeros_kind):
    pytest.importorskip("ml_dtypes")
    problem = testing.exact_problem(
        3,
        72,
        512,
        32,
        1,
        dtype=dtype,
        bits=bits,
        zeros_kind=zeros_kind,
        scale_dtype=dtype,
        bias=True,
    )
    weight = problem.weight
    assert (
        problem.x.dtype.name,
        problem.bias.dtype.name,
        problem.expected.dtype.name,
        weight.scale_dtype,
    ) == (dtype,) * 4
    assert (weight.bits, weight.zeros_kind, weight.n) == (bits, zeros_kind, 72)
    assert reference.is_exact_problem(problem.x, weight, np.float32, problem.bias)
    assert np.isfinite(problem.expected).all() and np.unique(problem.expected).size > 20
    for first in range(0, 512, 16):
        assert problem.x[:, first : first + 16].any(), (
            f"a kernel could leave out rows {first}..{first + 15}"
        )


@given(
    testing.quantized_weights(
        testing.problems(max_n=64, max_k=256, **testing.EVERY_SHAPE), **testing.EVERY_TYPE
    )
)
@settings(max_examples=20, deadline=None)
def test_weights_of_every_type_can_be_packed(weight):
    marlin.check_packable(weight)


def test_zero_points_are_of_their_kind():
    assert testing.make_zeros(None, 2, 64, 0) is None
    integers, floats = (
        testing.make_zeros(kind, 64, 64, 0, bits=8) for kind in ("integer", "float16")
    )
    assert integers.dtype == np.uint8 and integers.max() > 200
    assert floats.dtype == np.float16 and (floats % 1 == 0.5).any() and (floats < 0).any()
    with pytest.raises(ValueError, match="kind='half' must be one of"):
        testing.make_zeros("half", 2, 64, 0)

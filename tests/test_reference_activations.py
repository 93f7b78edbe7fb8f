"""Contract under test: the bits that W4A8 kernels must give are those of exact integer sums, scaled
in fp32, and near the float64 product."""

import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import quantizers, testing
from numba_marlin.emulator.tensor.tensor_sums import SMALL_FLOATS
from numba_marlin.emulator.tensor.wgmma_forms import FORMS
from numba_marlin.formats.activations import QuantizedActivations
from numba_marlin.formats.small_floats import encode
from numba_marlin.quantizers.activations import quantize_rows
from numba_marlin.reference import activations

ASYMMETRIC = {True: {}, False: {"symmetric": False}}


def operands(seed, m=3, n=16, k=128, group_size=32, symmetric=True):
    random = np.random.default_rng(seed)
    w = random.standard_normal((k, n)).astype(np.float32)
    weight = quantizers.quantize(w, group_size=group_size, **ASYMMETRIC[symmetric])
    return quantize_rows(random.standard_normal((m, k)).astype(np.float16)), weight


singles = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e6, max_value=1e6)


@settings(max_examples=300, deadline=None)
@given(singles, singles, singles)
def test_fma_rounds_once(a, b, c):
    found = activations.fma(*(np.array([each], np.float32) for each in (a, b, c)))[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = [
        found,
        np.nextafter(found, np.float32(np.inf)),
        np.nextafter(found, np.float32(-np.inf)),
    ]
    errors = [abs(Fraction(float(each)) - exact) for each in near]
    assert errors[0] == min(errors)
    if errors[0] in errors[1:]:  # a tie: the even one
        assert found.view(np.uint32) % 2 == 0


def test_fma_sees_what_a_double_rounding_loses():
    # 1 + 2**-24 is a tie, 2**-60 more is not
    a, b = np.float32([1 + 2.0**-12]), np.float32([2.0**-60])
    c = np.float32([1.0])
    tie = activations.fma(np.float32([2.0**-24]), np.float32([1.0]), c)
    assert tie == np.float32(1)
    above = activations.fma(np.float32([2.0**-12]), np.float32([2.0**-12 + 2.0**-35]), c)
    assert above == np.float32(1 + 2.0**-23)
    assert activations.fma(a, b, c) == c


@pytest.mark.parametrize("group_size", (32, 128, -1))
@pytest.mark.parametrize("symmetric", (True, False))
def test_zero_points_are_a_product_with_sums_of_x(symmetric, group_size):
    """The unsigned form: sum x code - zero sum x, in integers."""
    x, weight = operands(5, symmetric=symmetric, group_size=group_size)
    size = weight.rows_per_group
    values = x.plain_codes().astype(np.int64)
    unsigned = np.stack(
        [
            values[:, at : at + size] @ weight.codes[at : at + size].astype(np.int64)
            for at in range(0, x.k, size)
        ]
    )
    zeros = np.full((len(unsigned), 1), 8) if weight.zeros is None else weight.zeros.astype(int)
    taken = x.sums(group_size).T[:, :, None] * zeros[:, None, :]
    assert np.array_equal(activations.group_sums(x, weight), unsigned - taken)


@pytest.mark.parametrize("group_size", (32, -1))
@pytest.mark.parametrize("symmetric", (True, False))
def test_the_kernels_bits_are_near_the_float64_product(symmetric, group_size):
    x, weight = operands(7, symmetric=symmetric, group_size=group_size)
    bias = np.linspace(-2, 2, weight.n).astype(np.float16)
    exact = activations.matmul(x, weight, bias)
    bound = activations.error_bound(x, weight, bias)
    found = activations.kernel_product(x, weight, bias).astype(np.float64)
    assert (np.abs(found - exact) <= bound + 2.0**-11 * (np.abs(exact) + bound) + 2.0**-25).all()
    assert (bound < 1e-4).all()


def test_exact_problems_have_exact_bits():
    problem = testing.exact_problem(4, 64, 128, 32, seed=3)
    x = quantize_rows(problem.x)
    # powers of two as scales: nothing is rounded before the end
    x = type(x)(x.kind, x.codes, np.full(4, 2.0**-6, np.float32))
    exact = activations.matmul(x, problem.weight)
    assert (activations.kernel_product(x, problem.weight) == exact.astype(np.float16)).all()


@pytest.mark.parametrize("symmetric", (True, False))
def test_sums_of_fp8_are_exact(symmetric):
    x, weight = operands(2, symmetric=symmetric)
    x = quantize_rows(x.dequantized(), "fp8")
    zeros = np.full(weight.scales.shape, 8) if weight.zeros is None else weight.zeros
    values, sums = x.values(), activations.group_sums(x, weight)
    for g, row, column in ((0, 0, 0), (1, 2, 5), (3, 1, 15)):
        exact = sum(
            Fraction(values[row, k]) * (int(weight.codes[k, column]) - int(zeros[g, column]))
            for k in range(32 * g, 32 * g + 32)
        )
        assert Fraction(sums[g, row, column]) == exact


@pytest.mark.parametrize("group_size", (32, 128, -1))
def test_the_bound_of_fp8_holds_for_an_adder_that_keeps_thirteen_bits(group_size):
    """Additions of 32 products as the machine makes them, and its promotions in fp32, of the
    weights' bytes and of codes in turns; rounding without the tensor cores' part does not hold for
    numbers that are made to be cut off."""
    random, k = np.random.default_rng(3), 384
    w = random.standard_normal((k, 16)).astype(np.float32)
    weight = quantizers.quantize(w, group_size=group_size)
    codes = np.full((2, k), encode(np.float32([2.0**-6]), "e4m3")[0])
    codes[:, ::32] = encode(np.float32([448.0]), "e4m3")[0]
    x = QuantizedActivations.of_codes("fp8", codes, np.ones(2, np.float32))
    exact, bound = activations.matmul(x, weight), activations.error_bound(x, weight)
    odd, rounding = np.arange(k)[:, None] % 2, 2.0**-24 * 20 * np.abs(exact).max()
    lost = [
        np.abs(added_in_eights(x, weight, more) - exact) for more in (0 * odd, np.where(odd, -7, 8))
    ]
    assert all((each <= bound).all() and (each > rounding).any() for each in lost)
    assert (np.maximum(*lost) > 1e-3 * bound).any()


def added_in_eights(x, weight, more):
    """[m, n] as ``wgmma_fp8`` adds it up, by the adder of the PTX machine. more: what bytes are
    more than the weight, [k, 1]; it is taken off exactly."""
    kind, size = FORMS["f32", "e4m3", "e4m3"], weight.rows_per_group
    depth = min(size, activations.FP8_DEPTH)
    columns = encode((weight.codes.astype(np.float32) - 8 + more) * 2.0**-9, "e4m3").T
    columns = np.ascontiguousarray(np.pad(columns, ((0, 64 - weight.n), (0, 0))))
    rows = np.pad(x.plain_codes(), ((0, 8 - x.m), (0, 0)))
    total = np.zeros((64, 8), np.float32)
    for first in range(0, x.k, depth):
        sums = np.zeros((64, 8), np.float32)
        for at in range(first, min(first + depth, x.k), 32):
            a, b = columns[:, at : at + 32], rows[:, at : at + 32]
            sums = kind.multiply(
                np.ascontiguousarray(a), b.copy(), sums, False, False, SMALL_FLOATS
            )
        scales = np.pad(weight.scales[first // size].astype(np.float32), (0, 64 - weight.n))
        total = activations.fma(sums, np.broadcast_to(scales[:, None], sums.shape), total)
    scales = np.repeat(weight.scales.astype(np.float64), size, axis=0)
    return total.T[: x.m, : weight.n].astype(np.float64) * 2.0**9 - x.values() @ (more * scales)


def test_what_has_no_bits_is_refused():
    x, weight = operands(1)
    with pytest.raises(ValueError, match="group_size=32 of x must be None"):
        activations.kernel_product(quantize_rows(x.dequantized(), "int8", 32), weight)
    with pytest.raises(ValueError, match="with k=128"):
        activations.matmul(quantize_rows(x.dequantized()[:, :64]), weight)


@pytest.mark.parametrize("kind", ("int8", "fp8"))
def test_bounds_are_those_of_a_result_that_is_rounded_once(kind):
    _, weight = operands(3)
    x = quantize_rows(np.random.default_rng(4).standard_normal((3, 128)).astype(np.float16), kind)
    bias = np.linspace(-1, 1, 16).astype(np.float16)
    found = activations.bounds(x, weight, bias, depth=16, offsets=False)
    exact = activations.matmul(x, weight, bias)
    error = activations.error_bound(x, weight, bias, depth=16, offsets=False)
    assert np.array_equal(found.product, exact) and np.array_equal(found.accumulated, error)
    assert (found.rounded >= error + 2.0**-11 * np.abs(exact)).all()


def test_sums_are_not_all_in_memory_at_once():
    """Of 64 parts of k: a product of a layer's size would not fit."""
    x, weight = operands(5, m=256, n=128, k=1024, group_size=128)
    tracemalloc.start()
    activations.kernel_product(x, weight)
    activations.error_bound(x, weight, depth=16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * 256 * 128 * 8 / 2

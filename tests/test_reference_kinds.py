"""Contract under test: the bounds also hold, and only just forgive, with zero points, 8 bits,
bfloat16, a bias, and offsets taken from sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import reference, testing
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import round_to
from numba_marlin.quantizers import dequantize, quantize
from tests.reference_kernels import tensor_core_dot, truncate_to_24_bits, truncating_dot

pytest.importorskip("ml_dtypes")

DTYPES = ("float16", "bfloat16")
DOTS = (truncating_dot, tensor_core_dot)


def zeros_of(weight):
    """[groups, n], float64."""
    shape = weight.scales.shape
    return (
        np.full(shape, float(1 << (weight.bits - 1)))
        if weight.symmetric
        else weight.zeros.astype(np.float64)
    )


def by_weights(x, weight, dot):
    dtype = x.dtype.name
    per_row = [
        np.repeat(each, weight.rows_per_group, axis=0)
        for each in (zeros_of(weight), weight.scales.astype(np.float64))
    ]
    steps = round_to(weight.codes - per_row[0], dtype).astype(np.float64)
    rounded = round_to(steps * round_to(per_row[1], dtype).astype(np.float64), dtype)
    return dot(x.astype(np.float64), rounded.astype(np.float64))


def by_groups(x, weight, part_of):
    """Sums of groups, scaled and added up in fp32. part_of(x, codes, zeros) -> the sum of one
    group."""
    rows, total = weight.rows_per_group, 0
    zeros = zeros_of(weight)
    for group in range(weight.groups):
        part = slice(group * rows, (group + 1) * rows)
        partial = part_of(
            x[:, part].astype(np.float64), weight.codes[part].astype(np.float64), zeros[group]
        )
        total = truncate_to_24_bits(
            total + truncate_to_24_bits(partial * weight.scales[group].astype(np.float64))
        )
    return total


def by_sums(x, weight, dot):
    return by_groups(x, weight, lambda a, codes, zeros: dot(a, truncate_to_24_bits(codes - zeros)))


def by_offset(x, weight, dot, origin=0):
    def part_of(a, codes, zeros):
        all_of_a = dot(a, np.ones((a.shape[1], 1)))
        return truncate_to_24_bits(
            dot(a, codes - origin)
            - truncate_to_24_bits(all_of_a * truncate_to_24_bits(zeros - origin))
        )

    return by_groups(x, weight, part_of)


def by_one_accumulator(x, weight, dot):
    """The same with minus the zero points as more rows of k: one accumulator for both sums."""
    return by_groups(
        x,
        weight,
        lambda a, codes, zeros: dot(
            np.hstack([a, a]), np.vstack([codes, np.broadcast_to(-zeros, codes.shape)])
        ),
    )


def by_centred_offset(x, weight, dot):
    return by_offset(x, weight, dot, 1 << (weight.bits - 1))


KERNELS = {
    by_weights: "weights",
    by_sums: "sums",
    by_offset: "offset",
    by_one_accumulator: "offset",
    by_centred_offset: "centred",
}


def real_problem(dtype="float16", bits=4, zeros_kind="integer", group_size=64, seed=0, k=256):
    rng = np.random.default_rng(seed)
    weight = quantize(
        testing.make_weights("normal", k, 64, seed), bits, group_size, zeros_kind is None
    )
    if zeros_kind == "float16":
        moved = (weight.zeros + rng.uniform(-0.5, 0.5, weight.zeros.shape)).astype(np.float16)
        weight = QuantizedWeight(weight.codes, weight.scales, moved, bits, group_size)
    return (
        round_to(rng.standard_normal((4, k)), dtype),
        weight,
        round_to(rng.standard_normal(64), dtype),
    )


@pytest.mark.parametrize("group_size", [-1, 64])
@pytest.mark.parametrize("zeros_kind", [None, "integer", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_kernels_of_every_method_pass(dtype, bits, zeros_kind, group_size):
    x, weight, bias = real_problem(dtype, bits, zeros_kind, group_size)
    for kernel, method in KERNELS.items():
        for dot in DOTS:
            for activations, orders in ((x, reference.ORDERS), (np.abs(x), ("any",))):
                sums = truncate_to_24_bits(
                    kernel(activations, weight, dot) + bias.astype(np.float64)
                )
                for order in orders:
                    for out_dtype in (dtype, "float32"):
                        report = reference.check(
                            round_to(sums, out_dtype),
                            activations,
                            weight,
                            bias,
                            order=order,
                            method=method,
                        )
                        assert report.ok, (kernel.__name__, out_dtype, order, str(report))


@given(
    data=st.data(), problem=testing.problems(max_m=3, max_n=64, max_k=128, **testing.EVERY_SHAPE)
)
@settings(max_examples=40, deadline=None)
def test_correct_kernels_pass_on_any_finite_grid(data, problem):
    kinds = ("ordinary", "denormal", "signed", "power_of_two", "zero")
    weight = data.draw(testing.quantized_weights(st.just(problem), kinds, **testing.EVERY_TYPE))
    dtype = data.draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(data.draw(testing.seeds()))
    x = round_to(
        np.ldexp(rng.standard_normal((problem.m, problem.k)), data.draw(st.integers(-24, 12))),
        dtype,
    )
    for kernel, method in KERNELS.items():
        if (
            kernel is by_weights
            and not np.isfinite(dequantize(weight, dtype).astype(np.float64)).all()
        ):
            continue
        report = reference.check(
            round_to(kernel(x, weight, truncating_dot), dtype), x, weight, method=method
        )
        assert report.ok, (kernel.__name__, str(report))


def test_an_offset_taken_from_sums_needs_its_own_bound():
    """Codes 200 over zero points of 199: a product of ones is the difference of two sums that are
    hundreds of times larger."""
    weight = QuantizedWeight(
        np.full((1024, 64), 200, np.uint8),
        np.ones((1, 64), np.float16),
        np.full((1, 64), 199, np.uint8),
        8,
    )
    x = np.random.default_rng(0).uniform(0.5, 1, (4, 1024)).astype(np.float16)
    result = by_one_accumulator(x, weight, truncating_dot).astype(np.float32)
    assert reference.check(result, x, weight, method="offset").ok
    assert not reference.check(result, x, weight, method="sums").ok


def test_bounds_of_the_methods_are_in_order():
    x, weight, _ = real_problem()
    sums, centred, offset = (
        reference.bounds(x, weight, method=method).accumulated
        for method in ("sums", "centred", "offset")
    )
    assert (sums < centred).all() and (centred < offset).all()
    x, symmetric, _ = real_problem(zeros_kind=None)
    exact, split = (
        reference.bounds(x, symmetric, method=method).accumulated for method in ("sums", "centred")
    )
    # the same partial sums; an accumulator for two sums rounds twice as often
    np.testing.assert_allclose(2 * exact, split, rtol=1e-3)


@pytest.mark.parametrize("method", reference.METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_small_mistakes_fail(dtype, method):
    """A zero point one off, a missing bias, a k16 step left out."""
    x, weight, bias = real_problem(dtype, k=512)

    def verdict(sums):
        return reference.check(
            round_to(sums, dtype), x, weight, bias, order="random", method=method
        )

    right = reference.matmul(x, weight, bias)
    assert verdict(right).ok
    assert not verdict(reference.matmul(x, weight)).ok
    zeros = weight.zeros.copy()
    zeros[2, 9] += 1 if zeros[2, 9] < 15 else -1
    report = verdict(
        reference.matmul(x, QuantizedWeight(weight.codes, weight.scales, zeros, 4, 64), bias)
    )
    assert not report.ok and report.worst[1] == 9
    cut = x.copy()
    cut[:, 160:176] = 0
    assert not verdict(reference.matmul(cut, weight, bias)).ok


def test_weights_rounded_to_bfloat16_need_activations_of_bfloat16():
    x, weight, _ = real_problem("bfloat16", k=512)
    result = by_weights(x, weight, truncating_dot).astype(np.float32)
    assert reference.check(result, x, weight, method="weights").ok
    assert not reference.check(result, x.astype(np.float16), weight, method="weights").ok


def test_bias_is_added_and_bounded():
    x, weight, bias = real_problem()
    np.testing.assert_allclose(
        reference.matmul(x, weight, bias), reference.matmul(x, weight) + bias.astype(np.float64)
    )
    large = np.full(64, 30000, np.float16)  # its rounding in fp32 is far more than the product's
    result = truncate_to_24_bits(by_sums(x, weight, truncating_dot) + 30000.0).astype(np.float32)
    assert reference.check(result, x, weight, large, method="sums").ok
    assert (
        reference.error_bound(x, weight, large, out_dtype=np.float32)
        > reference.error_bound(x, weight, out_dtype=np.float32)
    ).all()


@given(
    testing.exact_problems(
        testing.problems(max_m=8, max_n=128, max_k=512, **testing.EVERY_SHAPE),
        dtypes=DTYPES,
        bias=(False, True),
        **testing.EVERY_TYPE,
    )
)
@settings(max_examples=40, deadline=None)
def test_exact_problems_are_exact_by_every_method(problem):
    bias = 0 if problem.bias is None else problem.bias.astype(np.float64)
    for kernel in KERNELS:
        result = round_to(kernel(problem.x, problem.weight, truncating_dot) + bias, problem.x.dtype)
        assert np.array_equal(result.astype(np.float64), problem.expected.astype(np.float64)), (
            kernel.__name__
        )


def test_problems_that_one_method_rounds_are_not_exact():
    x = np.ones((1, 16), np.float16)
    codes, scales = np.full((16, 64), 255, np.uint8), np.ones((1, 64), np.float16)
    assert reference.is_exact_problem(
        x, QuantizedWeight(codes, scales, np.zeros((1, 64), np.uint8), 8), np.float32
    )
    fine = QuantizedWeight(codes, scales, np.full((1, 64), 0.5, np.float16), 8)
    assert reference.is_exact_problem(x, fine, np.float32)
    assert not reference.is_exact_problem(round_to(x, "bfloat16"), fine, np.float32), (
        "254.5 has 9 bits"
    )
    assert not reference.is_exact_problem(
        x, QuantizedWeight(codes, scales, np.full((1, 64), 2.0**-13, np.float16), 8), np.float32
    ), "so has fp16 its limit"
    # the product is 1, but before offsets are taken off the sum is 2**24 + 1
    for k, exact in ((1 << 15, True), (1 << 17, False)):
        level = np.full((k, 64), 128, np.uint8)
        level[0] = 129
        assert (
            reference.is_exact_problem(
                np.ones((1, k), np.float16), QuantizedWeight(level, scales, bits=8)
            )
            is exact
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, q, b: reference.error_bound(x, q, method="best"),
            "method='best' must be one of",
        ),
        (
            lambda x, q, b: reference.matmul(x, q, b[1:]),
            r"bias.shape=\(63,\) must be \(n,\)=\(64,\)",
        ),
        (lambda x, q, b: reference.error_bound(x, q, b / np.float16(0)), "bias must be finite"),
        (
            lambda x, q, b: reference.error_bound(round_to(1e36 * x.astype(float), "bfloat16"), q),
            "no fp32 sum can overflow",
        ),
        (
            lambda x, q, b: reference.error_bound(x, q, out_dtype=np.int8),
            "out_dtype=int8 must be float16, bfloat16 or float32",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*real_problem())

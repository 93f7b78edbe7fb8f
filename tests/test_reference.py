"""Contract under test: correct kernels of every kind stay within the bounds, and small mistakes do
not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_marlin import reference, testing
from numba_marlin.formats import QuantizedWeight, marlin
from numba_marlin.quantizers import dequantize, quantize
from tests.reference_kernels import tensor_core_dot, truncate_to_24_bits, truncating_dot


def grouped_kernel(x, weight, dot=truncating_dot):
    """Multiplies by fp16(w)."""
    with np.errstate(over="ignore"):
        return dot(x.astype(np.float64), dequantize(weight).astype(np.float64)).astype(np.float16)


def promoting_kernel(x, weight, dot=truncating_dot):
    """Multiplies by integers and scales the sum of each group: what a per-column kernel does, for
    any groups."""
    rows, total = weight.rows_per_group, 0
    for group in range(weight.groups):
        part = slice(group * rows, (group + 1) * rows)
        partial = dot(x[:, part].astype(np.float64), weight.codes[part].astype(np.float64) - 8)
        total = truncate_to_24_bits(
            total + truncate_to_24_bits(partial * weight.scales[group].astype(np.float64))
        )
    with np.errstate(over="ignore"):
        return total.astype(np.float16)


def method_of(kernel):
    return "weights" if kernel is grouped_kernel else "sums"


def real_problem(m=8, n=64, k=512, group_size=128, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype(np.float16)
    return x, quantize(testing.make_weights("normal", k, n, seed), group_size=group_size)


def test_matmul_is_the_exact_product(monkeypatch):
    x, weight = real_problem()
    expected = x.astype(np.float64) @ dequantize(weight, np.float64)
    assert reference.matmul(x, weight).dtype == np.float64
    np.testing.assert_allclose(reference.matmul(x, weight), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        reference.matmul(x, marlin.pack(weight)), expected, rtol=1e-12, atol=1e-13
    )
    # Chunks that do not divide k or the groups.
    monkeypatch.setattr(reference.weights, "_CHUNK_ELEMENTS", 64 * 100)
    np.testing.assert_allclose(reference.matmul(x, weight), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dot", [truncating_dot, tensor_core_dot])
@pytest.mark.parametrize("group_size", [-1, 32, 128])
@pytest.mark.parametrize("kernel", [grouped_kernel, promoting_kernel])
def test_correct_kernels_pass(kernel, group_size, dot):
    x, weight = real_problem(group_size=group_size)
    # Of one sign, sums grow and truncation always errs to the same side: the worst case of
    # order="any".
    for activations, orders in ((x, reference.ORDERS), (np.abs(x), ("any",))):
        result = kernel(activations, weight, dot)
        for order in orders:
            report = reference.check(
                result, activations, weight, order=order, method=method_of(kernel)
            )
            assert report.ok, report
            assert 0 < report.max_ratio <= 1


def test_truncation_of_growing_sums_stays_in_bounds():
    """Nothing cancels and every term is lost in part: long sums of positive products, returned in
    fp32."""
    rng = np.random.default_rng(0)
    weight = QuantizedWeight(
        rng.integers(9, 16, (4096, 64), dtype=np.uint8), np.full((1, 64), 0.0123, np.float16)
    )
    x = rng.uniform(0.1, 3, (2, 4096)).astype(np.float16)
    for dot in (truncating_dot, tensor_core_dot):
        sums = dot(x.astype(np.float64), weight.codes.astype(np.float64) - 8)
        report = reference.check((sums * float(weight.scales[0, 0])).astype(np.float32), x, weight)
        assert report.ok and report.max_ratio > 0.01, report


def test_bound_is_no_looser_than_derived():
    """1.375 k roundings of 2**-23, besides those of weights and result: a looser bound would
    forgive mistakes."""
    x, weight = real_problem(group_size=-1)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(dequantize(weight, np.float64))
    accumulated = reference.bounds(x, weight).accumulated
    assert (accumulated > 1.375 * 512 * 2.0**-23 * magnitude).all()
    assert (accumulated < 1.4 * 512 * 2.0**-23 * magnitude).all()


@given(data=st.data(), problem=testing.problems(max_m=4, max_n=64, max_k=128))
@settings(max_examples=40, deadline=None)
def test_correct_kernels_pass_on_any_finite_grid(data, problem):
    kinds = ("ordinary", "denormal", "signed", "power_of_two", "zero")
    scales = data.draw(testing.scales(problem.groups, problem.n, kinds))
    weight = QuantizedWeight(
        data.draw(testing.codes(problem.k, problem.n)), scales, group_size=problem.group_size
    )
    exponent = data.draw(st.integers(-24, 12))
    rng = np.random.default_rng(data.draw(testing.seeds()))
    x = np.ldexp(rng.standard_normal((problem.m, problem.k)), exponent).astype(np.float16)
    for kernel in (grouped_kernel, promoting_kernel):
        report = reference.check(kernel(x, weight), x, weight, method=method_of(kernel))
        assert report.ok, (kernel.__name__, str(report))


def test_default_matches_the_kernels_semantics():
    for group_size in (-1, 128):
        x, weight = real_problem(group_size=group_size)
        explicit = reference.error_bound(
            x, weight, method="sums" if group_size == -1 else "weights"
        )
        assert np.array_equal(reference.error_bound(x, weight), explicit)


@pytest.mark.parametrize("group_size", [-1, 128])
def test_small_mistakes_fail(group_size):
    """What a mean tolerance forgives: one missing k16 step, one wrong code, two swapped columns,
    NaN."""
    x, weight = real_problem(group_size=group_size)
    right = grouped_kernel(x, weight, np.matmul)

    def verdict(result, order="random"):
        return reference.check(result, x, weight, order=order, method="weights")

    assert verdict(right).ok
    cut = x.copy()
    cut[:, 160:176] = 0
    assert not verdict(grouped_kernel(cut, weight, np.matmul), "any").ok
    codes = weight.codes.copy()
    codes[77, 5] ^= 8
    wrong = QuantizedWeight(codes, weight.scales, group_size=weight.group_size)
    report = verdict(grouped_kernel(x, wrong, np.matmul))
    assert not report.ok and report.worst[1] == 5
    assert not verdict(right[:, ::-1]).ok
    poisoned = right.copy()
    poisoned[3, 9] = np.nan
    report = verdict(poisoned)
    assert (
        not report.ok
        and report.failures == 1
        and report.worst == (3, 9)
        and report.max_ratio == np.inf
    )
    assert "1 of 512 out of bounds" in str(report)


def test_random_order_is_tighter():
    x, weight = real_problem(k=4096, n=64)
    tight, loose = (
        reference.bounds(x, weight, order=order).accumulated for order in ("random", "any")
    )
    assert (tight <= loose).all() and tight.mean() < loose.mean() / 2


def test_bound_of_a_float32_result_has_no_fp16_rounding():
    x, weight = real_problem(group_size=-1)
    half = reference.error_bound(x, weight)
    single = reference.error_bound(x, weight, out_dtype=np.float32)
    assert (single < half).all()
    assert reference.check(reference.matmul(x, weight).astype(np.float32), x, weight).ok


def overflow_problem(target):
    """One column whose exact product is ``target``: x holds target / 64, codes 9, scale 1 on 64
    rows."""
    weight = QuantizedWeight(np.full((64, 64), 9, np.uint8), np.ones((1, 64), np.float16))
    x = np.zeros((1, 64), np.float16)
    x[0, :2] = target / 2
    return x, weight


@pytest.mark.parametrize(
    ("target", "value", "ok"),
    [
        (70016.0, np.inf, True),
        (70016.0, 65504.0, False),
        (70016.0, -np.inf, False),
        (-70016.0, -np.inf, True),
        (65504.0, 65504.0, True),
        (60032.0, np.inf, False),
        (60032.0, 60032.0, True),
    ],
)
def test_overflow_is_judged(target, value, ok):
    x, weight = overflow_problem(target)
    assert reference.matmul(x, weight)[0, 0] == target
    assert reference.check(np.full((1, 64), value, np.float16), x, weight).ok is ok


def test_at_the_threshold_both_infinity_and_the_largest_number_pass():
    """fp32 sums near 65520 may fall to either side of where fp16 overflows."""
    weight = QuantizedWeight(np.full((64, 64), 9, np.uint8), np.ones((1, 64), np.float16))
    x = np.zeros((1, 64), np.float16)
    x[0, :2] = 32752, 32768
    assert reference.matmul(x, weight)[0, 0] == 65520
    for value in (np.inf, 65504):
        assert reference.check(np.full((1, 64), value, np.float16), x, weight).ok


def test_bound_counts_subnormal_outputs():
    """A result that rounds to zero is right when the product is below half of the smallest fp16."""
    weight = QuantizedWeight(np.full((16, 64), 9, np.uint8), np.full((1, 64), 2.0**-24, np.float16))
    nothing = np.zeros((1, 64), np.float16)
    for activation, ok in ((2.0**-6, True), (2.0**-4, False)):  # Products of 2**-26 and of 2**-24.
        assert reference.check(nothing, np.full((1, 16), activation, np.float16), weight).ok is ok


@given(testing.exact_problems(testing.problems(max_m=16, max_n=128, max_k=512)))
@settings(max_examples=15, deadline=None)
def test_exact_problems_are_exact_in_any_order(problem):
    assert reference.is_exact_problem(problem.x, problem.weight)
    for kernel in (grouped_kernel, promoting_kernel):
        assert np.array_equal(kernel(problem.x, problem.weight), problem.expected)
    x, w = problem.x.astype(np.float32), dequantize(problem.weight).astype(np.float32)
    assert np.array_equal((x[:, ::-1] @ w[::-1]).astype(np.float16), problem.expected)


def test_inexact_problems_are_recognised():
    x, weight = real_problem()
    assert not reference.is_exact_problem(x, weight)
    ones = QuantizedWeight(np.full((64, 64), 9, np.uint8), np.ones((1, 64), np.float16))
    integers = np.ones((1, 64), np.float16)
    assert reference.is_exact_problem(integers, ones)
    integers[0, 0] = 2.0**-11  # 63 + 2**-11 needs 17 bits: exact in fp32, not in fp16.
    assert not reference.is_exact_problem(integers, ones)
    assert reference.is_exact_problem(integers, ones, np.float32)
    integers[0, :2] = 2.0**-18, 2048  # 28 bits, which cancel in the sum but not on the way.
    integers[0, 2] = -2048
    assert not reference.is_exact_problem(integers, ones, np.float32)
    assert not reference.is_exact_problem(integers * np.float16(np.inf), ones)
    thirds = QuantizedWeight(ones.codes + np.uint8(2), np.full((1, 64), 1 / 3, np.float16))
    assert not reference.is_exact_problem(np.ones((1, 64), np.float16), thirds)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x, q: reference.matmul(x[:, 1:], q),
            ValueError,
            r"x.shape=\(8, 511\) must be \(m, k\) .*k=512",
        ),
        (lambda x, q: reference.matmul(x[:0], q), ValueError, "m > 0"),
        (
            lambda x, q: reference.matmul(x, x),
            TypeError,
            "must be a QuantizedWeight, a BlockWeight, or one of them packed",
        ),
        (lambda x, q: reference.error_bound(x / np.float16(0), q), ValueError, "x must be finite"),
        (lambda x, q: reference.error_bound(x, q, order="best"), ValueError, "order='best'"),
        (
            lambda x, q: reference.error_bound(x, q, out_dtype=np.float64),
            ValueError,
            "out_dtype=float64",
        ),
        (
            lambda x, q: reference.check(np.zeros((8, 63), np.float16), x, q),
            ValueError,
            r"actual.shape=\(8, 63\)",
        ),
        (lambda x, q: reference.check(np.zeros((8, 64)), x, q), TypeError, "actual.dtype=float64"),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(*real_problem())


def test_weights_beyond_fp16_have_no_bound():
    weight = QuantizedWeight(
        np.zeros((32, 64), np.uint8), np.full((2, 64), 9000, np.float16), group_size=16
    )
    with pytest.raises(ValueError, match=r"w\[0, 0\]=-72000 must be finite in float16"):
        reference.error_bound(np.ones((1, 32), np.float16), weight)

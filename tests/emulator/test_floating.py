"""float32 and float64 arithmetic against exact rationals: one rounding, in the mode asked for."""

from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.number_cases import floats, round32
from tests.emulator.ptx_cases import compute

NAN32 = 0x7FFFFFFF


def assert_same_bits(got, expected, *inputs):
    got, expected = (np.asarray(x, np.float32).view(np.uint32) for x in (got, expected))
    wrong = np.flatnonzero(got != expected)
    if wrong.size:
        i = wrong[0]
        where = ", ".join(repr(x[i]) for x in inputs)
        pytest.fail(
            f"{wrong.size} wrong, first: ({where}) gave {int(got[i]):#x}, not {int(expected[i]):#x}"
        )


def expected_single(formula, special, inputs, mode):
    """formula on Fractions where inputs are finite and the result is not 0, else numpy's answer,
    NaN canonical."""
    out = []
    for xs in zip(*inputs):
        if all(np.isfinite(x) for x in xs):
            exact = formula(*(Fraction(float(x)) for x in xs))
            if exact != 0:
                out.append(np.float32(round32(exact, mode)))
                continue
        with np.errstate(all="ignore"):
            value = np.float32(special(*(np.float64(x) for x in xs)))
            if mode == "rm" and special is not MULTIPLY and value == 0:
                value = zero_when_rounding_down(special, xs)
        out.append(np.uint32(NAN32).view(np.float32) if value != value else value)
    return np.array(out, np.float32)


def MULTIPLY(x, y):
    return x * y


def zero_when_rounding_down(formula, xs):
    """An exact zero sum is +0 only of two +0, else -0."""
    if len(xs) == 3:
        terms = [np.float64(xs[0]) * xs[1], xs[2]]
    else:
        terms = [xs[0], -xs[1] if formula(0.0, 1.0) < 0 else xs[1]]
    return np.float32(-0.0 if any(np.signbit(t) or t != 0 for t in terms) else 0.0)


def pairs(seed=0):
    a, b = (x.ravel() for x in np.meshgrid(floats(8, seed), floats(8, seed + 1)))
    near = floats(400, seed + 2)
    with np.errstate(all="ignore"):
        return np.concatenate([a, near]), np.concatenate(
            [b, np.nextafter(near, np.float32(0)) * np.float32(0.5)]
        )


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_add_sub_mul_round_once_in_every_mode(mode):
    a, b = pairs()
    for name, function in (("add", lambda x, y: x + y), ("mul", MULTIPLY)):
        expected = expected_single(function, function, (a, b), mode)
        assert_same_bits(
            compute(f"{name}.{mode}.f32 %d, %a, %b;", a, b, out=np.float32), expected, a, b
        )
    expected = expected_single(lambda x, y: x - y, lambda x, y: x - y, (a, b), mode)
    assert_same_bits(compute(f"sub.{mode}.f32 %d, %a, %b;", a, b, out=np.float32), expected, a, b)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma_rounds_once(mode):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(1500).astype(np.float32) for _ in range(2))
    # c close to -a*b, or so small or large that the sum lies just beside a tie of float32
    c = np.where(np.arange(1500) % 3 == 0, -(a * b), np.float32(2.0**-40) * (a + b)).astype(
        np.float32
    )
    a[:500] = (rng.integers(1 << 11, 1 << 12, 500) * 2 + 1).astype(np.float32)
    b[:500] = (rng.integers(1 << 11, 1 << 12, 500) * 2 + 1).astype(np.float32)
    c[:500] = np.float32(2.0**-60) * np.where(np.arange(500) % 2, 1, -1)
    x, y = pairs(7)
    a, b, c = np.concatenate([a, x]), np.concatenate([b, y]), np.concatenate([c, np.roll(x, 5)])
    expected = expected_single(
        lambda x, y, z: x * y + z, lambda x, y, z: x * y + z, (a, b, c), mode
    )
    assert_same_bits(
        compute(f"fma.{mode}.f32 %d, %a, %b, %c;", a, b, c, out=np.float32), expected, a, b, c
    )


def test_fma_differs_from_two_float64_roundings():
    """1 + 2^-11 + 2^-24 is a tie that 2^-60 tips upwards; a float64 sum would lose it and round to
    even, downwards."""
    a, b = np.float32([1 + 2**-12]), np.float32([1 + 2**-12])
    c = np.float32([2.0**-60])
    product = Fraction(float(a[0])) * Fraction(float(b[0]))
    assert np.float32(float(product) + float(c[0])) != round32(
        product + Fraction(float(c[0])), "rn"
    )
    got = compute("fma.rn.f32 %d, %a, %b, %c;", a, b, c, out=np.float32)
    assert got[0] == round32(product + Fraction(float(c[0])), "rn")


def test_subnormal_fma_rounds_once():
    rng = np.random.default_rng(8)
    a = np.ldexp(rng.integers(1 << 23, 1 << 24, 2000).astype(np.float32), -100)
    b = np.ldexp(rng.integers(1 << 23, 1 << 24, 2000).astype(np.float32), -95)
    c = np.ldexp(rng.integers(-100, 100, 2000).astype(np.float32), -149)
    # 2^-150 (1 - 2^-34) is just less than half a unit; beside 2^-127 a float64 sum would call it a
    # tie and round up
    a[0], b[0], c[0] = np.ldexp(np.float32([1 + 2**-17, 1 - 2**-17, 2**22 + 1]), [-75, -75, -149])
    expected = expected_single(lambda x, y, z: x * y + z, None, (a, b, c), "rn")
    assert expected[0] == c[0]
    assert_same_bits(
        compute("fma.rn.f32 %d, %a, %b, %c;", a, b, c, out=np.float32), expected, a, b, c
    )


def test_division_and_square_root_are_correctly_rounded():
    a, b = pairs(3)
    finite = np.isfinite(a) & np.isfinite(b) & (b != 0) & (a != 0)
    a, b = a[finite], b[finite]
    expected = expected_single(lambda x, y: x / y, None, (a, b), "rn")
    assert_same_bits(compute("div.rn.f32 %d, %a, %b;", a, b, out=np.float32), expected, a, b)
    assert_same_bits(
        compute("rcp.rn.f32 %d, %b;", a, b, out=np.float32),
        expected_single(lambda x, y: 1 / y, None, (a, b), "rn"),
        b,
    )
    positive = np.abs(a)
    root = compute("sqrt.rn.f32 %d, %a;", positive, out=np.float32)
    for x, r in zip(positive.tolist(), root.tolist()):
        low, high = (
            Fraction(float(np.nextafter(np.float32(r), np.float32(to)))) for to in (0, np.inf)
        )
        middle = Fraction(r)
        assert ((low + middle) / 2) ** 2 <= Fraction(x) <= ((middle + high) / 2) ** 2


def test_ftz_flushes_inputs_and_results_keeping_the_sign():
    tiny = np.array([1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000], np.uint32).view(np.float32)
    got = compute("add.ftz.f32 %d, %a, 0f80000000;", tiny, out=np.uint32)
    assert got.tolist() == [0, 0x80000000, 0, 0x80000000, 0x00800000]
    half = compute("mul.ftz.f32 %d, %a, 0f3F000000;", tiny, out=np.uint32)
    assert half.tolist() == [0, 0x80000000, 0, 0x80000000, 0]
    assert compute("mul.f32 %d, %a, 0f3F000000;", tiny[4:], out=np.uint32).tolist() == [0x00400000]


def test_sat_clamps_to_zero_and_one_and_turns_nan_into_zero():
    a = np.array([-1.0, 0.25, 2.0, np.nan, -0.0], np.float32)
    assert compute("add.sat.f32 %d, %a, 0f00000000;", a, out=np.float32).tolist() == [
        0.0,
        0.25,
        1.0,
        0.0,
        0.0,
    ]
    assert compute("cvt.sat.f32.f32 %d, %a;", a, out=np.uint32)[3] == 0


def test_min_max_prefer_numbers_and_order_zeros():
    nan, one = np.float32(np.nan), np.float32(1)
    a = np.array([nan, one, nan, -0.0, 0.0, 2], np.float32)
    b = np.array([one, nan, nan, 0.0, -0.0, 3], np.float32)
    one, z, m, two, three = 0x3F800000, 0, 0x80000000, 0x40000000, 0x40400000
    assert compute("min.f32 %d, %a, %b;", a, b, out=np.uint32).tolist() == [
        one,
        one,
        NAN32,
        m,
        m,
        two,
    ]
    assert compute("max.f32 %d, %a, %b;", a, b, out=np.uint32).tolist() == [
        one,
        one,
        NAN32,
        z,
        z,
        three,
    ]
    assert compute("min.NaN.f32 %d, %a, %b;", a, b, out=np.uint32).tolist() == [
        NAN32,
        NAN32,
        NAN32,
        m,
        m,
        two,
    ]


def test_neg_abs_touch_only_the_sign():
    a = floats(50)
    assert np.array_equal(
        compute("neg.f32 %d, %a;", a, out=np.uint32), a.view(np.uint32) ^ np.uint32(1 << 31)
    )
    assert np.array_equal(
        compute("abs.f32 %d, %a;", a, out=np.uint32), a.view(np.uint32) & np.uint32(0x7FFFFFFF)
    )


def test_float64_arithmetic_rounds_once():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(300) for _ in range(2))
    c = np.where(np.arange(300) % 2, -(a * b), rng.standard_normal(300))
    assert np.array_equal(compute("mul.rn.f64 %d, %a, %b;", a, b, out=np.float64), a * b)
    assert np.array_equal(compute("add.f64 %d, %a, %b;", a, b, out=np.float64), a + b)
    assert np.array_equal(compute("div.rn.f64 %d, %a, %b;", a, b, out=np.float64), a / b)
    exact = [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c)]
    assert compute("fma.rn.f64 %d, %a, %b, %c;", a, b, c, out=np.float64).tolist() == exact


def test_approximations_are_within_an_ulp_of_the_function():
    a = np.linspace(0.1, 8, 200).astype(np.float32)
    for name, function in (
        ("ex2", np.exp2),
        ("lg2", np.log2),
        ("sin", np.sin),
        ("cos", np.cos),
        ("tanh", np.tanh),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("rcp", lambda x: 1 / x),
        ("sqrt", np.sqrt),
    ):
        got = compute(
            f"{name}.approx.ftz.f32 %d, %a;" if name != "tanh" else "tanh.approx.f32 %d, %a;",
            a,
            out=np.float32,
        )
        np.testing.assert_allclose(got, function(a.astype(np.float64)), rtol=1.2e-7)


def test_the_gross_approximations_of_fp64_use_and_give_upper_halves():
    x = np.array([3.0, 1 / 3, -7.25, 1e308, np.inf, 0.0, -0.0, 5e-310, np.nextafter(1.0, 2)])
    high = np.uint64(0xFFFFFFFF00000000)
    with np.errstate(all="ignore"):
        for root, exact in (("rcp", lambda v: 1 / v), ("rsqrt", lambda v: 1 / np.sqrt(np.abs(v)))):
            given = np.abs(x) if root == "rsqrt" else x
            found = compute(f"{root}.approx.ftz.f64 %d, %a;", given, out=np.float64)
            normal = np.where(
                np.abs(given) < np.finfo(np.float64).tiny, np.copysign(0.0, given), given
            )
            assert not (found.view(np.uint64) & ~high).any()
            assert np.allclose(
                found,
                np.where(np.abs(exact(normal)) < np.finfo(np.float64).tiny, 0, exact(normal)),
                rtol=2**-19,
            )
    # the lower half of the operand is not looked at
    assert compute("rcp.approx.ftz.f64 %d, %a;", x[-1:], out=np.float64)[0] == 1

"""Contract under test: float64 in every rounding mode, and float32 quotients and roots in the
directed ones, against exact rationals; min and max with all their options."""

import math
from fractions import Fraction

import numpy as np
import pytest

from numba_marlin.emulator import PtxSyntaxError, UnknownInstruction
from tests.emulator.number_cases import floats, round32
from tests.emulator.ptx_cases import compute, launch, words

MODES = ("rn", "rz", "rm", "rp")
LARGEST, SMALLEST = math.ldexp(2 - 2**-52, 1023), 5e-324
CORNERS = [0.0, -0.0, 1.0, -1.0, SMALLEST, -SMALLEST, 2.0**-1022, LARGEST, -LARGEST, 1 + 2**-52]
SPECIAL = [math.inf, -math.inf, math.nan]


def is_rounded(got: float, exact: Fraction, mode: str) -> bool:
    """Does ``got`` lie where ``mode`` puts it, by definition: no float64 lies between it and
    ``exact``, and it is on the right side?"""
    towards_zero_is_down = exact > 0
    down = mode == "rm" or mode == "rz" and towards_zero_is_down
    if mode == "rn":
        if math.isinf(got):
            return abs(exact) >= Fraction(LARGEST) + Fraction(2) ** 970
        at = Fraction(got)
        beside = [Fraction(math.nextafter(got, to)) for to in (-1e308, 1e308) if abs(got) < LARGEST]
        odd = int(np.float64(got).view(np.int64)) & 1
        return all(
            abs(at - exact) < abs(other - exact)
            or abs(at - exact) == abs(other - exact)
            and not odd
            for other in beside
        )
    if down:
        if math.isinf(got):
            return exact < -Fraction(LARGEST)
        above = math.nextafter(got, math.inf)
        return Fraction(got) <= exact and (math.isinf(above) or exact < Fraction(above))
    if math.isinf(got):
        return exact > Fraction(LARGEST)
    below = math.nextafter(got, -math.inf)
    return Fraction(got) >= exact and (math.isinf(below) or exact > Fraction(below))


def doubles(seed: int, count: int = 60) -> np.ndarray:
    rng = np.random.default_rng(seed)
    drawn = np.ldexp(rng.standard_normal(count), rng.integers(-40, 40, count))
    wild = words(count, np.uint64, seed).view(np.float64)
    return np.concatenate([CORNERS, drawn, wild[np.isfinite(wild)]])


def triples(seed: int):
    a, b = doubles(seed), np.roll(doubles(seed + 1), 3)
    a, b = a[: min(a.size, b.size)], b[: min(a.size, b.size)]
    with np.errstate(all="ignore"):
        product = a * b
    c = np.where(np.arange(a.size) % 2, -product, np.roll(a, 1))
    return a, b, np.where(np.isfinite(c), c, 1.0)


FORMULAS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "fma": lambda x, y, z: x * y + z,
    "mad": lambda x, y, z: x * y + z,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FORMULAS)
def test_float64_in_every_mode(name, mode):
    operands = triples(3)[: 3 if name in ("fma", "mad") else 2]
    if name == "div":
        operands = [x[operands[1] != 0] for x in operands]
    names = ", ".join(f"%{letter}" for letter in "abc"[: len(operands)])
    got = compute(f"{name}.{mode}.f64 %d, {names};", *operands, out=np.float64)
    for *values, result in zip(*operands, got.tolist()):
        exact = FORMULAS[name](*(Fraction(float(value)) for value in values))
        if exact:
            assert is_rounded(result, exact, mode), (values, result)
            assert math.copysign(1, result) == (1 if exact > 0 else -1)
        else:
            assert result == 0
            terms = {"add": values, "sub": [values[0], -values[1]]}.get(name)
            if name in ("fma", "mad"):
                sign = math.copysign(1, values[0]) * math.copysign(1, values[1])
                terms = [sign * abs(values[0] * values[1]) or sign * 0.0, values[2]]
            if terms is None:  # a product or quotient: the sign of its factors
                negative = math.copysign(1, values[0]) * math.copysign(1, values[1]) < 0
            elif all(term == 0 for term in terms) and len({math.copysign(1, t) for t in terms}) < 2:
                negative = math.copysign(1, terms[0]) < 0
            else:
                negative = mode == "rm"
            assert math.copysign(1, result) == (-1 if negative else 1), (values, mode)


@pytest.mark.parametrize("mode", MODES)
def test_float64_roots_and_reciprocals_in_every_mode(mode):
    a = np.abs(doubles(5))
    a = a[a > 0]
    for x, r in zip(a.tolist(), compute(f"sqrt.{mode}.f64 %d, %a;", a, out=np.float64).tolist()):
        low, high = (Fraction(max(math.nextafter(r, to), 0.0)) for to in (-1.0, math.inf))
        at, exact = Fraction(r), Fraction(x)
        if mode == "rn":
            assert ((low + at) / 2) ** 2 <= exact <= ((at + high) / 2) ** 2
        elif mode == "rp":
            assert low**2 < exact <= at**2
        else:
            assert at**2 <= exact < high**2
    for x, r in zip(a.tolist(), compute(f"rcp.{mode}.f64 %d, %a;", a, out=np.float64).tolist()):
        assert is_rounded(r, 1 / Fraction(x), mode)


def test_float64_specials_in_directed_modes():
    a, b = (x.ravel() for x in np.meshgrid(CORNERS + SPECIAL, CORNERS + SPECIAL))
    special = ~np.isfinite(a) | ~np.isfinite(b) | (b == 0)
    a, b = a[special], b[special]
    with np.errstate(all="ignore"):
        for name, exact, finite in (
            ("add", a + b, np.isfinite(a) & np.isfinite(b)),
            ("mul", a * b, np.isfinite(a) & np.isfinite(b)),
            ("div", a / b, np.zeros(a.shape, bool)),
        ):
            got = compute(f"{name}.rz.f64 %d, %a, %b;", a, b, out=np.float64)
            assert np.array_equal(got[~finite], exact[~finite], equal_nan=True), name
            known = ~finite & (exact == exact)
            assert np.array_equal(np.signbit(got[known]), np.signbit(exact[known])), name
    roots = compute("sqrt.rm.f64 %d, %a;", np.array([*SPECIAL, 0.0, -0.0, -1.0]), out=np.float64)
    assert np.array_equal(roots, [math.inf, math.nan, math.nan, 0, 0, math.nan], equal_nan=True)
    assert np.signbit(roots[4])
    assert compute("rcp.rz.f64 %d, %a;", np.array([-0.0, math.inf]), out=np.float64).tolist() == [
        -math.inf,
        0.0,
    ]


@pytest.mark.parametrize("mode", MODES[1:])
def test_float32_quotients_and_roots_in_directed_modes(mode):
    a, b = floats(300, 1), np.roll(floats(300, 2), 7)
    a, b = a[: b.size], b[: a.size]
    whole = np.isfinite(a) & np.isfinite(b) & (a != 0) & (b != 0)
    a, b = a[whole], b[whole]
    a[:40], b[:40] = np.arange(1, 41), 3.0
    expected = [round32(Fraction(float(x)) / Fraction(float(y)), mode) for x, y in zip(a, b)]
    assert compute(f"div.{mode}.f32 %d, %a, %b;", a, b, out=np.float32).tolist() == expected
    expected = [round32(1 / Fraction(float(y)), mode) for y in b]
    assert compute(f"rcp.{mode}.f32 %d, %b;", a, b, out=np.float32).tolist() == expected
    a = np.abs(a)
    for x, r in zip(a, compute(f"sqrt.{mode}.f32 %d, %a;", a, out=np.float32)):
        other = Fraction(float(np.nextafter(r, np.float32(-1 if mode == "rp" else np.inf))))
        at, exact = Fraction(float(r)) ** 2, Fraction(float(x))
        assert other**2 < exact <= at if mode == "rp" else at <= exact < other**2


def test_zero_and_infinity_in_directed_float32():
    a = np.array([1, -1, 0, np.inf, 5], np.float32)
    b = np.array([0, 0, 0, 2, np.inf], np.float32)
    got = compute("div.rz.f32 %d, %a, %b;", a, b, out=np.uint32)
    assert got.tolist() == [0x7F800000, 0xFF800000, 0x7FFFFFFF, 0x7F800000, 0]
    assert (
        compute("rcp.rz.ftz.f32 %d, %a;", np.array([1e-40], np.float32), out=np.float32) == np.inf
    )


def chosen(name: str, options: str, *values: float) -> float:
    """The ISA's program, for any number of operands."""
    negative = sum(math.copysign(1, value) < 0 for value in values) % 2
    if ".abs" in options:
        values = [abs(value) for value in values]
    if ".NaN" in options and any(value != value for value in values):
        return math.nan
    numbers = [value for value in values if value == value]
    if not numbers:
        return math.nan
    result = (min if name == "min" else max)(
        numbers, key=lambda value: (value, math.copysign(1, value))
    )
    return math.copysign(result, -1 if negative else 1) if ".xorsign" in options else result


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("options", ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"])
def test_min_and_max_with_all_options(name, options):
    values = np.array([0.0, -0.0, 1.5, -1.5, 2.0, -3.0, np.inf, -np.inf, np.nan, 1e-40], np.float32)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    got = compute(f"{name}{options}.f32 %d, %a, %b;", a, b, out=np.float32)
    expected = np.array(
        [chosen(name, options, *map(float, pair)) for pair in zip(a, b)], np.float32
    )
    nan = expected != expected
    assert (got.view(np.uint32) == np.where(nan, 0x7FFFFFFF, expected.view(np.uint32))).all()
    half_a, half_b = (x.astype(np.float16) for x in (a, b))
    got = compute(
        f"{name}{options}.f16 %d, %a, %b;",
        half_a.view(np.uint16),
        half_b.view(np.uint16),
        out=np.uint16,
    )
    expected = np.array(
        [chosen(name, options, *map(float, pair)) for pair in zip(half_a, half_b)], np.float16
    )
    assert (got == np.where(nan, 0x7FFF, expected.view(np.uint16))).all()
    if "xorsign" not in options:
        triple = [x.ravel() for x in np.meshgrid(values, values, values)]
        for more in ("", ".abs"):
            got = compute(f"{name}{options}{more}.f32 %d, %a, %b, %c;", *triple, out=np.float32)
            expected = np.array(
                [chosen(name, options + more, *map(float, xs)) for xs in zip(*triple)], np.float32
            )
            nan = expected != expected
            assert (
                got.view(np.uint32) == np.where(nan, 0x7FFFFFFF, expected.view(np.uint32))
            ).all()


@pytest.mark.parametrize(
    "statement, kind",
    [
        ("max.f64 %fd0, %fd1, %fd2, %fd3;", PtxSyntaxError),
        ("max.s32 %r0, %r1, %r2, %r3;", PtxSyntaxError),
        ("max.f16 %h0, %h1, %h2, %h3;", PtxSyntaxError),
        ("add.f32 %f0, %f1, %f2, %f3;", PtxSyntaxError),
        ("min.abs.f32 %f0, %f1, %f2;", UnknownInstruction),
        ("min.xorsign.abs.f32 %f0, %f1, %f2, %f3;", UnknownInstruction),
        ("rcp.approx.f64 %fd0, %fd1;", UnknownInstruction),
        ("sqrt.approx.f64 %fd0, %fd1;", UnknownInstruction),
    ],
)
def test_operands_too_many_and_options_apart_are_refused(statement, kind):
    """Nothing is dropped in silence; ptxas refuses all of these."""
    with pytest.raises(kind):
        launch(statement)

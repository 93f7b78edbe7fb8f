"""Contract under test: conversions of smaller floats, of powers of two, of tf32 and of packed
integers, against tables and fractions worked out here."""

import math
from fractions import Fraction

import numpy as np
import pytest

from numba_marlin.emulator import Machine, UnknownInstruction
from tests.emulator.number_cases import floats, wrap
from tests.emulator.nvrtc import ptx_of
from tests.emulator.ptx_cases import compute, launch, words

# kind: (bits, of the fraction, bias, codes of finite numbers without sign, what NaN becomes)
SMALL = {
    "e4m3": (8, 3, 7, 0x7F, 0x7F),
    "e5m2": (8, 2, 15, 0x7C, 0x7F),
    "e3m2": (6, 2, 3, 0x20, 0x1F),
    "e2m3": (6, 3, 1, 0x20, 0x1F),
    "e2m1": (4, 1, 1, 0x8, 0x7),
}
HALVES = np.arange(1 << 16, dtype=np.uint16)[::7]


def numbers(kind: str) -> np.ndarray:
    """The finite numbers without sign, in order of their codes, by the definition of a float."""
    _, fraction, bias, count, _ = SMALL[kind]
    found = []
    for code in range(count):
        exponent, rest = code >> fraction, code & (1 << fraction) - 1
        unit = Fraction(2) ** (max(exponent, 1) - bias - fraction)
        found.append(float(((1 << fraction if exponent else 0) + rest) * unit))
    return np.array(found)


def nearest(values: np.ndarray, kind: str, relu: bool = False) -> np.ndarray:
    """Codes: the nearest number, of two the one with an even code; the largest at most."""
    table, (bits, *_, nan) = numbers(kind), SMALL[kind]
    with np.errstate(invalid="ignore"):  # signalling NaN
        values = np.asarray(values, np.float64)
    if relu:
        values = np.where(values < 0, 0.0, values)
    middles = (table[1:] + table[:-1]) / 2
    size = np.where(np.isnan(values), 0, np.abs(values))
    low, high = (np.searchsorted(middles, size, side) for side in ("left", "right"))
    code = np.where(low % 2 == 0, low, high) | np.signbit(values).astype(int) << bits - 1
    return np.where(np.isnan(values), nan, code)


def around(values: np.ndarray) -> np.ndarray:
    """float32: the values, and their neighbours on both sides."""
    values = np.asarray(values, np.float32)
    with np.errstate(invalid="ignore"):
        beside = [np.nextafter(values, np.float32(to)) for to in (-np.inf, np.inf)]
    return np.concatenate([values, *beside])


def sources(kind: str) -> np.ndarray:
    table = numbers(kind)
    edges = np.concatenate([table, (table[1:] + table[:-1]) / 2, [table[-1] * 1.5]])
    return np.concatenate([around(edges), -around(edges), floats(200)])


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", SMALL)
def test_float32_to_pairs_of_small_floats(kind, relu):
    values, gap = sources(kind), 4 if kind == "e2m1" else 8
    a, b = values, values[::-1].copy()
    body = f"cvt.rn.satfinite{relu}.{kind}x2.f32 %d, %a, %b;"
    if kind == "e2m1":
        body = f".reg .b8 %b8; {body.replace('%d', '%b8')} cvt.u16.u8 %d, %b8;"
    expected = nearest(a, kind, bool(relu)) << gap | nearest(b, kind, bool(relu))
    assert (compute(body, a, b, out=np.uint16) == expected).all()


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_halves_to_pairs_of_small_floats(kind, relu):
    low, high = HALVES, HALVES[::-1]
    word = low.astype(np.uint32) | high.astype(np.uint32) << 16
    values = [x.view(np.float16).astype(np.float32) for x in (np.ascontiguousarray(high), low)]
    upper, lower = (nearest(x, kind, bool(relu)) for x in values)
    got = compute(f"cvt.rn.satfinite{relu}.{kind}x2.f16x2 %d, %a;", word, out=np.uint16)
    assert (got == (upper << 8 | lower)).all()


@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("kind", SMALL)
def test_pairs_of_small_floats_to_halves(kind, relu):
    bits, gap = SMALL[kind][0], 4 if kind == "e2m1" else 8
    low, high = (x.ravel() for x in np.meshgrid(*[np.arange(1 << bits)] * 2))
    table = np.full(1 << bits, np.nan)
    table[: SMALL[kind][3]] = numbers(kind)
    table[1 << bits - 1 :][: SMALL[kind][3]] = -numbers(kind)
    if kind == "e5m2":
        table[[0x7C, 0xFC]] = np.inf, -np.inf
    if relu:
        table = np.where(table < 0, 0, table)
    with np.errstate(over="ignore"):
        halves = table.astype(np.float16)
    expected = np.where(np.isnan(table), 0x7FFF, halves.view(np.uint16)).astype(np.uint32)
    if relu:  # what becomes of -0 is not said; here it is 0
        expected = np.where(expected == 0x8000, 0, expected)
    body = f"cvt.rn{relu}.f16x2.{kind}x2 %d, {{}};"
    body = (
        f".reg .b8 %b8; cvt.u8.u16 %b8, %a; {body.format('%b8')}"
        if kind == "e2m1"
        else body.format("%a")
    )
    got = compute(body, (low | high << gap).astype(np.uint16), out=np.uint32)
    assert (got == (expected[low] | expected[high] << 16)).all()


def power(value: float, up: bool, finite: bool) -> int:
    """ue8m0 of a float32: the exponent of the power of two below or above its size."""
    if value != value:
        return 0xFF
    if np.isinf(value):
        return 0xFE if finite else 0xFF
    fraction, exponent = math.frexp(abs(float(value)))
    code = max(exponent - 1 + 127, 0) if fraction else 0
    code += up and math.ldexp(1.0, code - 127) < abs(float(value))
    return min(code, 0xFE) if finite else code


@pytest.mark.parametrize("finite", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rz", "rp"])
def test_powers_of_two(mode, finite):
    edges = 2.0 ** np.array([-149, -128, -127, -126, -1, 0, 1, 126, 127])
    values = np.concatenate([around(edges), -around(edges), floats(60)]).astype(np.float32)
    a, b = values, values[::-1].copy()
    expected = [[power(x, mode == "rp", bool(finite)) for x in each] for each in (a, b)]
    both = np.array(expected[0]) << 8 | np.array(expected[1])
    got = compute(f"cvt.{mode}{finite}.ue8m0x2.f32 %d, %a, %b;", a, b, out=np.uint16)
    assert (got == both).all()
    brains = np.concatenate([HALVES[::9], [0x0040, 0x0041, 0x7F7F, 0x7F80]]).astype(np.uint32)
    values = (brains << 16).view(np.float32)
    expected = np.array([power(x, mode == "rp", bool(finite)) for x in values])
    word = brains | brains[::-1] << 16
    got = compute(f"cvt.{mode}{finite}.ue8m0x2.bf16x2 %d, %a;", word, out=np.uint16)
    assert (got == (expected[::-1] << 8 | expected)).all()


def test_powers_of_two_as_brain_floats():
    codes = np.arange(256, dtype=np.uint16)
    got = compute("cvt.rn.bf16x2.ue8m0x2 %d, %a;", codes | codes[::-1] << 8, out=np.uint32)
    values = np.ldexp(np.float32(1), codes[:255].astype(int) - 127)
    assert np.array_equal((got << 16).view(np.float32)[:255], values)
    assert (got & 0xFFFF)[255] == 0x7FFF and np.array_equal(got >> 16, (got & 0xFFFF)[::-1])


def tf32(value: float, mode: str, finite: bool) -> int:
    if value != value:
        return 0x7FFFFFFF
    bits = int(np.float32(value).view(np.uint32))
    sign, size = bits & 1 << 31, bits & 0x7FFFFFFF
    whole, rest = size >> 13, size & 0x1FFF
    up = {"rz": False, "rna": rest >= 0x1000, "rn": rest + whole % 2 > 0x1000}[mode]
    size = whole + up << 13
    return sign | (min(size, 0x7F7FE000) if finite else size)


@pytest.mark.parametrize("finite", ["", ".satfinite"])
@pytest.mark.parametrize("mode", ["rna", "rn", "rz"])
def test_tf32(mode, finite):
    values = floats(300)
    values = np.concatenate([values, (words(64) & 0xFFFFE000 | 0x1000).view(np.float32)])
    got = compute(f"cvt.{mode}{finite}.tf32.f32 %d, %a;", values, out=np.uint32)
    assert got.tolist() == [tf32(x, mode, bool(finite)) for x in values]
    if mode != "rna":
        got = compute(f"cvt.{mode}{finite}.relu.tf32.f32 %d, %a;", values, out=np.uint32)
        expected = [tf32(0.0 if x < 0 else x, mode, bool(finite)) for x in values]
        assert got.tolist() == expected


HALF_FORMATS = {"f16": (10, 15, 0x7C00), "bf16": (7, 127, 0x7F80)}


def rounded_half(value: float | int, kind: str, mode: str) -> int:
    """A float64 or an integer to f16 or bf16 by definition: the number of units, on integers."""
    fraction, bias, infinity = HALF_FORMATS[kind]
    sign = int(np.signbit(value)) << 15
    if value != value:
        return 0x7FFF
    if np.isinf(value):
        return sign | infinity
    size = Fraction(abs(value))
    length = value.bit_length() if isinstance(value, int) else math.frexp(value)[1]
    exponent = max(length - 1, 1 - bias) if value else 1 - bias
    whole, rest = divmod(size / Fraction(2) ** (exponent - fraction), 1)
    up = {
        "rn": rest > Fraction(1, 2) or rest == Fraction(1, 2) and whole % 2,
        "rz": False,
        "rm": sign and rest,
        "rp": not sign and rest,
    }[mode]
    code = int(whole) + bool(up) + (exponent + bias - 1 << fraction)
    outwards = mode == "rn" or mode == ("rm" if sign else "rp")
    return sign | min(code, infinity if outwards else infinity - 1)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", HALF_FORMATS)
def test_halves_in_every_mode(kind, mode):
    rng = np.random.default_rng(2)
    with np.errstate(invalid="ignore"):  # signalling NaN
        single = floats(100).astype(np.float64)
    values = np.concatenate(
        [
            single,
            np.ldexp(rng.standard_normal(200), rng.integers(-30, 20, 200)),
            [65504.0, 65519.9, 65520.0, 1e9, -65536.0, -1e300, 1e-300, -1e-300, 2.0**-25],
        ]
    )
    got = compute(f"cvt.{mode}.{kind}.f64 %d, %a;", values, out=np.uint16)
    assert got.tolist() == [rounded_half(x, kind, mode) for x in values]
    numbers = words(40, np.int64)
    got = compute(f"cvt.{mode}.{kind}.s64 %d, %a;", numbers, out=np.uint16)
    assert got.tolist() == [rounded_half(x, kind, mode) for x in numbers.tolist()]


@pytest.mark.parametrize("kind", HALF_FORMATS)
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("options", [".satfinite", ".relu", ".relu.satfinite"])
def test_halves_with_options(kind, mode, options):
    values, infinity = floats(200), HALF_FORMATS[kind][2]

    def expected(x: float) -> int:
        code = rounded_half(0.0 if x < 0 and "relu" in options else float(x), kind, mode)
        finite = "satfinite" in options and code & 0x7FFF == infinity
        return code - 1 if finite else code

    body = f"cvt.{mode}{options}.{kind}"
    single = compute(f"{body}.f32 %d, %a;", values, out=np.uint16)
    assert single.tolist() == [expected(x) for x in values]
    pair = compute(f"{body}x2.f32 %d, %a, %b;", values, values[::-1].copy(), out=np.uint32)
    assert (pair == (single.astype(np.uint32) << 16 | single[::-1])).all()


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("kind", ["s64", "u64"])
def test_long_integers_to_float64(kind, mode):
    a = words(60, np.dtype(kind.replace("u", "uint").replace("s", "int")))
    a[:40] = (1 << 62) + (1 << 9) + np.arange(-20, 20)
    for x, got in zip(a.tolist(), compute(f"cvt.{mode}.f64.{kind} %d, %a;", a, out=np.float64)):
        below = Fraction(float(np.nextafter(got, -np.inf)))
        above = Fraction(float(np.nextafter(got, np.inf)))
        at = Fraction(float(got))
        if mode == "rn":
            assert got == float(x)  # Python rounds integers to nearest even
        elif mode == "rp" or mode == "rz" and x < 0:
            assert below < x <= at
        else:
            assert at <= x < above


@pytest.mark.parametrize("kind", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_packed_integers(kind):
    bits = int(kind[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    edges = np.array([low - 1, low, -1, 0, 1, high, high + 1, 2**31 - 1, -(2**31)], np.int64)
    a, b = (x.ravel().astype(np.int32) for x in np.meshgrid(edges, edges))
    c = words(a.size, seed=4)
    tail = ".s32 %d, %a, %b;" if bits == 16 else ".s32.b32 %d, %a, %b, %c;"
    got = compute(f"cvt.pack.sat.{kind}{tail}", a, b, c, out=np.uint32)
    mask = (1 << bits) - 1
    expected = [
        wrap(
            (min(max(x, low), high) & mask) << bits
            | min(max(y, low), high) & mask
            | (0 if bits == 16 else z << 2 * bits),
            np.dtype(np.uint32),
        )
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist())
    ]
    assert got.tolist() == expected


@pytest.mark.parametrize(
    "statement",
    [
        "cvt.rn.e4m3x2.f32 %h0, %f1, %f2;",
        "cvt.rz.satfinite.e4m3x2.f32 %h0, %f1, %f2;",
        "cvt.rn.satfinite.e2m3x2.f16x2 %h0, %r1;",
        "cvt.rs.satfinite.e4m3x4.f32 %r0, {%f1, %f2, %f3, %f4}, %r5;",
        "cvt.rs.f16x2.f32 %r0, %f1, %f2, %r3;",
        "cvt.rn.ue8m0x2.f32 %h0, %f1, %f2;",
        "cvt.rna.relu.tf32.f32 %r0, %f1;",
        "cvt.tf32.f32 %r0, %f1;",
        "cvt.pack.sat.u32.s32 %r0, %r1, %r2;",
        "cvt.pack.sat.u8.s32 %r0, %r1, %r2;",
        "cvt.pack.u16.s32 %r0, %r1, %r2;",
        "cvt.rn.relu.f32.f64 %f0, %fd1;",
        "cvt.rn.satfinite.f16.f64 %h0, %fd1;",
    ],
)
def test_what_there_is_not(statement):
    with pytest.raises(UnknownInstruction):
        launch(statement)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["sm_100a", "sm_120a"])
def test_the_instructions_agree_with_nvidias_own_arithmetic(arch):
    """foreign/small_floats.cu: for sm_80 the headers of CUDA convert by integer arithmetic."""
    values = np.concatenate([sources(kind)[:200:3] for kind in SMALL])
    values = np.concatenate(
        [values, -values, floats(120), words(60, np.uint32, 3).view(np.float32)]
    )
    found = []
    for target in ("sm_80", arch):
        text = ptx_of("small_floats", target)
        assert ("cvt.rn.satfinite.e2m1x2" in text) == (target == arch)
        machine, out = Machine(text), np.zeros((values.size, 10), np.uint32)
        addresses = [machine.memory.buffer(each).address for each in (values, out)]
        machine.run(args=[*addresses, values.size], block=values.size)
        found.append(out)
    assert np.array_equal(*found)

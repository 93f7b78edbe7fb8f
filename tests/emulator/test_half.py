"""fp16 and bf16 arithmetic, scalar and packed, against exact rationals and ml_dtypes."""

from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.number_cases import ALL, canonical, pack
from tests.emulator.ptx_cases import compute, words

CORNERS = np.array(
    [
        0,
        0x8000,
        1,
        0x8001,
        0x3FF,
        0x400,
        0x3C00,
        0xBC00,
        0x3C01,
        0x7BFF,
        0xFBFF,
        0x7C00,
        0xFC00,
        0x7E00,
        0x7D01,
        0x6400,
        0x6408,
        0x1400,
        0x3800,
    ],
    np.uint16,
)


def wide(bits):
    return bits.view(np.float16).astype(np.float64)


def rounded(values):
    """float64 values that are exact, to fp16."""
    with np.errstate(all="ignore"):
        return canonical(values.astype(np.float16).view(np.uint16))


@pytest.mark.parametrize(
    "name, function", [("add", np.add), ("sub", np.subtract), ("mul", np.multiply)]
)
def test_packed_arithmetic_rounds_each_half_once(name, function):
    """Every fp16 against each corner: sums and products of two fp16 are exact in float64."""
    for corner in CORNERS:
        other = np.full_like(ALL, corner)
        word = compute(
            f"{name}.f16x2 %d, %a, %b;",
            pack(ALL, other),
            pack(other, ALL[::-1].copy()),
            out=np.uint32,
        )
        with np.errstate(all="ignore"):
            low = rounded(function(wide(ALL), wide(other)))
            high = rounded(function(wide(other), wide(ALL[::-1].copy())))
        assert np.array_equal(word & 0xFFFF, low), f"corner {corner:#x}"
        assert np.array_equal(word >> 16, high), f"corner {corner:#x}"


def test_scalar_and_packed_agree():
    a, b, c = (words(500, np.uint16, seed=i) for i in range(3))
    for text, count in (("add{rn}.{t} %d, %a, %b;", 2), ("fma.rn.{t} %d, %a, %b, %c;", 3)):
        inputs = (a, b, c)[:count]
        one = compute(text.format(rn="", t="f16"), *inputs, out=np.uint16)
        two = compute(
            text.format(rn=".rn", t="f16x2"), *(pack(x, x) for x in inputs), out=np.uint32
        )
        assert np.array_equal(two, pack(one, one))


def exact_fma(a, b, c):
    """One rounding of the exact a * b + c, by way of integers in units of 2**-48."""
    out = np.zeros(len(a), np.uint16)
    for i, (x, y, z) in enumerate(zip(wide(a), wide(b), wide(c))):
        if np.isfinite(x) and np.isfinite(y) and np.isfinite(z):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            if exact != 0:
                out[i] = round_half(exact)
                continue
        with np.errstate(all="ignore"):
            out[i] = rounded(np.array([x * y + z]))[0]
    return out


def round_half(exact):
    sign, size = (0x8000, -exact) if exact < 0 else (0, exact)
    if size >= 65520:
        return sign | 0x7C00
    exponent = -14
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** (exponent - 10)
    whole, rest = divmod(size, unit)
    whole += rest * 2 > unit or (rest * 2 == unit and whole % 2)
    # a carry into the exponent is what it should be
    return sign | (int(whole) + (exponent + 14) * 1024)


def test_fma_rounds_once():
    a, b, c = (
        np.concatenate([words(4000, np.uint16, seed=i), np.resize(np.roll(CORNERS, 3 * i), 500)])
        for i in range(3)
    )
    # and sums near ties: c so much smaller than the product that only one rounding sees it
    with np.errstate(all="ignore"):
        near = rounded(-(wide(a[:1000]) * wide(b[:1000])))
    c[:1000] = near
    small = np.array([1, 0x8001], np.uint16)
    c[1000:2000] = np.resize(small, 1000)
    a[1000:2000] = 0x3C00 + np.arange(1000) % 1024
    b[1000:2000] = 0x3C00 + np.arange(1000) * 7 % 1024
    got = compute("fma.rn.f16 %d, %a, %b, %c;", a, b, c, out=np.uint16)
    expected = exact_fma(a, b, c)
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, [hex(int(v[wrong[0]])) for v in (a, b, c, got, expected)]


def test_dequantisation_of_every_code_is_exact():
    """lop3 against 0x6400 and a subtraction of 1032: code - 8 for all sixteen codes, in both
    halves."""
    q = np.arange(256, dtype=np.uint32)
    q = q & 15 | (q >> 4) << 16
    body = "lop3.b32 %r0, %a, 0x000f000f, 0x64006400, 0xea; sub.f16x2 %d, %r0, 0x64086408;"
    word = compute(body, q, out=np.uint32)
    assert np.array_equal(wide((word & 0xFFFF).astype(np.uint16)), (q & 15).astype(float) - 8)
    assert np.array_equal(wide((word >> 16).astype(np.uint16)), (q >> 16).astype(float) - 8)


def test_neg_abs_min_max():
    a, b = words(2000, np.uint16, seed=1), words(2000, np.uint16, seed=2)
    assert np.array_equal(compute("neg.f16 %d, %a;", a, out=np.uint16), a ^ 0x8000)
    assert np.array_equal(
        compute("abs.f16x2 %d, %a;", pack(a, b), out=np.uint32), pack(a & 0x7FFF, b & 0x7FFF)
    )
    with np.errstate(all="ignore"):
        low, high = np.fmin(wide(a), wide(b)), np.fmax(wide(a), wide(b))
    different = (a & 0x7FFF) | (b & 0x7FFF) != 0
    assert np.array_equal(
        compute("min.f16 %d, %a, %b;", a, b, out=np.uint16)[different], rounded(low)[different]
    )
    assert np.array_equal(
        compute("max.f16 %d, %a, %b;", a, b, out=np.uint16)[different], rounded(high)[different]
    )


def test_ftz_and_sat():
    a = np.array([1, 0x8001, 0x400, 0x3FF, 0xBC00, 0x4000, 0x7E00], np.uint16)
    zero = np.zeros_like(a)
    assert compute("add.ftz.f16 %d, %a, %b;", a, zero, out=np.uint16).tolist() == [
        0,
        0,
        0x400,
        0,
        0xBC00,
        0x4000,
        0x7FFF,
    ]
    assert compute("add.sat.f16 %d, %a, %b;", a, zero, out=np.uint16).tolist() == [
        1,
        0,
        0x400,
        0x3FF,
        0,
        0x3C00,
        0,
    ]


def test_bf16_against_an_independent_conversion():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a, b, c = (words(3000, np.uint16, seed=i).view(ml_dtypes.bfloat16) for i in range(3))
    for name, function in (("add", np.add), ("mul", np.multiply), ("sub", np.subtract)):
        with np.errstate(all="ignore"):
            # 24 bits suffice, see half.py
            exact = function(a.astype(np.float32), b.astype(np.float32))
            expected = exact.astype(ml_dtypes.bfloat16)
        nan = exact != exact
        got = compute(
            f"{name}.rn.bf16 %d, %a, %b;", a.view(np.uint16), b.view(np.uint16), out=np.uint16
        )
        assert np.array_equal(got[~nan], expected.view(np.uint16)[~nan])
        assert (got[nan] == 0x7FFF).all()
    finite = np.logical_and.reduce([(v.view(np.uint16) & 0x7F80) != 0x7F80 for v in (a, b, c)])
    x, y, z = (v[finite][:600] for v in (a, b, c))
    got = compute(
        "fma.rn.bf16x2 %d, %a, %b, %c;",
        *(pack(v.view(np.uint16), v.view(np.uint16)) for v in (x, y, z)),
        out=np.uint32,
    )
    for i, (p, q, r) in enumerate(zip(*(v.astype(float).tolist() for v in (x, y, z)))):
        exact = Fraction(p) * Fraction(q) + Fraction(r)
        value = float((got[i] << 16).view(np.float32))
        if abs(exact) > Fraction(2) ** 127 or exact == 0:
            continue
        bits = int(got[i]) & 0xFFFF
        if bits & 0x7FFF:  # neither neighbour is nearer
            for neighbour in (bits + 1, bits - 1):
                other = Fraction(float(np.uint32(neighbour << 16).view(np.float32)))
                assert abs(Fraction(value) - exact) <= abs(other - exact)

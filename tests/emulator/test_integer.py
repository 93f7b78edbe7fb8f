"""Integer arithmetic against Python integers: wrap-around, halves of products, division towards
zero."""

import numpy as np
import pytest

from numba_marlin.emulator import UnknownInstruction
from tests.emulator.number_cases import check, cross, dtype_of
from tests.emulator.ptx_cases import compute, words

TYPES = [f"{s}{b}" for s in "us" for b in (16, 32, 64)]


def quotient(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


@pytest.mark.parametrize("kind", TYPES)
def test_add_sub_mul_lo_wrap_around(kind):
    a, b = cross(kind)
    check(f"add.{kind} %d, %a, %b;", lambda x, y: x + y, a, b, out=a.dtype)
    check(f"sub.{kind} %d, %a, %b;", lambda x, y: x - y, a, b, out=a.dtype)
    check(f"mul.lo.{kind} %d, %a, %b;", lambda x, y: x * y, a, b, out=a.dtype)
    check(f"mad.lo.{kind} %d, %a, %b, %a;", lambda x, y: x * y + x, a, b, out=a.dtype)


@pytest.mark.parametrize("kind", TYPES)
def test_mul_hi_is_the_upper_half_of_the_exact_product(kind):
    a, b = cross(kind)
    bits = 8 * a.dtype.itemsize
    check(f"mul.hi.{kind} %d, %a, %b;", lambda x, y: x * y >> bits, a, b, out=a.dtype)
    check(f"mad.hi.{kind} %d, %a, %b, %b;", lambda x, y: (x * y >> bits) + y, a, b, out=a.dtype)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_mul_wide_is_exact(kind):
    a, b = cross(kind)
    wide = dtype_of(kind[0] + str(16 * a.dtype.itemsize))
    check(f"mul.wide.{kind} %d, %a, %b;", lambda x, y: x * y, a, b, out=wide)
    c = words(a.size, wide, seed=3)
    check(f"mad.wide.{kind} %d, %a, %b, %c;", lambda x, y, z: x * y + z, a, b, c, out=wide)


@pytest.mark.parametrize("kind", TYPES)
def test_division_truncates_and_remainder_takes_the_sign_of_the_dividend(kind):
    a, b = cross(kind)
    keep = b != 0
    a, b = a[keep], b[keep]
    check(f"div.{kind} %d, %a, %b;", quotient, a, b, out=a.dtype)
    check(f"rem.{kind} %d, %a, %b;", lambda x, y: x - y * quotient(x, y), a, b, out=a.dtype)


@pytest.mark.parametrize("kind", TYPES)
def test_min_max(kind):
    a, b = cross(kind)
    check(f"min.{kind} %d, %a, %b;", min, a, b, out=a.dtype)
    check(f"max.{kind} %d, %a, %b;", max, a, b, out=a.dtype)


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_neg_abs_wrap_at_the_most_negative_number(kind):
    a = words(40, dtype_of(kind))
    check(f"neg.{kind} %d, %a;", lambda x: -x, a, out=a.dtype)
    check(f"abs.{kind} %d, %a;", abs, a, out=a.dtype)


def test_mul24_uses_the_low_24_bits():
    a, b = cross("u32")
    check(
        "mul24.lo.u32 %d, %a, %b;",
        lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF),
        a,
        b,
        out=np.uint32,
    )
    check(
        "mul24.hi.u32 %d, %a, %b;",
        lambda x, y: (x & 0xFFFFFF) * (y & 0xFFFFFF) >> 16,
        a,
        b,
        out=np.uint32,
    )
    signed = lambda x: (x & 0x7FFFFF) - (x & 0x800000)  # noqa: E731
    a, b = cross("s32")
    check(
        "mad24.lo.s32 %d, %a, %b, %a;", lambda x, y: signed(x) * signed(y) + x, a, b, out=np.int32
    )


def test_immediates_wrap_to_the_type():
    a = words(40)
    check("add.s32 %d, %a, -1;", lambda x: x - 1, a, out=np.uint32)
    check("and.b32 %d, %a, -2147483648;", lambda x: x & 0x80000000, a, out=np.uint32)
    check("add.u32 %d, %a, 0xFFFFFFFFU;", lambda x: x + 0xFFFFFFFF, a, out=np.uint32)


def clamp(value):
    return max(-(2**31), min(2**31 - 1, value))


def signed24(value):
    return ((value & 0xFFFFFF) ^ 0x800000) - 0x800000


def test_saturating_arithmetic():
    a, b = cross("s32")
    c = np.roll(a, 5)
    for body, formula in (
        ("add.sat.s32 %d, %a, %b;", lambda x, y, z: x + y),
        ("sub.sat.s32 %d, %a, %b;", lambda x, y, z: x - y),
        ("mad.hi.sat.s32 %d, %a, %b, %c;", lambda x, y, z: (x * y >> 32) + z),
        (
            "mad24.hi.sat.s32 %d, %a, %b, %c;",
            lambda x, y, z: (signed24(x) * signed24(y) >> 16) + z,
        ),
    ):
        check(body, lambda x, y, z, formula=formula: clamp(formula(x, y, z)), a, b, c, out=np.int32)
    check("min.relu.s32 %d, %a, %b;", lambda x, y: max(0, min(x, y)), a, b, out=np.int32)
    check("max.relu.s32 %d, %a, %b;", lambda x, y: max(0, x, y), a, b, out=np.int32)


@pytest.mark.parametrize(
    "opcode", ["add.sat.u32", "sub.sat.s16", "mad.lo.sat.s32", "mad.hi.sat.u32", "max.relu.u32"]
)
def test_saturation_of_other_types_is_refused(opcode):
    with pytest.raises(UnknownInstruction, match="sat|relu"):
        compute(f"{opcode} %d, %a, %a{', %a' if 'mad' in opcode else ''};", words(2), out=np.uint32)

"""setp, set, selp against Python comparisons, NaN included."""

import operator

import numpy as np
import pytest

from tests.emulator.number_cases import check, cross, floats
from tests.emulator.ptx_cases import compute

COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_comparisons_respect_signedness(kind):
    a, b = cross(kind, 14)
    for name, compare in COMPARE.items():
        check(
            f"setp.{name}.{kind} %q0, %a, %b; selp.u32 %d, 1, 0, %q0;",
            lambda x, y, compare=compare: int(compare(x, y)),
            a,
            b,
            out=np.uint32,
        )
    if kind[0] == "u":
        for name, same in (("lo", "lt"), ("ls", "le"), ("hi", "gt"), ("hs", "ge")):
            body = f"setp.{name}.{kind} %q0, %a, %b; selp.u32 %d, 1, 0, %q0;"
            check(body, lambda x, y, same=same: int(COMPARE[same](x, y)), a, b, out=np.uint32)


@pytest.mark.parametrize(
    "kind, dtype", [("f32", np.float32), ("f64", np.float64), ("f16", np.uint16)]
)
def test_float_comparisons_ordered_and_unordered(kind, dtype):
    if kind == "f16":
        values = np.array([0, 0x8000, 1, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x4000], np.uint16)
        real = values.view(np.float16).astype(float)
    else:
        with np.errstate(all="ignore"):
            values = floats(8).astype(dtype)
        with np.errstate(all="ignore"):
            real = values.astype(float)
    a, b = (x.ravel() for x in np.meshgrid(values, values))
    x, y = (v.ravel() for v in np.meshgrid(real, real))
    nan = np.isnan(x) | np.isnan(y)
    for name, compare in COMPARE.items():
        for suffix, if_nan in (("", False), ("u", True)):
            got = compute(
                f"setp.{name}{suffix}.{kind} %q0, %a, %b; selp.u32 %d, 1, 0, %q0;",
                a,
                b,
                out=np.uint32,
            )
            assert np.array_equal(got.astype(bool), np.where(nan, if_nan, compare(x, y))), (
                name + suffix
            )
    assert np.array_equal(
        compute(f"setp.nan.{kind} %q0, %a, %b; selp.u32 %d, 1, 0, %q0;", a, b, out=np.uint32) == 1,
        nan,
    )
    assert np.array_equal(
        compute(f"setp.num.{kind} %q0, %a, %b; selp.u32 %d, 1, 0, %q0;", a, b, out=np.uint32) == 1,
        ~nan,
    )


@pytest.mark.parametrize(
    "name, combine", [("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)]
)
def test_setp_combines_and_gives_the_complement(name, combine):
    a, b = cross("s32", 14)
    body = (
        f"setp.lt.s32 %q0, %a, 0; setp.lt.{name}.s32 %q1|%q2, %a, %b, {{c}}%q0; selp.u32 %r0, 1, 0,"
        " %q1; selp.u32 %r1, 2, 0, %q2; or.b32 %d, %r0, %r1;"
    )
    for negate in (False, True):

        def expected(x, y, negate=negate):
            with_it = (x < 0) != negate
            return combine(x < y, with_it) | combine(not x < y, with_it) << 1

        check(body.replace("{c}", "!" if negate else ""), expected, a, b, out=np.uint32)


def test_set_gives_masks_or_ones():
    a, b = cross("s32", 10)
    check("set.lt.u32.s32 %d, %a, %b;", lambda x, y: -(x < y), a, b, out=np.uint32)
    got = compute("set.lt.f32.s32 %d, %a, %b;", a, b, out=np.float32)
    assert np.array_equal(got, (a < b).astype(np.float32))


def test_selp_chooses_by_predicate():
    a, b = cross("u64", 10)
    check(
        "setp.eq.u64 %q0, %a, 1; selp.b64 %d, %b, %a, %q0;",
        lambda x, y: y if x == 1 else x,
        a,
        b,
        out=np.uint64,
    )

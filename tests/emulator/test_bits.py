"""Logic, shifts, fields and byte permutation against bit-by-bit Python definitions from the PTX
ISA."""

import operator
from functools import partial

import numpy as np
import pytest

from tests.emulator.number_cases import check, cross
from tests.emulator.ptx_cases import compute, words

MASK = {32: 0xFFFFFFFF, 64: (1 << 64) - 1}


def test_lop3_every_table():
    a, b, c = (words(96, seed=i) for i in range(3))
    a[:8], b[:8], c[:8] = 0xF0, 0xCC, 0xAA
    for start in range(0, 256, 64):
        # 64 tables in one kernel, results combined so that each table's answer is checked by its
        # own store
        for table in range(start, start + 64):
            expected = np.zeros(96, np.uint32)
            for row in range(8):
                if table >> row & 1:
                    expected |= (
                        (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                    )
            got = compute(f"lop3.b32 %d, %a, %b, %c, {table:#x};", a, b, c, out=np.uint32)
            assert np.array_equal(got, expected), f"table {table:#x}"
            assert got[0] & 0xFF == table


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_and_or_xor_not_cnot(bits):
    a, b = cross(f"u{bits}", 12)
    check(f"and.b{bits} %d, %a, %b;", lambda x, y: x & y, a, b, out=a.dtype)
    check(f"or.b{bits} %d, %a, %b;", lambda x, y: x | y, a, b, out=a.dtype)
    check(f"xor.b{bits} %d, %a, %b;", lambda x, y: x ^ y, a, b, out=a.dtype)
    check(f"not.b{bits} %d, %a;", lambda x: ~x, a, out=a.dtype)
    check(f"cnot.b{bits} %d, %a;", lambda x: int(x == 0), a, out=a.dtype)


def test_predicate_logic():
    a, b = cross("u32", 12)
    body = (
        "setp.lt.u32 %q0, %a, 9; setp.lt.u32 %q1, %b, 9; {op}.pred %q2, %q0, %q1; selp.u32 %d, 1,"
        " 0, %q2;"
    )
    check(body.format(op="and"), lambda x, y: x < 9 and y < 9, a, b, out=np.uint32)
    check(body.format(op="xor"), lambda x, y: (x < 9) != (y < 9), a, b, out=np.uint32)
    check(
        "setp.lt.u32 %q0, %a, 9; not.pred %q1, %q0; selp.u32 %d, 1, 0, %q1;",
        lambda x: x >= 9,
        a,
        out=np.uint32,
    )


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_at_the_width(bits):
    a, n = cross(f"u{bits}", 16)
    n = np.tile(
        np.array([0, 1, 7, bits - 1, bits, bits + 1, 255, 0xFFFFFFFF], np.uint32), a.size // 8
    )
    signed = a.view(a.dtype.str.replace("u", "i"))
    check(f"shl.b{bits} %d, %a, %b;", lambda x, s: x << s if s < bits else 0, a, n, out=a.dtype)
    check(f"shr.u{bits} %d, %a, %b;", lambda x, s: x >> min(s, bits), a, n, out=a.dtype)
    check(f"shr.s{bits} %d, %a, %b;", lambda x, s: x >> min(s, bits), signed, n, out=signed.dtype)
    for s in (0, 3, bits, 100):
        check(f"shl.b{bits} %d, %a, {s};", lambda x, s=s: x << s if s < bits else 0, a, out=a.dtype)
        check(
            f"shr.s{bits} %d, %a, {s};", lambda x, s=s: x >> min(s, bits), signed, out=signed.dtype
        )


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel_shift(mode):
    a, b = cross("u32", 16)
    n = np.resize(np.array([0, 1, 4, 31, 32, 33, 63, 64, 1000], np.uint32), a.size)
    amount = (lambda s: min(s, 32)) if mode == "clamp" else (lambda s: s & 31)
    check(
        f"shf.l.{mode}.b32 %d, %a, %b, %c;",
        lambda x, y, s: (y << 32 | x) << amount(s) >> 32,
        a,
        b,
        n,
        out=np.uint32,
    )
    check(
        f"shf.r.{mode}.b32 %d, %a, %b, %c;",
        lambda x, y, s: (y << 32 | x) >> amount(s),
        a,
        b,
        n,
        out=np.uint32,
    )


def field(a, b, c, bits, signed):
    """The loop of the ISA."""
    msb, pos, length = bits - 1, b & 255, c & 255
    sign = a >> min(pos + length - 1, msb) & 1 if signed and length else 0
    return sum(
        (a >> pos + i & 1 if i < length and pos + i <= msb else sign) << i for i in range(bits)
    )


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(kind):
    bits = int(kind[1:])
    values = words(9, f"u{bits // 8}")
    places = np.array([0, 1, 5, 31, 32, 33, 63, 64, 255, 256], np.uint32)
    a, b, c = (x.ravel() for x in np.meshgrid(values, places, places))
    check(
        f"bfe.{kind} %d, %a, %b, %c;",
        lambda x, y, z: field(x, y, z, bits, kind[0] == "s"),
        a,
        b,
        c,
        out=a.dtype,
    )


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits):
    values = words(9, f"u{bits // 8}")
    places = np.array([0, 1, 5, 31, 32, 33, 63, 64, 255, 256], np.uint32)
    a, b, c = (x.ravel() for x in np.meshgrid(values, places, places))
    base = words(a.size, a.dtype, seed=9)

    def insert(x, y, pos, length):
        pos, length = pos & 255, length & 255
        for i in range(length):
            if pos + i < bits:
                y = y & ~(1 << pos + i) | (x >> i & 1 if i < bits else 0) << pos + i
        return y

    check(f"bfi.b{bits} %d, %a, %b, %c, %e;", insert, a, base, b, c, out=a.dtype)


def test_prmt_every_selector_nibble():
    a, b = words(512, seed=1), words(512, seed=2)
    c = words(512, seed=3)
    c[:16] = np.arange(16) * 0x1111

    def permute(x, y, s):
        data = (y << 32 | x).to_bytes(8, "little")
        out = 0
        for i in range(4):
            n = s >> 4 * i & 15
            byte = data[n & 7]
            out |= (255 * (byte >> 7) if n & 8 else byte) << 8 * i
        return out

    check("prmt.b32 %d, %a, %b, %c;", permute, a, b, c, out=np.uint32)
    check("prmt.b32 %d, %a, %a, 0x1010;", lambda x: (x & 0xFFFF) * 0x10001, a, out=np.uint32)


# The tables of the ISA, bytes from most to least significant, for c & 3 = 0..3.
PRMT_MODES = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


@pytest.mark.parametrize("mode", PRMT_MODES)
def test_prmt_modes(mode):
    a, b, c = words(64, seed=1), words(64, seed=2), np.arange(64, dtype=np.uint32)

    def permute(x, y, s):
        data = (y << 32 | x).to_bytes(8, "little")
        return int.from_bytes(bytes(data[int(n)] for n in PRMT_MODES[mode][s & 3]), "big")

    check(f"prmt.b32.{mode} %d, %a, %b, %c;", permute, a, b, c, out=np.uint32)


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_bits(bits):
    a = np.concatenate(
        [words(60, f"u{bits // 8}"), np.array([1 << i for i in range(bits)], f"u{bits // 8}")]
    )
    check(f"popc.b{bits} %d, %a;", lambda x: bin(x).count("1"), a, out=np.uint32)
    check(f"clz.b{bits} %d, %a;", lambda x: bits - x.bit_length(), a, out=np.uint32)
    check(f"brev.b{bits} %d, %a;", lambda x: int(f"{x:0{bits}b}"[::-1], 2), a, out=a.dtype)
    check(f"bfind.u{bits} %d, %a;", lambda x: x.bit_length() - 1, a, out=np.uint32)
    signed = a.view(a.dtype.str.replace("u", "i"))
    check(
        f"bfind.s{bits} %d, %a;",
        lambda x: (x if x >= 0 else ~x).bit_length() - 1,
        signed,
        out=np.uint32,
    )


def mask_by_the_isa(mode, a, b):
    """The ISA's own program."""
    a1, b1 = a & 31, b & 31
    mask0, total = 0xFFFFFFFF << a1 & 0xFFFFFFFF, a1 + b1
    mask1 = 0xFFFFFFFF << total & 0xFFFFFFFF
    beyond = mode == "clamp" and (a >= 32 or b >= 32)
    if mode == "clamp" and a >= 32:
        mask0 = 0
    if total >= 32 or beyond:
        mask1 = 0
    elif b1 == 0:
        mask1 = 0xFFFFFFFF
    return mask0 & ~mask1


def extended_by_the_isa(mode, kind, a, b):
    b1, too_large = b & 31, b >= 32 and mode == "clamp"
    mask = 0 if too_large else 0xFFFFFFFF << b1 & 0xFFFFFFFF
    negative = b1 and not too_large and kind == "s32" and a >> (b1 - 1 & 31) & 1
    return a & ~mask | (mask if negative else 0)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_bit_masks_and_extension(mode):
    small = np.array([*range(0, 70, 3), 31, 32, 255, 256, 2**31, 2**32 - 1], np.uint32)
    a, b = (x.ravel() for x in np.meshgrid(small, small))
    check(f"bmsk.{mode}.b32 %d, %a, %b;", partial(mask_by_the_isa, mode), a, b, out=np.uint32)
    value = words(a.size, seed=9)
    for kind in ("u32", "s32"):
        formula = partial(extended_by_the_isa, mode, kind)
        check(f"szext.{mode}.{kind} %d, %a, %b;", formula, value, b, out=np.uint32)


def test_lop3_with_a_predicate():
    a, b, c = words(64, seed=1), words(64, seed=2), words(64, seed=3)
    a[:32], b[:32] = 0, 0
    for name, combine in (("or", operator.or_), ("and", operator.and_)):
        for last in (0, 1):
            head = f"setp.ne.u32 %q1, {last}, 0;\nlop3.{name}.b32"
            body = f"{head} {{}}|%q0, %a, %b, %c, 0x80, %q1;\n"
            result = a & b & c
            flag = combine(result != 0, bool(last))
            assert (compute(body.format("%d"), a, b, c, out=np.uint32) == result).all()
            for target in ("%r0", "_"):
                got = compute(
                    body.format(target) + "selp.u32 %d, 1, 0, %q0;", a, b, c, out=np.uint32
                )
                assert (got == flag).all()

"""Contract under test: mma.sync of tf32, 8-bit floats, integers of 8, 4 and 1 bits and fp64
multiplies matrices whose fragments ldmatrix loads, which knows nothing of mma."""

from functools import partial

import numpy as np
import pytest

from numba_marlin.emulator import Machine, MachineError
from tests.emulator import ptx_cases
from tests.emulator.number_cases import small_values
from tests.emulator.ptx_cases import launch

RANDOM = np.random.default_rng(5)


def by_ldmatrix(opcode, a, b, c, b_registers):
    """C + A B through the machine: a [16, k] and b [8, k] of 4-byte words' worth of bytes a row, b
    transposed; c [16, 8] of 4 bytes, or of halves."""
    wide = c.itemsize == 4
    pairs = ["{%r20, %r21}", "{%r22, %r23}"] if wide else ["%r20", "%r21"]
    sums, access = ", ".join(pairs).replace("{", "").replace("}", ""), "v2.b32" if wide else "b32"
    places = [f"[%rd5+{64 * c.itemsize * i}]" for i in range(2)]
    words = a.nbytes // 16 // 4  # of a row
    registers = words // 2
    left, right = (
        ", ".join(f"%r{first + i}" for i in range(count))
        for first, count in ((0, registers), (8, b_registers))
    )
    body = (
        f"""
.shared .align 16 .b8 left[{a.nbytes}];
.shared .align 16 .b8 right[{b.nbytes}];
mov.u32 %r40, %t;
"""
        + "".join(
            f"""
add.u32 %r41, %r40, {32 * i};
mul.lo.u32 %r42, %r41, 4;
cvt.u64.u32 %rd3, %r42;
add.u64 %rd4, %rd3, %p{number};
ld.global.b32 %r43, [%rd4];
mov.u32 %r44, {name};
add.u32 %r44, %r44, %r42;
st.shared.b32 [%r44], %r43;
"""
            for number, (name, matrix) in enumerate((("left", a), ("right", b)))
            for i in range(matrix.nbytes // 128)
        )
        + f"""
bar.sync 0;
and.b32 %r41, %t, 15;
shr.u32 %r42, %t, 4;
mov.u32 %r44, left;
mad.lo.u32 %r44, %r41, {4 * words}, %r44;
mad.lo.u32 %r44, %r42, {16 if words > 4 else 0}, %r44;
ldmatrix.sync.aligned.m8n8.x{registers}.shared.b16 {{{left}}}, [%r44];
and.b32 %r41, %t, 7;
shr.u32 %r42, %t, 3;
and.b32 %r42, %r42, 1;
mov.u32 %r44, right;
mad.lo.u32 %r44, %r41, {4 * words}, %r44;
mad.lo.u32 %r44, %r42, {16 if words > 4 else 0}, %r44;
ldmatrix.sync.aligned.m8n8.x{b_registers}.shared.b16 {{{right}}}, [%r44];
shr.u32 %r41, %t, 2;
and.b32 %r42, %t, 3;
mad.lo.u32 %r41, %r41, 4, %r42;
mad.wide.u32 %rd5, %r41, {2 * c.itemsize}, %p2;
"""
        + "".join(f"ld.global.{access} {pair}, {at};\n" for pair, at in zip(pairs, places))
        + f"{opcode} {{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}};\n"
        + "".join(f"st.global.{access} {at}, {pair};\n" for pair, at in zip(pairs, places))
    )
    out = c.copy()
    launch(body, {"a": a, "b": b, "c": out})
    return out


@pytest.mark.parametrize("k", [4, 8])
def test_tf32(k):
    a, b, c = (
        RANDOM.integers(-9, 9, shape).astype(np.float32) for shape in ((16, k), (8, k), (16, 8))
    )
    # bits that tf32 does not have
    noisy = (a.view(np.uint32) | RANDOM.integers(0, 1 << 13, a.shape).astype(np.uint32)).view(
        np.float32
    )
    found = by_ldmatrix(
        f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32", noisy, b, c, k // 4
    )
    assert (found == c + a @ b.T).all()


@pytest.mark.parametrize("k", [16, 32])
@pytest.mark.parametrize("kinds", ["s8.s8", "u8.s8", "s8.u8", "u8.u8"])
def test_bytes(k, kinds):
    left, right = (np.int8 if kind == "s8" else np.uint8 for kind in kinds.split("."))
    a, b, c = (
        RANDOM.integers(0, 256, (16, k)).astype(left),
        RANDOM.integers(0, 256, (8, k)).astype(right),
        RANDOM.integers(-999, 999, (16, 8)).astype(np.int32),
    )
    expected = c + a.astype(np.int64) @ b.astype(np.int64).T
    assert (
        by_ldmatrix(f"mma.sync.aligned.m16n8k{k}.row.col.s32.{kinds}.s32", a, b, c, k // 16)
        == expected
    ).all()


def test_sums_of_bytes_wrap_or_stop():
    a, b, c = (
        np.full((16, 16), 127, np.int8),
        np.full((8, 16), 127, np.int8),
        np.full((16, 8), 2**31 - 1, np.int32),
    )
    assert (
        by_ldmatrix("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32", a, b, c, 1)
        == -(2**31) + 16 * 127 * 127 - 1
    ).all()
    assert (
        by_ldmatrix("mma.sync.aligned.m16n8k16.row.col.satfinite.s32.s8.s8.s32", a, b, c, 1)
        == 2**31 - 1
    ).all()


NIBBLES = {"s4": (-8, 8), "u4": (0, 16)}


def nibbles(shape, kind):
    """(integers, their bytes, the even one in the lower half)"""
    values = RANDOM.integers(*NIBBLES[kind], shape)
    return values, (values[:, ::2] & 15 | (values[:, 1::2] & 15) << 4).astype(np.uint8)


@pytest.mark.parametrize("k", [32, 64])
@pytest.mark.parametrize("kinds", ["s4.s4", "u4.s4", "s4.u4", "u4.u4"])
def test_nibbles(k, kinds):
    (a, left), (b, right) = (
        nibbles(shape, kind) for shape, kind in zip(((16, k), (8, k)), kinds.split("."))
    )
    c = RANDOM.integers(-999, 999, (16, 8)).astype(np.int32)
    opcode = f"mma.sync.aligned.m16n8k{k}.row.col.s32.{kinds}.s32"
    assert (by_ldmatrix(opcode, left, right, c, k // 32) == c + a @ b.T).all()


@pytest.mark.parametrize("k", [128, 256])
@pytest.mark.parametrize("operation", ["and", "xor"])
def test_single_bits(k, operation):
    a, b = (RANDOM.integers(0, 2, (rows, k)).astype(np.uint8) for rows in (16, 8))
    c = RANDOM.integers(-999, 999, (16, 8)).astype(np.int32)
    joined = a[:, None] & b if operation == "and" else a[:, None] ^ b
    found = by_ldmatrix(
        f"mma.sync.aligned.m16n8k{k}.row.col.s32.b1.b1.s32.{operation}.popc",
        *(np.packbits(each, axis=1, bitorder="little") for each in (a, b)),
        c,
        k // 128,
    )
    assert (found == c + joined.sum(axis=2, dtype=np.int64)).all()


@pytest.mark.parametrize("types", ["s8.u8", "s4.u4", "b1.b1"])
def test_eight_rows(types):
    """m8n8: word i of A and of B is in lane i, and C in pairs."""
    kinds = types.split(".")
    words = [RANDOM.integers(0, 1 << 32, (8, 4), np.uint32) for _ in kinds]
    held = [each.view(np.uint8) for each in words]
    if types == "s8.u8":
        a, b, k = held[0].view(np.int8), held[1], 16
    elif types == "s4.u4":
        a, b = (np.stack([each & 15, each >> 4], axis=2).reshape(8, 32) for each in held)
        a, k = (a.astype(int) ^ 8) - 8, 32
    else:
        a, b, k = *(np.unpackbits(each, axis=1) for each in held), 128
    c = RANDOM.integers(-999, 999, (8, 8)).astype(np.int32)
    out, end = c.copy(), "s32.and.popc" if types == "b1.b1" else "s32"
    launch(
        f"""
mad.wide.u32 %rd0, %t, 4, %p0; mad.wide.u32 %rd1, %t, 4, %p1; mad.wide.u32 %rd2, %t, 8, %p2;
ld.global.b32 %r0, [%rd0]; ld.global.b32 %r1, [%rd1]; ld.global.v2.b32 {{%r2, %r3}}, [%rd2];
mma.sync.aligned.m8n8k{k}.row.col.s32.{types}.{end} {{%r2, %r3}}, {{%r0}}, {{%r1}}, {{%r2, %r3}};
st.global.v2.b32 [%rd2], {{%r2, %r3}};""",
        {"a": words[0], "b": words[1], "c": out},
    )
    assert (out == c + a.astype(np.int64) @ b.astype(np.int64).T).all()


def small(shape, kind):
    """(numbers, codes) of -2, -1, 0, 1, 2."""
    values = small_values(kind)
    codes = np.flatnonzero(np.isin(values, (-2, -1, 0, 1, 2)))[RANDOM.integers(0, 6, shape)]
    return values[codes], codes.astype(np.uint8)


@pytest.mark.parametrize("adds_like", ["sm_89", "sm_90"])
@pytest.mark.parametrize("accumulator", [np.float32, np.float16])
@pytest.mark.parametrize("k", [16, 32])
@pytest.mark.parametrize("kinds", ["e4m3.e4m3", "e4m3.e5m2", "e5m2.e4m3", "e5m2.e5m2"])
def test_small_floats(kinds, k, accumulator, adds_like, monkeypatch):
    monkeypatch.setattr(ptx_cases, "Machine", partial(Machine, adds_like=adds_like))
    (a, left), (b, right) = (
        small(shape, kind) for shape, kind in zip(((16, k), (8, k)), kinds.split("."))
    )
    c = RANDOM.integers(-99, 99, (16, 8)).astype(accumulator)
    d = "f32" if accumulator == np.float32 else "f16"
    found = by_ldmatrix(
        f"mma.sync.aligned.m16n8k{k}.row.col.{d}.{kinds}.{d}", left, right, c, k // 16
    )
    assert (found == c + a @ b.T).all()


ONE = 0x38  # of e4m3


@pytest.mark.parametrize(
    "adds_like, places, start, expected",
    [
        # the accumulator is added last, to nearest; an adder of tensor cores would cut off
        ("sm_90", (0, 1, 2), 2.0**24, 2.0**24 + 4),
        # both of the products of halves count
        ("sm_90", (0, 1, 2, 6), -4.0, 0.0),
        # 13 bits below the largest term, cut off
        ("sm_89", (0,), 2.0**13, 2.0**13 + 1),
        ("sm_89", (0,), 2.0**14, 2.0**14),
        ("sm_90", (0,), 2.0**14, 2.0**14 + 1),
    ],
)
def test_small_floats_are_added_as_was_asked_for(adds_like, places, start, expected, monkeypatch):
    """sm_90 as ptxas has it: two products of halves and an addition; sm_89 as published."""
    monkeypatch.setattr(ptx_cases, "Machine", partial(Machine, adds_like=adds_like))
    a, b = np.zeros((16, 32), np.uint8), np.full((8, 32), ONE, np.uint8)
    a[:, list(places)] = ONE
    c = np.full((16, 8), start, np.float32)
    found = by_ldmatrix("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", a, b, c, 2)
    assert (found == expected).all()


def test_tf32_is_cut_off_as_halves_are():
    """Three quarters of the last bit of 1: to nearest they would count."""
    a, b = np.zeros((16, 8), np.float32), np.ones((8, 8), np.float32)
    a[:, 2] = 1.5 * 2.0**-24
    c = np.ones((16, 8), np.float32)
    found = by_ldmatrix("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", a, b, c, 2)
    assert (found == 1).all()


@pytest.mark.parametrize(
    "opcode",
    [
        "mma.sync.aligned.m16n8k32.row.col.satfinite.f32.e4m3.e4m3.f32",
        "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.s8.f32",
        "mma.sync.aligned.m16n8k32.row.col.s32.s4.s8.s32",
        "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32",
        "mma.sync.aligned.m16n8k256.row.col.satfinite.s32.b1.b1.s32.and.popc",
        "mma.sync.aligned.m16n8k32.row.col.f16.e4m3.e4m3.f32",
    ],
)
def test_what_does_not_exist_is_refused(opcode):
    a, b = np.zeros((16, 32), np.uint8), np.zeros((8, 32), np.uint8)
    with pytest.raises(MachineError, match="mma"):
        by_ldmatrix(opcode, a, b, np.zeros((16, 8), np.float32), 2)


@pytest.mark.parametrize("k", [4, 8, 16])
def test_fp64_of_sixteen_rows(k):
    """Element i of A is in row group + 8 (i % 2), column member + 4 (i // 2)."""
    a, b = (
        RANDOM.integers(-9, 9, (16, k)).astype(float),
        RANDOM.integers(-9, 9, (k, 8)).astype(float),
    )
    c = RANDOM.integers(-9, 9, (16, 8)).astype(float)
    lane = np.arange(32)[:, None]
    group, member = lane // 4, lane % 4
    i, j, at = np.arange(k // 2), np.arange(k // 4), np.arange(4)
    held_a = np.ascontiguousarray(a[group + 8 * (i % 2), member + 4 * (i // 2)])
    held_b = np.ascontiguousarray(b[member + 4 * j, group])
    where = group + 8 * (at // 2), 2 * member + at % 2
    held_c = np.ascontiguousarray(c[where])
    names = [
        [f"%fd{first + i}" for i in range(count)] for first, count in ((8, k // 2), (20, k // 4))
    ]
    sums = ", ".join(f"%fd{i}" for i in range(4))
    body = ".reg .f64 %e<32>;\n" + "".join(
        f"mad.wide.u32 %rd0, %t, {8 * count}, %p{number};\n"
        + "".join(f"ld.global.f64 %e{first + i}, [%rd0+{8 * i}];\n" for i in range(count))
        for number, (first, count) in enumerate(((8, k // 2), (20, k // 4), (0, 4)))
    )
    left, right = (", ".join(each) for each in names)
    body += (
        f"mma.sync.aligned.m16n8k{k}.row.col.f64.f64.f64.f64 {{{sums}}}, {{{left}}}, {{{right}}},"
    )
    body = (body + f" {{{sums}}};\n").replace("%fd", "%e")
    body += "".join(f"st.global.f64 [%rd0+{8 * i}], %e{i};\n" for i in range(4))
    launch(body, {"a": held_a, "b": held_b, "c": held_c})
    assert (held_c == (c + a @ b)[where]).all()


def test_fp64():
    a, b, c = (
        RANDOM.standard_normal((8, 4)),
        RANDOM.standard_normal((4, 8)),
        RANDOM.standard_normal((8, 8)),
    )
    out = c.copy()
    launch(
        """
shr.u32 %r0, %t, 2;
and.b32 %r1, %t, 3;
mad.wide.u32 %rd0, %t, 8, %p0;
mad.lo.u32 %r2, %r1, 8, %r0;
mad.wide.u32 %rd1, %r2, 8, %p1;
mad.wide.u32 %rd2, %t, 16, %p2;
ld.global.f64 %fd0, [%rd0];
ld.global.f64 %fd1, [%rd1];
ld.global.v2.f64 {%fd2, %fd3}, [%rd2];
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd2, %fd3}, {%fd0}, {%fd1}, {%fd2, %fd3};
st.global.v2.f64 [%rd2], {%fd2, %fd3};
""",
        {"a": a, "b": b, "c": out},
    )
    assert np.allclose(out, c + a @ b, rtol=1e-15, atol=1e-15)

"""Contract under test: mma.sync of tf32, 8-bit integers and fp64 multiplies matrices whose
fragments ldmatrix loads, which knows nothing of mma."""

import numpy as np
import pytest

from tests.emulator.ptx_cases import launch

RANDOM = np.random.default_rng(5)


def by_ldmatrix(opcode, a, b, c, b_registers):
    """C + A B through the machine: a [16, k] and b [8, k] of 4-byte words' worth of bytes a row, b
    transposed; c [16, 8] of 4 bytes."""
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
mad.wide.u32 %rd5, %r41, 8, %p2;
ld.global.v2.b32 {{%r20, %r21}}, [%rd5];
ld.global.v2.b32 {{%r22, %r23}}, [%rd5+256];
{opcode}
{{%r20, %r21, %r22, %r23}}, {{{left}}}, {{{right}}}, {{%r20, %r21, %r22, %r23}};
st.global.v2.b32 [%rd5], {{%r20, %r21}};
st.global.v2.b32 [%rd5+256], {{%r22, %r23}};
"""
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

"""Contract under test: wmma multiplies in every shape, layout and type that the ISA lists here."""

import numpy as np
import pytest

from tests.emulator.ptx_cases import launch


@pytest.mark.parametrize(
    "shape, a_registers, b_registers", [("m16n16k16", 8, 8), ("m32n8k16", 8, 8), ("m8n32k16", 8, 8)]
)
@pytest.mark.parametrize("layouts", ["row.row", "row.col", "col.row", "col.col"])
def test_wmma_multiplies_in_every_shape_and_layout(shape, a_registers, b_registers, layouts):
    m, n, k = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}[shape]
    random = np.random.default_rng(3)
    a, b, c = (
        random.integers(-4, 5, (m, k)).astype(np.float16),
        random.integers(-4, 5, (k, n)).astype(np.float16),
        random.integers(-9, 9, (m, n)).astype(np.float32),
    )
    stored, layout = [], layouts.split(".")
    for matrix, order in ((a, layout[0]), (b, layout[1])):
        wide = np.full(
            (
                (matrix.shape[0], matrix.shape[1] + 8)
                if order == "row"
                else (matrix.shape[1], matrix.shape[0] + 8)
            ),
            np.nan,
            np.float16,
        )
        wide[:, :-8] = matrix if order == "row" else matrix.T
        stored.append(wide)

    def list_of(count, kind, first):
        return "{" + ", ".join(f"%{kind}{i + first}" for i in range(count)) + "}"

    A, B, C, D = (
        list_of(a_registers, "r", 0),
        list_of(b_registers, "r", 16),
        list_of(8, "f", 0),
        list_of(8, "f", 8),
    )
    body = f"""
wmma.load.a.sync.aligned.{layout[0]}.{shape}.global.f16 {A}, [%p0], {stored[0].shape[1]};
wmma.load.b.sync.aligned.{layout[1]}.{shape}.global.f16 {B}, [%p1], {stored[1].shape[1]};
wmma.load.c.sync.aligned.row.{shape}.global.f32 {C}, [%p2], {n};
wmma.mma.sync.aligned.{layouts}.{shape}.f32.f32 {D}, {A}, {B}, {C};
wmma.store.d.sync.aligned.col.{shape}.global.f32 [%p3], {D};
"""
    out = np.zeros((n, m), np.float32)
    launch(body, {"a": stored[0], "b": stored[1], "c": c, "out": out})
    assert (out.T == a.astype(np.float32) @ b.astype(np.float32) + c).all()


def test_wmma_in_halves_and_bfloats():
    random = np.random.default_rng(4)
    a, b = (
        random.integers(-4, 5, (16, 16)).astype(np.float16),
        random.integers(-4, 5, (16, 16)).astype(np.float16),
    )
    H, G, F, Z = (
        "{" + ", ".join(f"%{kind}{i + first}" for i in range(count)) + "}"
        for kind, first, count in (("r", 0, 8), ("r", 8, 8), ("r", 16, 4), ("f", 0, 8))
    )
    zero = "".join(f"mov.b32 %r{16 + i}, 0;\n" for i in range(4)) + "".join(
        f"mov.b32 %f{i}, 0;\n" for i in range(8)
    )
    out = np.zeros((16, 16), np.float16)
    load = (
        "wmma.load.a.sync.aligned.row.m16n16k16.global.{0} {1},"
        " [%p0];\nwmma.load.b.sync.aligned.row.m16n16k16.global.{0} {2}, [%p1];\n"
    )
    launch(
        zero
        + load.format("f16", H, G)
        + f"wmma.mma.sync.aligned.row.row.m16n16k16.f16.f16 {F}, {H}, {G}, {F};\n"
        f"wmma.store.d.sync.aligned.row.m16n16k16.global.f16 [%p2], {F};",
        {"a": a, "b": b, "out": out},
    )
    assert (out == (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)).all()
    x, y = ((each.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for each in (a, b))
    A, B = ("{" + ", ".join(f"%r{i + first}" for i in range(4)) + "}" for first in (0, 4))
    wide = np.zeros((16, 16), np.float32)
    launch(
        zero
        + load.format("bf16", A, B)
        + f"wmma.mma.sync.aligned.row.row.m16n16k16.f32.bf16.bf16.f32 {Z}, {A}, {B}, {Z};\n"
        f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%p2], {Z};",
        {"a": x, "b": y, "out": wide},
    )
    assert (wide == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_wmma_cuts_terms_off_as_mma_does():
    """Three quarters of the last bit of 1: to nearest they would count."""
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    a[:, 3], b[3] = 1.5 * 2.0**-12, 2.0**-12
    A, B = ("{" + ", ".join(f"%r{i + first}" for i in range(8)) + "}" for first in (0, 8))
    sums = "{" + ", ".join(f"%f{i}" for i in range(8)) + "}"
    out = np.zeros((16, 16), np.float32)
    launch(
        "".join(f"mov.f32 %f{i}, 0f3F800000;\n" for i in range(8))
        + f"""wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {A}, [%p0];
wmma.load.b.sync.aligned.row.m16n16k16.global.f16 {B}, [%p1];
wmma.mma.sync.aligned.row.row.m16n16k16.f32.f32 {sums}, {A}, {B}, {sums};
wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%p2], {sums};""",
        {"a": a, "b": b, "out": out},
    )
    assert (out == 1).all()


@pytest.mark.parametrize("kind, dtype", [("s8", np.int8), ("u8", np.uint8)])
@pytest.mark.parametrize(
    "shape, a_registers, b_registers", [("m16n16k16", 2, 2), ("m32n8k16", 4, 1), ("m8n32k16", 1, 4)]
)
@pytest.mark.parametrize("layouts", ["row.col", "col.row"])
def test_wmma_of_bytes_in_every_shape(shape, a_registers, b_registers, layouts, kind, dtype):
    m, n, k = {"m16n16k16": (16, 16, 16), "m32n8k16": (32, 8, 16), "m8n32k16": (8, 32, 16)}[shape]
    random = np.random.default_rng(5)
    a, b = (random.integers(0, 256, size).astype(np.uint8).view(dtype) for size in ((m, k), (k, n)))
    c = random.integers(-999, 999, (m, n)).astype(np.int32)
    c[0, 0] = 2**31 - 1
    stored = [
        np.ascontiguousarray(matrix if order == "row" else matrix.T)
        for matrix, order in zip((a, b), layouts.split("."))
    ]
    A, B, C = (
        "{" + ", ".join(f"%r{i + first}" for i in range(count)) + "}"
        for first, count in ((0, a_registers), (8, b_registers), (16, 8))
    )
    exact = c + a.astype(np.int64) @ b.astype(np.int64)
    for end, expected in (
        ("", exact.astype(np.int32)),
        (".satfinite", np.clip(exact, -(2**31), 2**31 - 1)),
    ):
        first, second = layouts.split(".")
        out = np.zeros((m, n), np.int32)
        launch(
            f"""wmma.load.a.sync.aligned.{first}.{shape}.global.{kind} {A}, [%p0];
wmma.load.b.sync.aligned.{second}.{shape}.global.{kind} {B}, [%p1];
wmma.load.c.sync.aligned.row.{shape}.global.s32 {C}, [%p2];
wmma.mma.sync.aligned.{layouts}.{shape}.s32.{kind}.{kind}.s32{end} {C}, {A}, {B}, {C};
wmma.store.d.sync.aligned.row.{shape}.global.s32 [%p3], {C};""",
            {"a": stored[0], "b": stored[1], "c": c, "out": out},
        )
        assert (out == expected).all()


def test_wmma_of_tf32():
    random = np.random.default_rng(6)
    a, b = (random.integers(-64, 65, shape).astype(np.float32) for shape in ((16, 8), (8, 16)))
    c = random.integers(-9, 9, (16, 16)).astype(np.float32)
    A, B = "{%r0, %r1, %r2, %r3}", "{%r4, %r5, %r6, %r7}"
    C, D = ("{" + ", ".join(f"%f{8 * i + j}" for j in range(8)) + "}" for i in range(2))
    body = f"""
wmma.load.a.sync.aligned.row.m16n16k8.global.tf32 {A}, [%p0], 8;
wmma.load.b.sync.aligned.col.m16n16k8.global.tf32 {B}, [%p1], 8;
wmma.load.c.sync.aligned.row.m16n16k8.global.f32 {C}, [%p2], 16;
wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32 {D}, {A}, {B}, {C};
wmma.store.d.sync.aligned.row.m16n16k8.global.f32 [%p3], {D}, 16;
"""
    out = np.zeros((16, 16), np.float32)
    columns = np.ascontiguousarray(b.T)
    launch(body, {"a": a, "b": columns, "c": c, "out": out})
    assert (out == a @ b + c).all()
    a.view(np.uint32)[:] |= 0x1FFF  # bits that tf32 does not have
    launch(body, {"a": a, "b": columns, "c": c, "out": out})
    assert (out == (a.view(np.uint32) & ~np.uint32(0x1FFF)).view(np.float32) @ b + c).all()


@pytest.mark.parametrize("layouts", ["row.col", "col.row"])
def test_wmma_of_doubles(layouts):
    random, (left, right) = np.random.default_rng(7), layouts.split(".")
    a, b, c = (
        random.integers(-(1 << 20), 1 << 20, shape).astype(np.float64)
        for shape in ((8, 4), (4, 8), (8, 8))
    )
    body = f"""
wmma.load.a.sync.aligned.{left}.m8n8k4.global.f64 {{%fd0}}, [%p0], {4 if left == "row" else 8};
wmma.load.b.sync.aligned.{right}.m8n8k4.global.f64 {{%fd1}}, [%p1], {8 if right == "row" else 4};
wmma.load.c.sync.aligned.row.m8n8k4.global.f64 {{%fd2, %fd3}}, [%p2], 8;
wmma.mma.sync.aligned.{layouts}.m8n8k4.f64.f64.f64.f64.rn {{%fd4, %fd5}}, {{%fd0}}, {{%fd1}},
{{%fd2, %fd3}};
wmma.store.d.sync.aligned.row.m8n8k4.global.f64 [%p3], {{%fd4, %fd5}}, 8;
"""
    out = np.zeros((8, 8))
    stored = [
        np.ascontiguousarray(each if layout == "row" else each.T)
        for each, layout in ((a, left), (b, right))
    ]
    launch(body, {"a": stored[0], "b": stored[1], "c": c, "out": out})
    assert (out == a @ b + c).all()

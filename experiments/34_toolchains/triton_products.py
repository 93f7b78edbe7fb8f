"""Triton cases of matrix products: types, layouts of the operands, warps, pipelines, epilogues."""

import numpy as np
import triton
import triton.language as tl
from recording import bound, poisoned
from triton_kit import BF16, E4M3, E5M2, TARGETS, Tiles, case, launch, name_of

from numba_marlin.reference import small_sums


@triton.jit
def matmul(
    a, b, c, M, N, K, am, ak, bk, bn,
    P: tl.constexpr, OUT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns, depth = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=OUT)
    for k in range(0, K, BK):
        left = tl.load(
            a + rows[:, None] * am + (k + depth)[None, :] * ak,
            mask=(rows[:, None] < M) & ((k + depth)[None, :] < K),
            other=0.0,
        )
        right = tl.load(
            b + (k + depth)[:, None] * bk + columns[None, :] * bn,
            mask=((k + depth)[:, None] < K) & (columns[None, :] < N),
            other=0.0,
        )
        total = tl.dot(left, right, total, input_precision=P, out_dtype=OUT)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), mask=mask)


def product_of(a, b):
    """(a @ b, of the magnitudes), in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a @ b, np.abs(a) @ np.abs(b)


def eight_bits(a, b):
    """How much further sums of products of 8-bit floats may be from the exact ones, which wgmma
    adds with 13 bits; a [m, k], b [n, k]. Of other types 0."""
    if name_of(a.dtype) not in KINDS:
        return 0
    kinds = KINDS[name_of(a.dtype)], KINDS[name_of(b.dtype)]
    return small_sums.error_bound(a.astype(np.float64), b.astype(np.float64), kinds)


# relative error of each product of a pair, beside its fp32 sum: tf32 keeps 10 bits of each
PRECISIONS = {"tf32": 2**-9, "tf32x3": 2**-20, "bf16x3": 2**-14, "bf16x6": 2**-20, "ieee": 0}
KINDS = {"fp8e4nv": "e4m3", "fp8e5": "e5m2"}


def add_product(
    dtype, out=None, layout="nn", shape=(96, 80, 96), tile=(32, 32, 32), precision=None,
    warps=4, stages=3, targets=TARGETS,
):  # fmt: skip
    out = out or dtype
    title = f"matmul {name_of(dtype)}, {layout}, tile {'x'.join(map(str, tile))}"
    title += f", {precision}" * bool(precision) + f", out {name_of(out)}" * (out != dtype)
    title += f", {warps} warps" * (warps != 4) + f", {stages} stages" * (stages != 3)

    @case(title, targets)
    def fill(case, values):
        m, n, k = shape
        a = values.of(dtype, *((m, k) if layout[0] == "n" else (k, m)))
        b = values.of(dtype, *((k, n) if layout[1] == "n" else (n, k)))
        c = poisoned((m, n), out)
        steps_a = (k, 1) if layout[0] == "n" else (1, m)
        steps_b = (n, 1) if layout[1] == "n" else (1, k)
        kinds = {"i": tl.int32, "f": tl.float64 if name_of(dtype) == "fp64" else tl.float32}
        launch(
            case, matmul, (-(-m // tile[0]), -(-n // tile[1])), a, b, c, m, n, k,
            *steps_a, *steps_b, P=precision, OUT=kinds.get(np.dtype(dtype).kind, tl.float32),
            BM=tile[0], BN=tile[1], BK=tile[2], num_warps=warps, num_stages=stages,
        )  # fmt: skip
        a, b = (a if layout[0] == "n" else a.T), (b if layout[1] == "n" else b.T)
        if np.dtype(dtype).kind == "i":
            return case.expect(c, (a.astype(np.int64) @ b).astype(out))
        value, magnitude = product_of(a, b)
        if name_of(dtype) == "fp64":
            return case.expect(c, value, k * 2.0**-52 * magnitude)
        more = PRECISIONS.get(precision or ("tf32" if np.dtype(dtype) == np.float32 else ""), 0)
        more = more * magnitude + eight_bits(a, b.T)
        return case.expect(c, value, bound(value, out, 0, k, magnitude) + more)


for dtype in (np.float16, BF16):
    for layout in ("nn", "nt", "tn", "tt"):
        add_product(dtype, layout=layout)
for dtype in (np.float16, np.float32, np.int8):
    add_product(dtype, np.int32 if dtype == np.int8 else np.float32, tile=(64, 64, 32))
for precision in ("tf32", "tf32x3", "bf16x3", "bf16x6", "ieee"):
    add_product(np.float32, precision=precision)
add_product(np.float32, layout="tt", precision="tf32")
add_product(np.float64, tile=(32, 32, 16), layout="nt")
add_product(np.int8, np.int32, layout="nt")
add_product(np.int8, np.int32, layout="tn")
add_product(E5M2, np.float32, layout="nt")
for dtype in (E4M3, E5M2):
    for tile in ((32, 32, 64), (64, 64, 64)):
        add_product(dtype, np.float32, layout="nt", tile=tile, targets=("sm_90",))
add_product(E4M3, np.float32, layout="nn", tile=(64, 64, 64), targets=("sm_90",))
for warps, tile in ((1, (16, 16, 16)), (2, (32, 16, 32)), (8, (64, 64, 32)), (8, (128, 64, 32))):
    add_product(np.float16, tile=tile, warps=warps)
for stages in (1, 2, 4):
    add_product(np.float16, tile=(64, 64, 32), stages=stages, shape=(64, 64, 192))
for tile in ((64, 128, 64), (128, 128, 64)):  # wgmma on sm_90
    for layout in ("nn", "nt"):
        add_product(np.float16, layout=layout, tile=tile, shape=(128, 128, 128), warps=8)
add_product(BF16, layout="tn", tile=(64, 64, 64), shape=(64, 128, 128))
add_product(np.int8, np.int32, layout="nt", tile=(64, 64, 64), shape=(64, 64, 128))
add_product(np.float16, np.float32, shape=(50, 70, 90))


@triton.jit
def sums_in_half(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rows[:, None] * K + depth[None, :])
    right = tl.load(b + depth[:, None] * N + columns[None, :])
    total = tl.dot(left, right, out_dtype=tl.float16)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@case("dot with sums in fp16")
def _(case, values):
    a, b = values.normal(64, 32, dtype=np.float16), values.normal(32, 64, dtype=np.float16)
    c = poisoned((64, 64), np.float16)
    launch(case, sums_in_half, 1, a, b, c, M=64, N=64, K=32)
    value, magnitude = product_of(a, b)
    case.expect(c, value, bound(value, np.float16) + 4 * 2**-10 * magnitude)


@triton.jit
def left_in_registers(a, b, c, scale, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rows[:, None] * K + depth[None, :]).to(tl.float16) * scale.to(tl.float16)
    right = tl.load(b + depth[:, None] * N + columns[None, :])
    tl.store(c + rows[:, None] * N + columns[None, :], tl.dot(left, right))


@case("mixed product, int8 by fp16, converted in registers")
def _(case, values):
    a, b = values.of(np.int8, 64, 64), values.normal(64, 64, dtype=np.float16)
    c = poisoned((64, 64), np.float32)
    launch(case, left_in_registers, 1, a, b, c, 0.5, M=64, N=64, K=64)
    value, magnitude = product_of(a * 0.5, b)
    case.expect(c, value, bound(value, np.float32, 0, 64, magnitude))


@triton.jit
def chained(a, b, d, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, L: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    last = tl.arange(0, L)
    left = tl.load(a + rows[:, None] * K + depth[None, :])
    right = tl.load(b + depth[:, None] * N + columns[None, :])
    middle = tl.dot(left, right).to(tl.float16)
    more = tl.load(d + columns[:, None] * L + last[None, :])
    tl.store(c + rows[:, None] * L + last[None, :], tl.dot(middle, more))


@case("two products in a chain")
def _(case, values):
    a, b, d = (values.normal(64, 64, dtype=np.float16, scale=0.3) for _ in range(3))
    c = poisoned((64, 64), np.float32)
    launch(case, chained, 1, a, b, d, c, M=64, N=64, K=64, L=64)
    middle, middles = product_of(a, b)
    value, _ = product_of(middle, d)
    _, magnitude = product_of(middles, d)
    rounded = np.abs(middle) @ np.abs(d.astype(np.float64)) * 2**-11
    case.expect(c, value, bound(value, np.float32, 0, 128, magnitude) + rounded)


@triton.jit
def batched(a, b, c, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    part = tl.arange(0, B)[:, None, None]
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + part * M * K + rows[None, :, None] * K + depth[None, None, :])
    right = tl.load(b + part * K * N + depth[None, :, None] * N + columns[None, None, :])
    at = part * M * N + rows[None, :, None] * N + columns[None, None, :]
    tl.store(c + at, tl.dot(left, right))


@case("batched dot of three dimensions")
def _(case, values):
    a, b = (values.normal(4, 16, 16, dtype=np.float16) for _ in range(2))
    c = poisoned((4, 16, 16), np.float32)
    launch(case, batched, 1, a, b, c, B=4, M=16, N=16, K=16)
    value, magnitude = product_of(a, b)
    case.expect(c, value, bound(value, np.float32, 0, 16, magnitude))


@triton.jit
def split_k(a, b, c, K, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rows, columns = tl.arange(0, BM), tl.arange(0, N)
    depth = tl.program_id(0) * BK + tl.arange(0, BK)
    left = tl.load(a + rows[:, None] * K + depth[None, :])
    right = tl.load(b + depth[:, None] * N + columns[None, :])
    at = rows[:, None] * N + columns[None, :]
    tl.atomic_add(c + at, tl.dot(left, right), sem="relaxed")


@case("split-K with atomic_add")
def _(case, values):
    a, b = values.normal(32, 128, dtype=np.float16), values.normal(128, 32, dtype=np.float16)
    c = np.zeros((32, 32), np.float32)
    launch(case, split_k, 4, a, b, c, 128, N=32, BM=32, BK=32)
    value, magnitude = product_of(a, b)
    case.expect(c, value, bound(value, np.float32, 0, 132, magnitude))


@triton.jit
def persistent(a, b, c, M, N, K, B: tl.constexpr):
    tiles_n = tl.cdiv(N, B)
    tiles = tl.cdiv(M, B) * tiles_n
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        rows, columns = tile // tiles_n * B + tl.arange(0, B), tile % tiles_n * B + tl.arange(0, B)
        total = tl.zeros((B, B), tl.float32)
        for k in range(0, K, B):
            depth = k + tl.arange(0, B)
            left = tl.load(a + rows[:, None] * K + depth[None, :])
            total = tl.dot(left, tl.load(b + depth[:, None] * N + columns[None, :]), total)
        tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@case("persistent matmul")
def _(case, values):
    a, b = values.normal(128, 128, dtype=np.float16), values.normal(128, 128, dtype=np.float16)
    c = poisoned((128, 128), np.float16)
    launch(case, persistent, 3, a, b, c, 128, 128, 128, B=64)
    value, magnitude = product_of(a, b)
    case.expect(c, value, bound(value, np.float16, 0, 128, magnitude))


@triton.jit
def by_descriptors(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(tl.float16))


def add_descriptors(dtype, tile, warps, stages, ctas=1):
    title = f"matmul by host's descriptors, {name_of(dtype)}, tile {'x'.join(map(str, tile))}"
    title += f", {warps} warps, {stages} stages" + ", clusters of 2" * (ctas > 1)

    @case(title, ("sm_90",))
    def fill(case, values):
        m, n, k = 128, 128, 256
        a, b = values.of(dtype, m, k), values.of(dtype, n, k)
        c = poisoned((m, n), np.float16)
        tiles = Tiles(a, [tile[0], tile[2]]), Tiles(b, [tile[1], tile[2]]), Tiles(c, list(tile[:2]))
        launch(
            case, by_descriptors, (m // tile[0], n // tile[1]), *tiles, k,
            BM=tile[0], BN=tile[1], BK=tile[2], num_warps=warps, num_stages=stages, num_ctas=ctas,
        )  # fmt: skip
        value, magnitude = product_of(a, b.T)
        case.expect(c, value, bound(value, np.float16, 0, k, magnitude) + eight_bits(a, b))


add_descriptors(np.float16, (64, 64, 64), 4, 3)
add_descriptors(BF16, (128, 64, 64), 8, 2)
add_descriptors(np.float16, (128, 128, 64), 8, 3)
add_descriptors(E4M3, (64, 64, 128), 4, 3)
add_descriptors(np.float16, (128, 64, 64), 4, 3, ctas=2)


@triton.jit
def device_descriptors(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        total = tl.dot(left.load([row, k]), right.load([column, k]).T, total)
    out.store([row, column], total.to(tl.float16))


@case("matmul by the kernel's own descriptors")
def _(case, values):
    a, b = values.normal(100, 128, dtype=np.float16), values.normal(72, 128, dtype=np.float16)
    c = poisoned((100, 72), np.float16)
    launch(case, device_descriptors, (2, 2), a, b, c, 100, 72, 128, BM=64, BN=64, BK=64)
    value, magnitude = product_of(a, b.T)
    case.expect(c, value, bound(value, np.float16, 0, 128, magnitude))


@triton.jit
def specialised(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        total = tl.dot(a.load([row, k]), b.load([column, k]).T, total)
    c.store([row, column], total.to(tl.float16))


@case("matmul with warp_specialize", ("sm_90",))
def _(case, values):
    a, b = values.normal(64, 256, dtype=np.float16), values.normal(64, 256, dtype=np.float16)
    c = poisoned((64, 64), np.float16)
    tiles = Tiles(a, [64, 64]), Tiles(b, [64, 64]), Tiles(c, [64, 64])
    launch(case, specialised, 1, *tiles, 64, 64, 256, BM=64, BN=64, BK=64)
    value, magnitude = product_of(a, b.T)
    case.expect(c, value, bound(value, np.float16, 0, 256, magnitude))

"""Triton cases of memory: atomics, locks, gathers, shapes, descriptors, inline PTX."""

import numpy as np
import triton
import triton.language as tl
from recording import bound, poisoned
from triton_kit import BF16, Tiles, case, launch, name_of


@triton.jit
def copy_strided(x, y, M, N, sm, sn, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    value = tl.load(x + rows[:, None] * sm + columns[None, :] * sn, mask=mask)
    tl.store(y + rows[:, None] * N + columns[None, :], value, mask=mask)


def add_transpose(dtype):
    @case(f"transpose, {name_of(dtype)}")
    def fill(case, values):
        x, y = values.of(dtype, 70, 50), poisoned((50, 70), dtype)
        launch(case, copy_strided, (2, 3), x, y, 50, 70, 1, 50, BM=32, BN=32)
        case.expect(y, x.T)


for dtype in (np.float32, np.float16, np.int8, np.float64):
    add_transpose(dtype)

ATOMICS = {
    "add": (np.add, (np.int32, np.float32, np.float16, np.float64, np.int64, BF16)),
    "max": (np.maximum, (np.int32, np.float32, np.uint32)),
    "min": (np.minimum, (np.int32, np.float32)),
    "and": (np.bitwise_and, (np.int32,)),
    "or": (np.bitwise_or, (np.int32,)),
    "xor": (np.bitwise_xor, (np.int32, np.int64)),
}


@triton.jit
def atomic(x, y, W: tl.constexpr, OP: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at)
    if OP == "add":
        tl.atomic_add(y + at % W, value)
    if OP == "max":
        tl.atomic_max(y + at % W, value)
    if OP == "min":
        tl.atomic_min(y + at % W, value)
    if OP == "and":
        tl.atomic_and(y + at % W, value)
    if OP == "or":
        tl.atomic_or(y + at % W, value)
    if OP == "xor":
        tl.atomic_xor(y + at % W, value)


def add_atomic(op, function, dtype, targets):
    @case(f"atomic_{op}, {name_of(dtype)}", targets)
    def fill(case, values):
        x, y = values.of(dtype, 4, 128), np.ones(64, dtype)
        launch(case, atomic, 4, x, y, W=64, OP=op, B=128)
        rows = x.reshape(8, 64)
        floats = np.dtype(dtype).kind not in "iu"
        rows = rows.astype(np.float64) if floats else rows
        value = function.reduce(np.concatenate([np.ones((1, 64), rows.dtype), rows]))
        if op == "add" and floats:  # each addition is rounded to the type
            rounding = {"bfloat16": 2**-8, "float16": 2**-11}.get(np.dtype(dtype).name, 2**-24)
            magnitude = np.abs(rows).sum(0) + 1
            case.expect(y, value, 8 * rounding * magnitude)
        else:
            case.expect(y, value)


for op, (function, dtypes) in ATOMICS.items():
    for dtype in dtypes:
        add_atomic(op, function, dtype, ("sm_90",) if dtype == BF16 else ("sm_80", "sm_90"))


@triton.jit
def tickets(counter, y):
    mine = tl.atomic_add(counter, 1)
    tl.store(y + mine, tl.program_id(0))


@case("tickets: a block's place is what atomic_add gives")
def _(case, values):
    counter, y, seen = np.zeros(1, np.int32), poisoned(16, np.int32), np.arange(16)
    launch(case, tickets, 16, counter, y)
    case.expect(counter, [16])
    case.expect(y, seen)  # in the order in which the machine runs blocks


@triton.jit
def locked(lock, x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + tl.program_id(0) * B + at)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y + at, tl.load(y + at) * 2 + value)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@case("a lock of atomic_cas and atomic_xchg")
def _(case, values):
    lock, x, y = np.zeros(1, np.int32), np.ones((6, 128), np.float32), np.zeros(128, np.float32)
    launch(case, locked, 6, lock, x, y, B=128)
    case.expect(y, np.full(128, 63.0))
    case.expect(lock, [0])


@triton.jit
def last_block(x, parts, counter, y, n, B: tl.constexpr, BLOCKS: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(parts + tl.program_id(0), tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1, sem="acq_rel") == BLOCKS - 1:
        tl.store(y, tl.sum(tl.load(parts + tl.arange(0, BLOCKS)), 0))


@case("a sum that the last block finishes")
def _(case, values):
    x, parts = values.normal(8 * 256), poisoned(8, np.float32)
    counter, y = np.zeros(1, np.int32), poisoned(1, np.float32)
    launch(case, last_block, 8, x, parts, counter, y, x.size, B=256, BLOCKS=8)
    value = x.astype(np.float64).sum(keepdims=True)
    case.expect(y, value, bound(value, np.float32, 0, 64, np.abs(x).sum()))


@triton.jit
def one_pass_scan(x, parts, flags, y, B: tl.constexpr):
    block = tl.program_id(0)
    value = tl.load(x + block * B + tl.arange(0, B))
    before = tl.sum(value * 0, 0)
    if block > 0:
        while tl.atomic_add(flags + block - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(parts + block - 1, volatile=True)
    tl.store(parts + block, before + tl.sum(value, 0))
    tl.debug_barrier()
    tl.atomic_xchg(flags + block, 1, sem="release")
    tl.store(y + block * B + tl.arange(0, B), tl.cumsum(value, 0) + before)


@case("a scan over blocks that wait for each other")
def _(case, values):
    x, y = values.integers(-9, 10, 6 * 256), poisoned(6 * 256, np.int32)
    launch(case, one_pass_scan, 6, x, np.zeros(6, np.int32), np.zeros(6, np.int32), y, B=256)
    case.expect(y, np.cumsum(x))


@triton.jit
def gather_rows(table, index, y, WIDTH: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    rows, columns = tl.load(index + at), tl.arange(0, WIDTH)
    value = tl.load(table + rows[:, None] * WIDTH + columns[None, :])
    tl.store(y + at[:, None] * WIDTH + columns[None, :], value)


@case("embedding: rows by index")
def _(case, values):
    table, index = (
        values.normal(40, 32, dtype=np.float16),
        values.integers(0, 40, 64, dtype=np.int64),
    )
    y = poisoned((64, 32), np.float16)
    launch(case, gather_rows, 2, table, index, y, WIDTH=32, B=32)
    case.expect(y, table[index])


@triton.jit
def gather_in_tile(x, index, y, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(y + at, tl.gather(tl.load(x + at), tl.load(index + at), AXIS))


def add_gather(axis):
    @case(f"gather within a tile along axis {axis}")
    def fill(case, values):
        x, y = values.normal(32, 64), poisoned((32, 64), np.float32)
        index = values.integers(0, x.shape[axis], 32, 64)
        launch(case, gather_in_tile, 1, x, index, y, AXIS=axis, M=32, N=64)
        case.expect(y, np.take_along_axis(x, index, axis))


for axis in (0, 1):
    add_gather(axis)


@triton.jit
def permuted(x, y, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    i, j, k = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    value = tl.load(x + i[:, None, None] * B * C + j[None, :, None] * C + k[None, None, :])
    value = tl.permute(value, (2, 0, 1))
    at = k[:, None, None] * A * B + i[None, :, None] * B + j[None, None, :]
    tl.store(y + at, value)


@triton.jit
def reshaped(x, y, N: tl.constexpr):
    value = tl.reshape(tl.load(x + tl.arange(0, N)), (N // 16, 16))
    value = tl.ravel(tl.trans(value))
    tl.store(y + tl.arange(0, N), value)


@triton.jit
def joined(x, w, y, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(w + at)
    tl.store(y + tl.arange(0, 2 * N), tl.interleave(a, b))


@triton.jit
def split_pairs(x, y, N: tl.constexpr):
    even, odd = tl.split(tl.reshape(tl.load(x + tl.arange(0, 2 * N)), (N, 2)))
    tl.store(y + tl.arange(0, N), even - odd)


@triton.jit
def flipped(x, y, N: tl.constexpr):
    tl.store(y + tl.arange(0, N), tl.flip(tl.load(x + tl.arange(0, N))))


@triton.jit
def spread(x, y, M: tl.constexpr, N: tl.constexpr):
    value = tl.broadcast_to(tl.load(x + tl.arange(0, M))[:, None], (M, N))
    tl.store(y + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], value)


@triton.jit
def concatenated(x, w, y, N: tl.constexpr):
    at = tl.arange(0, N)
    value = tl.cat(tl.load(x + at), tl.load(w + at), can_reorder=True)
    tl.store(y, tl.sum(value, 0))


@case("permute of three dimensions")
def _(case, values):
    x, y = values.normal(8, 16, 4), poisoned((4, 8, 16), np.float32)
    launch(case, permuted, 1, x, y, A=8, B=16, C=4)
    case.expect(y, x.transpose(2, 0, 1))


@case("reshape, trans, ravel")
def _(case, values):
    x, y = values.of(np.int32, 512), poisoned(512, np.int32)
    launch(case, reshaped, 1, x, y, N=512)
    case.expect(y, x.reshape(32, 16).T)


@case("interleave")
def _(case, values):
    x, w, y = values.normal(256), values.normal(256), poisoned(512, np.float32)
    launch(case, joined, 1, x, w, y, N=256)
    case.expect(y, np.stack([x, w], 1))


@case("split")
def _(case, values):
    x, y = values.normal(512), poisoned(256, np.float32)
    launch(case, split_pairs, 1, x, y, N=256)
    case.expect(y, x[::2] - x[1::2])


@case("flip")
def _(case, values):
    x, y = values.normal(256), poisoned(256, np.float32)
    launch(case, flipped, 1, x, y, N=256)
    case.expect(y, x[::-1])


@case("broadcast_to")
def _(case, values):
    x, y = values.normal(32), poisoned((32, 64), np.float32)
    launch(case, spread, 1, x, y, M=32, N=64)
    case.expect(y, np.repeat(x, 64))


@case("cat")
def _(case, values):
    x, w, y = values.of(np.int32, 256), values.of(np.int32, 256), poisoned(1, np.int32)
    launch(case, concatenated, 1, x, w, y, N=256)
    case.expect(y, [x.sum() + w.sum()])


@triton.jit
def inline(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.inline_asm_elementwise(
        "brev.b32 $0, $1;", "=r,r", [tl.load(x + at)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(y + at, value)


@case("inline_asm_elementwise")
def _(case, values):
    x, y = values.integers(0, 2**31, 256), poisoned(256, np.int32)
    launch(case, inline, 1, x, y, B=256)
    bits = np.unpackbits(x.view(np.uint8), bitorder="little").reshape(-1, 32)[:, ::-1]
    case.expect(y, np.packbits(bits, bitorder="little").view(np.int32))


@triton.jit
def hinted(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, at < n, cache_modifier=".cg")
    value += tl.load(x + at, at < n, eviction_policy="evict_first")
    tl.store(y + at, value, at < n, eviction_policy="evict_last")
    tl.store(y + n + at, value, at < n, cache_modifier=".cs")


@case("hints to caches")
def _(case, values):
    x, y = values.normal(1000), poisoned((2, 1000), np.float32)
    launch(case, hinted, 2, x, y, 1000, B=512)
    case.expect(y, np.stack([x + x] * 2))


@triton.jit
def tile_to_tile(x, y, DY: tl.constexpr, DX: tl.constexpr):
    y.store([DY, DX], x.load([DY, DX]) + 1)


@triton.jit
def tile_before(x, y):
    y.store([0, 0], x.load([-8, -16]))  # what lies outside is zero


@triton.jit
def tile_sum(x, y):
    y.atomic_add([0, 0], x.load([tl.program_id(0) * 32, 0]))


def add_tiles(dtype, at, block):
    @case(f"descriptor load and store, {name_of(dtype)}, {block[0]}x{block[1]} at {at}", ("sm_90",))
    def fill(case, values):
        x, y = values.of(dtype, 60, 80), poisoned((60, 80), dtype)
        launch(case, tile_to_tile, 1, Tiles(x, block), Tiles(y, block), DY=at[0], DX=at[1])
        value = y.copy()  # what lies outside of the tensor is not written
        rows, columns = (slice(max(start, 0), start + size) for start, size in zip(at, block))
        value[rows, columns] = (x + np.ones((), dtype))[rows, columns]
        case.expect(y, value, 2**-7 * np.abs(value.astype(np.float64)) if dtype == BF16 else 0)


for dtype, at, block in (
    (np.float32, (0, 0), [32, 32]),
    (np.float16, (40, 48), [32, 64]),
    (BF16, (48, 64), [16, 32]),
    (np.int32, (32, 0), [64, 16]),
):
    add_tiles(dtype, at, block)


@case("descriptor load that begins before its tensor", ("sm_90",))
def _(case, values):
    x, y = values.normal(60, 80), poisoned((16, 32), np.float32)
    launch(case, tile_before, 1, Tiles(x, [16, 32]), Tiles(y, [16, 32]))
    case.expect(y, np.pad(x, ((8, 0), (16, 0)))[:16, :32])


@case("descriptor atomic_add", ("sm_90",))
def _(case, values):
    x, y = values.of(np.float32, 128, 32), np.ones((32, 32), np.float32)
    launch(case, tile_sum, 4, Tiles(x, [32, 32]), Tiles(y, [32, 32]))
    value = 1 + x.astype(np.float64).reshape(4, 32, 32).sum(0)
    case.expect(y, value, bound(value, np.float32, 0, 5, np.abs(x).reshape(4, 32, 32).sum(0) + 1))

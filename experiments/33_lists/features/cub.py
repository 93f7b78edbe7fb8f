"""CUB's primitives of a block and of a warp, each algorithm that it can be told to use."""

import numpy as np

from features.feature import F, Feature, I, X, of

FEATURES: list[Feature] = []
ITEMS = 4
V = ((np.arange(64 * ITEMS) * 2654435761 >> 7) % 1000 - 300).astype(np.int32)  # of 64 threads
ROWS = V.reshape(64, ITEMS)
WARPS = X.reshape(2, 32)
EDGES = np.diff(np.trunc(np.sort(V) / 100)) != 0
ORDER = np.argsort(V, kind="stable")
LOAD = "int v[4]; for (int j = 0; j < 4; j++) v[j] = x[4 * i + j]; "
STORE = " for (int j = 0; j < 4; j++) y[4 * i + j] = v[j];"


def using(kind: str, room: str = "t") -> str:
    return f"using B = cub::{kind}; __shared__ typename B::TempStorage {room}; "


def headers(folder: str, names: str) -> str:
    return "".join(f"#include <cub/{folder}/{name}.cuh>\n" for name in names.split())


def block(name: str, kind: str, body: str, wanted, names: str, given=V, before: str = "") -> None:
    feature = of("block", FEATURES)
    before = headers("block", names) + before
    feature(name, using(kind) + body, np.asarray(wanted), given=given, before=before)


def warp(name: str, kind: str, body: str, wanted, names: str, given=X) -> None:
    feature = of("warp", FEATURES)
    body = f"{using(kind, 'rooms[64]')}auto &t = rooms[i / 32]; {body}"
    feature(name, body, np.asarray(wanted), given=given, before=headers("warp", names))


for algorithm in ("RAKING_COMMUTATIVE_ONLY", "RAKING", "WARP_REDUCTIONS"):
    block(
        f"BlockReduce: sum, {algorithm}",
        f"BlockReduce<int, 64, cub::BLOCK_REDUCE_{algorithm}>",
        "int s = B(t).Sum(x[i]); if (!i) y[0] = s;",
        [int(X.sum())],
        "block_reduce",
        given=X,
    )
block(
    "BlockReduce: maximum by a lambda, of some threads",
    "BlockReduce<float, 64>",
    "float s = B(t).Reduce(x[i], [](float a, float b) { return a > b ? a : b; }, 40);"
    " if (!i) y[0] = s;",
    np.array([F[:40].max()], np.float32),
    "block_reduce",
    given=F,
)
block(
    "BlockReduce: sum of double, four of a thread",
    "BlockReduce<double, 64>",
    "double v[4]; for (int j = 0; j < 4; j++) v[j] = x[4 * i + j]; double s = B(t).Sum(v);"
    " if (!i) y[0] = s;",
    np.array([V.sum()], np.float64),
    "block_reduce",
    given=V.astype(np.float64),
)
for algorithm in ("RAKING", "RAKING_MEMOIZE", "WARP_SCANS"):
    block(
        f"BlockScan: inclusive sum, {algorithm}",
        f"BlockScan<int, 64, cub::BLOCK_SCAN_{algorithm}>",
        LOAD + "B(t).InclusiveSum(v, v);" + STORE,
        np.cumsum(V).astype(np.int32),
        "block_scan",
    )
block(
    "BlockScan: exclusive sum and total",
    "BlockScan<int, 64>",
    LOAD
    + "int s; B(t).ExclusiveSum(v, v, s); for (int j = 0; j < 4; j++) y[4 * i + j] = v[j] + s;",
    (np.cumsum(V) - V + V.sum()).astype(np.int32),
    "block_scan",
)
block(
    "BlockScan: running maximum, from a first value",
    "BlockScan<int, 64>",
    "int v; B(t).ExclusiveScan(x[i], v, -7, [](int a, int b) { return a > b ? a : b; }); y[i] = v;",
    np.maximum.accumulate(np.concatenate([[-7], X[:-1]])).astype(np.int32),
    "block_scan",
    given=X,
)
block(
    "BlockScan: prefix by a callback, over tiles",
    "BlockScan<int, 64>",
    "P p{100}; for (int j = 0; j < 4; j++) { int v = x[64 * j + i]; B(t).ExclusiveSum(v, v, p);"
    " __syncthreads(); y[64 * j + i] = v; }",
    (np.cumsum(V) - V + 100).astype(np.int32),
    "block_scan",
    before="struct P { int sum; __device__ int operator()(int all)"
    " { int was = sum; sum += all; return was; } };",
)
block(
    "BlockRadixSort: keys",
    "BlockRadixSort<int, 64, 4>",
    LOAD + "B(t).Sort(v);" + STORE,
    np.sort(V),
    "block_radix_sort",
)
block(
    "BlockRadixSort: keys, descending, striped",
    "BlockRadixSort<int, 64, 4>",
    LOAD
    + "B(t).SortDescendingBlockedToStriped(v); for (int j = 0; j < 4; j++) y[64 * j + i] = v[j];",
    np.sort(V)[::-1],
    "block_radix_sort",
)
block(
    "BlockRadixSort: pairs, stable",
    "BlockRadixSort<int, 64, 4, int>",
    LOAD + "int n[4]; for (int j = 0; j < 4; j++) n[j] = 4 * i + j; B(t).Sort(v, n);"
    " for (int j = 0; j < 4; j++) y[4 * i + j] = n[j];",
    ORDER.astype(np.int32),
    "block_radix_sort",
)
block(
    "BlockRadixSort: float, some bits",
    "BlockRadixSort<float, 64, 1>",
    "float v[1] = {x[i]}; B(t).Sort(v); y[i] = v[0];",
    np.sort(F),
    "block_radix_sort",
    given=F,
)
for algorithm in ("SORT", "ATOMIC"):
    block(
        f"BlockHistogram, {algorithm}",
        f"BlockHistogram<unsigned char, 64, 4, 64, cub::BLOCK_HISTO_{algorithm}>",
        "__shared__ int h[64]; unsigned char v[4]; for (int j = 0; j < 4; j++) v[j] = x[4 * i + j];"
        " B(t).Histogram(v, h); __syncthreads(); y[i] = h[i];",
        np.bincount(V % 64, minlength=64).astype(np.int32),
        "block_histogram",
        given=(V % 64).astype(np.uint8),
    )
for algorithm in ("DIRECT", "STRIPED", "VECTORIZE", "TRANSPOSE", "WARP_TRANSPOSE"):
    block(
        f"BlockLoad, BlockStore, {algorithm}",
        f"BlockLoad<int, 64, 4, cub::BLOCK_LOAD_{algorithm}>",
        f"using S = cub::BlockStore<int, 64, 4, cub::BLOCK_STORE_{algorithm}>;"
        " __shared__ typename S::TempStorage u; int v[4]; B(t).Load(x, v);"
        " for (int j = 0; j < 4; j++) v[j] = v[j] * 2 + j; S(u).Store(y, v);",
        2 * V
        + (np.arange(256) // 64 if algorithm == "STRIPED" else np.arange(256) % 4).astype(np.int32),
        "block_load block_store",
    )
block(
    "BlockExchange: blocked to striped and back, scatter",
    "BlockExchange<int, 64, 4>",
    LOAD + "B(t).BlockedToStriped(v, v); __syncthreads();"
    " for (int j = 0; j < 4; j++) v[j] += 64 * j + i;"
    " B(t).StripedToBlocked(v, v); __syncthreads(); int r[4]; for (int j = 0; j < 4; j++)"
    " r[j] = 255 - (4 * i + j); B(t).ScatterToBlocked(v, v, r);" + STORE,
    (V + np.arange(256, dtype=np.int32))[::-1],
    "block_exchange",
)
block(
    "BlockDiscontinuity: heads and tails",
    "BlockDiscontinuity<int, 64>",
    LOAD
    + "int h[4], l[4]; for (int j = 0; j < 4; j++) v[j] /= 100; B(t).FlagHeadsAndTails(h, l, v,"
    " cuda::std::not_equal_to<>{}); for (int j = 0; j < 4; j++) y[4 * i + j] = h[j] * 2 + l[j];",
    np.append(True, EDGES) * 2 + np.append(EDGES, True) * np.int32(1),
    "block_discontinuity",
    given=np.sort(V),
    before="#include <cuda/std/functional>",
)
block(
    "BlockAdjacentDifference: to the left",
    "BlockAdjacentDifference<int, 64>",
    LOAD + "B(t).SubtractLeft(v, v, [](int a, int b) { return a - b; });" + STORE,
    np.concatenate([V[:1], np.diff(V)]),
    "block_adjacent_difference",
)
block(
    "BlockShuffle: offset, rotate",
    "BlockShuffle<int, 64>",
    "int v = -1; B(t).Offset(x[i], v, 1); __syncthreads(); int w; B(t).Rotate(x[i], w, 3);"
    " y[i] = v * 1000 + w;",
    np.concatenate([X[1:], [-1]]) * 1000 + np.roll(X, -3),
    "block_shuffle",
    given=X,
)
block(
    "BlockMergeSort: by a lambda",
    "BlockMergeSort<int, 64, 4>",
    LOAD + "B(t).Sort(v, [](int a, int b) { return a > b; });" + STORE,
    np.sort(V)[::-1],
    "block_merge_sort",
)
block(
    "BlockRunLengthDecode",
    "BlockRunLengthDecode<int, 64, 1, 4>",
    "int v[1] = {x[i]}; int n[1] = {i % 5 + 1}; unsigned all; B d(t, v, n, all);"
    " int w[4];"
    " for (unsigned from = 0; from < all; from += 256) { d.RunLengthDecode(w, from);"
    " for (int j = 0; j < 4; j++) if (from + 4 * i + j < all) y[from + 4 * i + j] = w[j]; }",
    np.repeat(X, I % 5 + 1),
    "block_run_length_decode",
    given=X,
)
for width in (32, 8):
    warp(
        f"WarpReduce: sum and maximum, of {width}",
        f"WarpReduce<int, {width}>",
        f"using W = B; __shared__ typename W::TempStorage u[8]; auto &r = u[i / {width}];"
        " int s = W(r).Sum(x[i]); __syncwarp(); int m = W(r).Reduce(x[i], [](int a, int b) {"
        f" return a > b ? a : b; }}); if (i % {width} == 0) y[i / {width}] = s * 100 + m;",
        (X.reshape(-1, width).sum(axis=1) * 100 + X.reshape(-1, width).max(axis=1)).astype(
            np.int32
        ),
        "warp_reduce",
    )
warp(
    "WarpReduce: segments by head flags",
    "WarpReduce<int>",
    "int s = B(t).HeadSegmentedSum(x[i], i % 8 == 0); y[i] = i % 8 ? 0 : s;",
    np.where(I % 8, 0, np.repeat(X.reshape(8, 8).sum(axis=1), 8)).astype(np.int32),
    "warp_reduce",
)
warp(
    "WarpScan: inclusive sum, broadcast",
    "WarpScan<int>",
    "int v, w; B(t).InclusiveSum(x[i], v); __syncwarp(); w = B(t).Broadcast(v, 31); y[i] = v + w;",
    (np.cumsum(WARPS, axis=1) + WARPS.sum(axis=1, keepdims=True)).ravel().astype(np.int32),
    "warp_scan",
)
warp(
    "WarpScan: exclusive, by a lambda, of double",
    "WarpScan<double>",
    "double v; B(t).ExclusiveScan(x[i] * 1.0, v, -99.0, [](double a, double b) { return a > b"
    " ? a : b; });"
    " y[i] = int(v);",
    np.maximum.accumulate(np.concatenate([[[-99], [-99]], WARPS[:, :-1]], axis=1), axis=1)
    .ravel()
    .astype(np.int32),
    "warp_scan",
)
warp(
    "WarpMergeSort: two of a thread",
    "WarpMergeSort<int, 2>",
    "int v[2] = {x[2 * i], x[2 * i + 1]}; B(t).Sort(v, [](int a, int b) { return a < b; });"
    " y[2 * i] = v[0]; y[2 * i + 1] = v[1];",
    np.sort(V[:128].reshape(2, 64), axis=1).ravel(),
    "warp_merge_sort",
    given=V[:128],
)
warp(
    "WarpExchange: blocked to striped",
    "WarpExchange<int, 2>",
    "int v[2] = {x[2 * i], x[2 * i + 1]}; B(t).BlockedToStriped(v, v);"
    " y[i / 32 * 64 + i % 32] = v[0]; y[i / 32 * 64 + 32 + i % 32] = v[1];",
    V[:128],
    "warp_exchange",
    given=V[:128],
)

"""Warps: shuffles, votes, matches, reductions, and what lanes apart do."""

import numpy as np

from features.feature import D, Feature, I, X, of

FEATURES: list[Feature] = []
feature = of("warps", FEATURES)
LANE = I % 32
ROWS = X.reshape(2, 32)
BITS = np.uint64(1) << np.arange(32, dtype=np.uint64)
ALL = "0xffffffffu"


def ballot(which) -> np.ndarray:
    """Of each warp, to all of its lanes."""
    return np.repeat((which.reshape(2, 32) * BITS).sum(axis=1), 32).astype(np.uint32).view(np.int32)


def spread(rows) -> np.ndarray:
    return np.repeat(rows, 32).astype(np.int32)


feature(
    "__shfl_sync",
    f"y[i] = __shfl_sync({ALL}, x[i], (i * 7) % 32);",
    X[(LANE * 7 + 0 * I) % 32 + I // 32 * 32],
)
feature(
    "__shfl_up_sync, of 8 lanes",
    f"y[i] = __shfl_up_sync({ALL}, x[i], 3, 8);",
    np.where(I % 8 < 3, X, np.roll(X, 3)),
)
feature(
    "__shfl_down_sync",
    f"y[i] = __shfl_down_sync({ALL}, x[i], 1);",
    np.where(LANE == 31, X, np.roll(X, -1)),
)
feature("__shfl_xor_sync, a double", f"y[i] = __shfl_xor_sync({ALL}, x[i], 5);", D[I ^ 5], given=D)
feature(
    "sum by shuffles",
    f"int s = x[i]; for (int d = 16; d; d /= 2) s += __shfl_xor_sync({ALL}, s, d); y[i] = s;",
    spread(ROWS.sum(axis=1)),
)
feature("__ballot_sync", f"y[i] = __ballot_sync({ALL}, x[i] > 0);", ballot(X > 0))
feature(
    "__all_sync, __any_sync",
    f"y[i] = __all_sync({ALL}, i < 32) * 2 + __any_sync({ALL}, i == 40);",
    np.where(I < 32, 2, 1),
)
feature(
    "__activemask, lanes apart",
    "if (i & 1) y[i] = __popc(__activemask()); else y[i] = -1;",
    np.where(I & 1, 16, -1),
)
feature(
    "__match_any_sync",
    f"y[i] = __match_any_sync({ALL}, i % 4);",
    [
        int(sum(1 << j for j in range(32) if j % 4 == n % 4)) - (1 << 32) * (n % 4 == 3)
        for n in range(64)
    ],
)
feature(
    "__match_all_sync",
    f"int p; unsigned m = __match_all_sync({ALL}, i / 32, &p); y[i] = p + (m == {ALL});",
    0 * I + 2,
)
feature(
    "__reduce_add_sync, _min_, _max_",
    f"y[i] = __reduce_add_sync({ALL}, x[i]) + __reduce_min_sync({ALL}, x[i]) * 1000 +"
    f" __reduce_max_sync({ALL}, x[i]) * 100000;",
    spread(ROWS.sum(axis=1) + ROWS.min(axis=1) * 1000 + ROWS.max(axis=1) * 100000),
)
feature(
    "__reduce_and_sync, _or_, _xor_",
    f"unsigned v = x[i]; y[i] = (__reduce_and_sync({ALL}, v | 1) & 15) +"
    f" (__reduce_or_sync({ALL}, v & 7) << 4) + ((__reduce_xor_sync({ALL}, v) & 255) << 8);",
    spread(
        (np.bitwise_and.reduce(ROWS | 1, axis=1) & 15)
        + (np.bitwise_or.reduce(ROWS & 7, axis=1) << 4)
        + ((np.bitwise_xor.reduce(ROWS, axis=1) & 255) << 8)
    ),
)
feature(
    "__syncwarp, through shared memory",
    "__shared__ int s[64]; s[i] = x[i]; __syncwarp(); y[i] = s[i ^ 1];",
    X[I ^ 1],
)
feature(
    "a shuffle of half a warp, lanes apart",
    "if (i % 32 < 16) y[i] = __shfl_xor_sync(0xffffu, x[i], 1);"
    " else y[i] = __shfl_xor_sync(0xffff0000u, x[i], 2);",
    np.where(LANE < 16, X[I ^ 1], X[I ^ 2]),
)
feature(
    "%laneid, %lanemask_lt",
    'unsigned l, m; asm("mov.u32 %0, %%laneid;" : "=r"(l));'
    ' asm("mov.u32 %0, %%lanemask_lt;" : "=r"(m)); y[i] = l * 100 + __popc(m);',
    LANE * 101,
)
feature(
    "compaction by ballot and popc",
    f"unsigned m = __ballot_sync({ALL}, x[i] > 0), below = (1u << (i % 32)) - 1; y[i] = -99;"
    f" __syncwarp(); if (x[i] > 0) y[i / 32 * 32 + __popc(m & below)] = x[i];",
    np.concatenate(
        [np.concatenate([row[row > 0], np.full((row <= 0).sum(), -99, np.int32)]) for row in ROWS]
    ),
)
feature(
    "loop of as many turns as the lane says",
    "int s = 0; for (int j = 0; j < i % 13; j++) s += x[(i + j) % 64]; y[i] = s;",
    [int(sum(X[(n + j) % 64] for j in range(n % 13))) for n in range(64)],
)
feature(
    "early return of some lanes",
    "if (i % 32 >= 20) { y[i] = -1; return; } y[i] = __reduce_add_sync(0xfffffu, 1);",
    np.where(LANE >= 20, -1, 20),
)
feature(
    "lock of lanes of one warp",
    "bool done = false; while (!done) { if (atomicCAS(&lock, 0, 1) == 0) { __threadfence();"
    " total += x[i]; __threadfence(); atomicExch(&lock, 0); done = true; } } __syncthreads();"
    " y[i] = total;",
    0 * I + X.sum(),
    before="__device__ int lock; __device__ volatile int total;",
)
feature(
    "__nanosleep, clock64, globaltimer",
    "long long a = clock64(); __nanosleep(10); unsigned long long t;"
    ' asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); y[i] = clock64() >= a;',
    0 * I + 1,
)

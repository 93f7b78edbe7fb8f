"""Cooperative groups, asynchronous copies, matrix instructions."""

import numpy as np

from features.feature import F, Feature, I, X, of

FEATURES: list[Feature] = []
feature = of("cooperation", FEATURES)
GROUPS = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
REDUCE = "#include <cooperative_groups/reduce.h>\n" + GROUPS
SCAN = "#include <cooperative_groups/scan.h>\n" + GROUPS
COPY = "#include <cooperative_groups/memcpy_async.h>\n" + GROUPS
WARPS = X.reshape(2, 32)
A = (np.arange(256) % 7 - 3).astype(np.float16)
SQUARE = A.reshape(16, 16).astype(np.float32)


def of_warps(values) -> np.ndarray:
    return np.repeat(values, 32).astype(np.int32)


feature(
    "this_thread_block: sync, rank, size",
    "auto b = cg::this_thread_block(); __shared__ int s[64]; s[b.thread_rank()] = x[i]; b.sync();"
    " y[i] = s[b.size() - 1 - b.thread_rank()];",
    X[::-1],
    before=GROUPS,
)
feature(
    "tiled_partition<8>: shfl, ballot, any",
    "auto t = cg::tiled_partition<8>(cg::this_thread_block()); y[i] = t.shfl_xor(x[i], 3) * 1000"
    " + t.ballot(i % 2) + t.any(i == 9) * 500 + t.meta_group_rank();",
    (X[I ^ 3] * 1000 + 0xAA + np.where(I // 8 == 1, 500, 0) + I // 8).astype(np.int32),
    before=GROUPS,
)
feature(
    "tiled_partition of a size known late",
    "auto t = cg::tiled_partition(cg::this_thread_block(), 16); y[i] = t.thread_rank() + t.size();",
    I % 16 + 16,
    before=GROUPS,
)
feature(
    "tiled_partition<64>, of two warps",
    "__shared__ cg::block_tile_memory<64> room; auto b = cg::this_thread_block(room);"
    " auto t = cg::tiled_partition<64>(b); t.sync(); y[i] = t.thread_rank() + x[i];",
    X + I,
    before=GROUPS,
)
feature(
    "coalesced_threads, lanes apart",
    "y[i] = -1; if (x[i] > 0) { auto g = cg::coalesced_threads();"
    " y[i] = g.size() * 100 + g.thread_rank(); }",
    np.where(
        WARPS > 0,
        (WARPS > 0).sum(axis=1, keepdims=True) * 100 + np.cumsum(WARPS > 0, axis=1) - 1,
        -1,
    )
    .ravel()
    .astype(np.int32),
    before=GROUPS,
)
feature(
    "labeled_partition, binary_partition",
    "auto t = cg::tiled_partition<32>(cg::this_thread_block());"
    " auto g = cg::labeled_partition(t, i % 3);"
    " auto h = cg::binary_partition(t, i % 32 < 5); y[i] = g.size() * 100 + h.size();",
    [
        100 * sum(j % 3 == n % 3 for j in range(n - n % 32, n - n % 32 + 32))
        + (5 if n % 32 < 5 else 27)
        for n in range(64)
    ],
    before=GROUPS,
)
feature(
    "reduce",
    "auto t = cg::tiled_partition<32>(cg::this_thread_block());"
    " y[i] = cg::reduce(t, x[i], cg::plus<int>()) * 100 + cg::reduce(t, x[i], cg::greater<int>());",
    of_warps(WARPS.sum(axis=1) * 100 + WARPS.max(axis=1)),
    before=REDUCE,
)
feature(
    "inclusive_scan, exclusive_scan",
    "auto t = cg::tiled_partition<32>(cg::this_thread_block());"
    " y[i] = cg::inclusive_scan(t, x[i]) * 1000 + cg::exclusive_scan(t, x[i]);",
    (np.cumsum(WARPS, axis=1) * 1000 + np.cumsum(WARPS, axis=1) - WARPS).ravel().astype(np.int32),
    before=SCAN,
)
feature(
    "invoke_one, elect",
    "auto t = cg::tiled_partition<32>(cg::this_thread_block()); __shared__ int n[2];"
    " cg::invoke_one(t, [&] { n[i / 32] = 7; }); t.sync(); y[i] = n[i / 32];",
    0 * I + 7,
    before=GROUPS,
)
feature(
    "cg::memcpy_async and wait",
    "__shared__ int s[64]; auto b = cg::this_thread_block(); cg::memcpy_async(b, s, x, sizeof s);"
    " cg::wait(b); y[i] = s[63 - i];",
    X[::-1],
    before=COPY,
)
feature(
    "__pipeline_memcpy_async, two stages",
    "__shared__ int s[2][64]; for (int j = 0; j < 2; j++) {"
    " __pipeline_memcpy_async(&s[j][i], x + (i + j) % 64, 4); __pipeline_commit(); }"
    " __pipeline_wait_prior(1); int v = s[0][i]; __pipeline_wait_prior(0);"
    " y[i] = v * 100 + s[1][i];",
    X * 100 + np.roll(X, -1),
    before="#include <cuda_pipeline.h>",
)
feature(
    "barrier: __mbarrier_t",
    "__shared__ __mbarrier_t b; __shared__ int s[64]; if (!i) __mbarrier_init(&b, 64);"
    " __syncthreads(); s[i] = x[i]; auto t = __mbarrier_arrive(&b);"
    " while (!__mbarrier_test_wait(&b, t)); y[i] = s[63 - i];",
    X[::-1],
    before="#include <cuda_awbarrier_primitives.h>",
)
feature(
    "wmma: 16 x 16 x 16, __half to float",
    "using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, __half, row_major> a;"
    " fragment<matrix_b, 16, 16, 16, __half, col_major> b;"
    " fragment<accumulator, 16, 16, 16, float> c;"
    " fill_fragment(c, 1.0f); load_matrix_sync(a, x, 16); load_matrix_sync(b, x, 16);"
    " mma_sync(c, a, b, c); store_matrix_sync(y, c, 16, mem_row_major);",
    (SQUARE @ SQUARE.T + 1).ravel(),
    given=A,
    before="#include <mma.h>",
    threads=32,
)
feature(
    "wmma: 16 x 16 x 16, signed char to int",
    "using namespace nvcuda::wmma; fragment<matrix_a, 16, 16, 16, signed char, row_major> a;"
    " fragment<matrix_b, 16, 16, 16, signed char, row_major> b;"
    " fragment<accumulator, 16, 16, 16, int> c; fill_fragment(c, 0); load_matrix_sync(a, x, 16);"
    " load_matrix_sync(b, x, 16); mma_sync(c, a, b, c);"
    " store_matrix_sync(y, c, 16, mem_col_major);",
    (SQUARE @ SQUARE).T.ravel().astype(np.int32),
    given=A.astype(np.int8),
    before="#include <mma.h>",
    threads=32,
)
feature(
    "mma.sync m8n8k4 of double, by inline PTX",
    'double c[2] = {}; asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3},'
    ' {%0, %1};" : "+d"(c[0]), "+d"(c[1]) : "d"(x[i]), "d"(x[i])); y[2 * i] = c[0];'
    " y[2 * i + 1] = c[1];",
    (F[:32].reshape(8, 4).astype(np.float64) @ F[:32].reshape(8, 4).T).ravel(),
    given=F[:32].astype(np.float64),
    threads=32,
)
feature(
    "cudaGridDependencySynchronize, by inline PTX",
    'asm volatile("griddepcontrol.wait;" ::: "memory"); y[i] = x[i];'
    ' asm volatile("griddepcontrol.launch_dependents;");',
    X,
)

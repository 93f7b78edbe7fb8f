"""libcu++: cuda:: and cuda::std::."""

import numpy as np

from features.feature import F, Feature, I, P, X, of

FEATURES: list[Feature] = []
feature = of("libcu++", FEATURES)


def header(*names: str) -> str:
    return "\n".join(f"#include <cuda/{name}>" for name in names)


feature(
    "cuda::atomic_ref",
    "cuda::atomic_ref<int, cuda::thread_scope_device> a(s); a.fetch_add(x[i],"
    " cuda::memory_order_relaxed); __syncthreads(); y[i] = a.load();",
    0 * I + X.sum(),
    before=header("atomic") + "\n__device__ int s;",
)
feature(
    "cuda::atomic in shared memory: max, exchange, compare",
    "__shared__ cuda::atomic<int, cuda::thread_scope_block> a, b; if (!i) { a = -99; b = 0; }"
    " __syncthreads(); a.fetch_max(x[i]); int zero = 0;"
    " if (b.compare_exchange_strong(zero, 7)) b++;"
    " __syncthreads(); y[i] = a + 100 * b;",
    0 * I + X.max() + 800,
    before=header("atomic"),
)
feature(
    "cuda::atomic of float and of 64 bits",
    "static_assert(sizeof(a) == 4); a.fetch_add(x[i]); b.fetch_or(1ull << i); __syncthreads();"
    " y[i] = a.load() + (b.load() == ~0ull);",
    np.full(64, F.sum() + 1, np.float32),
    given=F,
    before=header("atomic")
    + "\n__device__ cuda::atomic<float> a; __device__ cuda::atomic<unsigned long long> b;",
)
feature(
    "cuda::atomic: wait and notify, between blocks",
    "if (blockIdx.x) { if (!threadIdx.x) { d = 41; f.store(1, cuda::memory_order_release);"
    " f.notify_all(); } y[i] = 0; } else { f.wait(0, cuda::memory_order_acquire); y[i] = d + 1; }",
    np.where(I < 32, 42, 0).astype(np.int32),
    before=header("atomic")
    + "\n__device__ int d; __device__ cuda::atomic<int, cuda::thread_scope_device> f;",
    threads=32,
    blocks=2,
)
feature(
    "cuda::atomic_thread_fence, message passing",
    "volatile int *flag = &f; if (i < 32) { if (!i) { d = 5;"
    " cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_block); *flag = 1; }"
    " y[i] = 5; } else { while (!*flag); cuda::atomic_thread_fence(cuda::memory_order_acquire,"
    " cuda::thread_scope_block); y[i] = d; }",
    0 * I + 5,
    before=header("atomic") + "\n__device__ int d, f;",
)
feature(
    "cuda::barrier: arrive, wait, arrive_and_wait",
    "__shared__ cuda::barrier<cuda::thread_scope_block> b; if (!i) init(&b, 64); __syncthreads();"
    " __shared__ int s[64]; s[i] = x[i]; auto t = b.arrive(); b.wait(std::move(t));"
    " y[i] = s[63 - i];"
    " b.arrive_and_wait(); s[i] = y[i];",
    X[::-1],
    before=header("barrier", "std/utility") + "\nnamespace std { using cuda::std::move; }",
)
feature(
    "cuda::memcpy_async with a cuda::barrier",
    "__shared__ cuda::barrier<cuda::thread_scope_block> b; __shared__ alignas(16) int s[64];"
    " auto g = cooperative_groups::this_thread_block(); if (!i) init(&b, 64); g.sync();"
    " cuda::memcpy_async(g, s, x, cuda::aligned_size_t<16>(sizeof s), b); b.arrive_and_wait();"
    " y[i] = s[63 - i];",
    X[::-1],
    before=header("barrier") + "\n#include <cooperative_groups.h>",
)
feature(
    "cuda::pipeline, of one thread",
    "__shared__ int s[2][64]; auto p = cuda::make_pipeline(); int v = 0;"
    " for (int j = 0; j < 2; j++) { p.producer_acquire();"
    " cuda::memcpy_async(&s[j][i], x + (i + j) % 64, sizeof(int), p); p.producer_commit(); }"
    " for (int j = 0; j < 2; j++) { p.consumer_wait(); v = v * 100 + s[j][i];"
    " p.consumer_release(); }"
    " y[i] = v;",
    X * 100 + np.roll(X, -1),
    before=header("pipeline"),
)
feature(
    "cuda::pipeline of a block, producers and consumers",
    "__shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;"
    " __shared__ int s[2][32];"
    " auto g = cooperative_groups::this_thread_block(); bool producer = i < 32;"
    " auto p = cuda::make_pipeline(g, &state, producer ? cuda::pipeline_role::producer"
    " : cuda::pipeline_role::consumer); for (int j = 0; j < 4; j++) if (producer) {"
    " p.producer_acquire(); cuda::memcpy_async(&s[j % 2][i], x + i + j, sizeof(int), p);"
    " p.producer_commit(); y[i] = 0; } else { p.consumer_wait();"
    " y[i] = (j ? y[i] : 0) + s[j % 2][i - 32];"
    " p.consumer_release(); } p.quit();",
    np.concatenate([0 * I[:32], sum(X[j : j + 32] for j in range(4))]).astype(np.int32),
    before=header("pipeline") + "\n#include <cooperative_groups.h>",
)
feature(
    "cuda::latch, cuda::counting_semaphore",
    "using L = cuda::latch<cuda::thread_scope_block>; __shared__ int n;"
    " using S = cuda::counting_semaphore<cuda::thread_scope_block, 1>;"
    " __shared__ alignas(8) char rooms[2][64]; L &l = *(L *)rooms[0]; S &m = *(S *)rooms[1];"
    " if (!i) { new (&l) L(64); new (&m) S(1); n = 0; } __syncthreads();"
    " if (i % 32 == 0) { m.acquire(); n += 5; m.release(); } l.arrive_and_wait(); y[i] = n;",
    0 * I + 10,
    before=header("latch", "semaphore"),
)
feature(
    "cuda::ptx: mbarrier_init, cp_async_bulk",
    "__shared__ alignas(16) int s[64]; __shared__ unsigned long long b; namespace ptx = cuda::ptx;"
    " if (!i) { ptx::mbarrier_init(&b, 1); ptx::fence_proxy_async(ptx::space_shared);"
    " ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, s, x, 256, &b);"
    " ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &b,"
    " 256); }"
    " __syncthreads(); while (!ptx::mbarrier_try_wait_parity(&b, 0)); y[i] = s[63 - i];",
    X[::-1],
    before=header("ptx"),
)
feature(
    "cuda::std::array, tuple, pair, optional",
    "cuda::std::array<int, 3> a{x[i], i, 5}; auto t = cuda::std::make_tuple(a[0],"
    " cuda::std::make_pair(a[1],"
    " 2)); cuda::std::optional<int> o; if (i & 1) o = 9; auto [p, q] = t;"
    " y[i] = p + q.first * 10 + o.value_or(1);",
    X + 10 * I + np.where(I & 1, 9, 1),
    before=header("std/array", "std/tuple", "std/optional", "std/utility"),
)
feature(
    "cuda::std::variant, visit",
    "cuda::std::variant<int, float> v = x[i]; if (i & 1) v = 0.5f;"
    " y[i] = cuda::std::visit([](auto a) { return int(a * 2); }, v);",
    np.where(I & 1, 1, 2 * X),
    before=header("std/variant"),
)
feature(
    "cuda::std::complex",
    "cuda::std::complex<double> a(x[i], 1), b = a * a / cuda::std::complex<double>(0, 2);"
    " y[i] = b.real() * 16 + b.imag();",
    16 * F.astype(np.float64) + (1 - F.astype(np.float64) ** 2) / 2,
    given=F.astype(np.float64),
    before=header("std/complex"),
)
feature(
    "cuda::std::span, mdspan, accumulate",
    "cuda::std::span<const int> s(x, 64); cuda::std::mdspan m(x, cuda::std::dextents<int,"
    " 2>(8, 8));"
    " y[i] = cuda::std::accumulate(s.begin(), s.begin() + i, 0) + m(i % 8, i / 8);",
    (np.cumsum(X) - X + X.reshape(8, 8).T.ravel()).astype(np.int32),
    before=header("std/span", "std/mdspan", "std/numeric"),
)
feature(
    "cuda::std::bit: popcount, countl_zero, bit_cast, rotl",
    "unsigned v = x[i]; y[i] = cuda::std::popcount(v) + cuda::std::countl_zero(v) * 100"
    " + (cuda::std::rotl(v, 3) ^ cuda::std::bit_cast<unsigned>(x[i]));",
    np.array(
        [
            v.bit_count() + 100 * (32 - v.bit_length()) + (((v << 3 | v >> 29) % 2**32) ^ v)
            for v in map(int, X.view(np.uint32))
        ],
        np.uint32,
    ),
    before=header("std/bit"),
)
feature(
    "cuda::std: sort, lower_bound, min, max, clamp",
    "int a[8]; for (int j = 0; j < 8; j++) a[j] = x[(i + j * 8) % 64];"
    " for (int j = 1; j < 8; j++) for (int l = j; l && a[l - 1] > a[l];"
    " l--) cuda::std::swap(a[l], a[l - 1]);"
    " y[i] = a[0] * 10 + (cuda::std::lower_bound(a, a + 8, 0) - a) + cuda::std::clamp(x[i],"
    " -3, 3);",
    np.array(
        [
            10 * min(r) + sum(v < 0 for v in r) + max(-3, min(3, r[0]))
            for r in ([int(X[(n + 8 * j) % 64]) for j in range(8)] for n in range(64))
        ],
        np.int32,
    ),
    before=header("std/algorithm", "std/utility"),
)
feature(
    "cuda::std: type_traits, limits, numbers",
    "static_assert(cuda::std::is_same_v<cuda::std::remove_cv_t<const int>, int>);"
    " y[i] = cuda::std::numeric_limits<int>::max() - x[i] + cuda::std::is_floating_point_v<float>;",
    (2**31 - X.astype(np.int64)).astype(np.uint32).view(np.int32),
    before=header("std/type_traits", "std/limits"),
)
feature(
    "cuda::std: functional, invoke, expected",
    "auto f = cuda::std::plus<int>{}; cuda::std::expected<int, int> e = x[i]; if (x[i] < 0)"
    " e = cuda::std::unexpected(1); y[i] = cuda::std::invoke(f, e.value_or(0), i) + (e ? 0 :"
    " e.error());",
    np.where(X < 0, I + 1, X + I),
    before=header("std/functional", "std/expected"),
)
feature(
    "cuda::std: sqrt, fma, isfinite of cmath",
    "y[i] = cuda::std::fma(cuda::std::sqrt(x[i]), 2.0f, 1.0f) + cuda::std::isfinite(x[i]);",
    np.sqrt(P) * np.float32(2) + np.float32(1) + np.float32(1),
    given=P,
    before=header("std/cmath"),
)
feature(
    "cuda::std::chrono",
    "using namespace cuda::std::chrono; auto d = milliseconds(x[i]) + seconds(1);"
    " y[i] = duration_cast<microseconds>(d).count() +"
    " (system_clock::now().time_since_epoch().count() > 0);",
    (X + 1000) * 1000 + 1,
    before=header("std/chrono"),
)
feature(
    "cuda::fast_mod_div, ceil_div, round_up",
    "cuda::fast_mod_div<int> d(7); y[i] = (i / d) * 100 + cuda::ceil_div(i, 5) +"
    " cuda::round_up(i, 4);",
    I // 7 * 100 + (I + 4) // 5 + (I + 3) // 4 * 4,
    before=header("cmath"),
)

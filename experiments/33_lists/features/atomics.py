"""Atomics of each type and kind, in global and in shared memory. Sums are of numbers whose order
does not matter."""

import numpy as np

from features.feature import F, Feature, H, I, P, X, of

FEATURES: list[Feature] = []
feature = of("atomics", FEATURES)
SUM = "__syncthreads(); y[i] = "
WIDE = X.astype(np.int64) << 33


def total(values, dtype) -> np.ndarray:
    return np.full(64, np.sum(values, dtype=dtype), dtype)


feature(
    "atomicAdd, int",
    f"atomicAdd(&s, x[i]); {SUM}s;",
    total(X, np.int32),
    before="__device__ int s;",
)
feature(
    "atomicAdd, what it gives back",
    "int v = atomicAdd(&s, 1); atomicAdd(&seen[v], 1); __syncthreads(); y[i] = seen[i];",
    0 * I + 1,
    before="__device__ int s, seen[64];",
)
feature(
    "atomicAdd, unsigned long long",
    f"atomicAdd(&s, (unsigned long long)x[i]); {SUM}(long long)s;",
    total(WIDE, np.int64),
    given=WIDE,
    before="__device__ unsigned long long s;",
)
feature(
    "atomicAdd, float",
    f"atomicAdd(&s, x[i]); {SUM}s;",
    total(F, np.float32),
    given=F,
    before="__device__ float s;",
)
feature(
    "atomicAdd, double",
    f"atomicAdd(&s, (double)x[i]); {SUM}s;",
    total(F, np.float64),
    given=F,
    before="__device__ double s;",
)
feature(
    "atomicAdd, __half",
    f"atomicAdd(&s, x[i]); {SUM}s;",
    total(H, np.float16),
    given=H,
    before="__device__ __half s;",
)
feature(
    "atomicAdd, __half2",
    "atomicAdd(&s, __halves2half2(x[i], x[63 - i])); __syncthreads(); y[i] = i & 1 ? s.x : s.y;",
    total(H, np.float16),
    given=H,
    before="#include <cuda_fp16.h>\n__device__ __half2 s;",
)
feature(
    "atomicAdd, __nv_bfloat16",
    f"atomicAdd(&s, __nv_bfloat16(x[i])); {SUM}float(s);",
    total(np.ones(64), np.float32),
    given=np.ones(64, np.float32),
    before="#include <cuda_bf16.h>\n__device__ __nv_bfloat16 s;",
)
feature(
    "atomicAdd, float4",
    "atomicAdd(&s, make_float4(x[i], 1, 2, 3)); __syncthreads(); y[i] = i & 1 ? s.x : s.z;",
    np.where(I & 1, F.sum(), 128).astype(np.float32),
    given=F,
    before="__device__ float4 s;",
)
feature(
    "atomicSub", f"atomicSub(&s, x[i]); {SUM}s;", -total(X, np.int32), before="__device__ int s;"
)
feature(
    "atomicExch",
    "int v = atomicExch(&s, i); atomicAdd(&seen[v], 1); __syncthreads();"
    " if (!i) atomicAdd(&seen[s], 1); __syncthreads(); y[i] = seen[i];",
    0 * I + 1 + (I == 0) * 0,
    before="__device__ int s = 64, seen[65];",
)
feature(
    "atomicExch, 64 bits and float",
    "unsigned long long a = x[i]; atomicExch(&s[i], a); atomicExch(&f[i], 1.0f * x[i]);"
    " y[i] = (int)s[i] + int(f[i]);",
    2 * X,
    before="__device__ unsigned long long s[64]; __device__ float f[64];",
)
feature(
    "atomicMin, atomicMax, int",
    "atomicMin(&a, x[i]); atomicMax(&b, x[i]); __syncthreads(); y[i] = a * 1000 + b;",
    0 * I + X.min() * 1000 + X.max(),
    before="__device__ int a, b;",
)
feature(
    "atomicMin, atomicMax, unsigned",
    "atomicMin(&a, (unsigned)x[i]); atomicMax(&b, (unsigned)x[i]); __syncthreads();"
    " y[i] = a * 7 + b;",
    (0 * I + X.view(np.uint32).min() * np.uint32(7) + X.view(np.uint32).max())
    .astype(np.uint32)
    .view(np.int32),
    before="__device__ unsigned a = 50, b;",
)
feature(
    "atomicMin, atomicMax, 64 bits",
    "atomicMin(&a, x[i]); atomicMax(&b, x[i]); __syncthreads(); y[i] = i & 1 ? a : b;",
    np.where(I & 1, WIDE.min(), WIDE.max()),
    given=WIDE,
    before="__device__ long long a, b;",
)
feature(
    "atomicAnd, atomicOr, atomicXor",
    "atomicAnd(&a, x[i] | 3); atomicOr(&b, x[i] & 12); atomicXor(&c, x[i]); __syncthreads();"
    " y[i] = a + b * 3 + c * 5;",
    0 * I
    + np.bitwise_and.reduce(X | 3)
    + np.bitwise_or.reduce(X & 12) * 3
    + np.bitwise_xor.reduce(X) * 5,
    before="__device__ int a = -1, b, c;",
)
feature(
    "atomicAnd, atomicOr, 64 bits",
    "atomicAnd(&a, (unsigned long long)x[i] | 3); atomicOr(&b, (unsigned long long)x[i]);"
    " __syncthreads(); y[i] = i & 1 ? a : b;",
    np.where(I & 1, np.bitwise_and.reduce(WIDE | 3), np.bitwise_or.reduce(WIDE)),
    given=WIDE,
    before="__device__ unsigned long long a = -1, b;",
)
feature(
    "atomicInc, atomicDec",
    "atomicInc(&a, 9); atomicDec(&b, 6); __syncthreads(); y[i] = a * 100 + b;",
    0 * I + 400 + (-64) % 7,
    before="__device__ unsigned a, b;",
)
feature(
    "atomicCAS loop, float maximum",
    """int old = *(volatile int *)&s; for (;;) { int was = old; old = atomicCAS(&s, was,
    __float_as_int(fmaxf(__int_as_float(was), x[i]))); if (old == was) break; } __syncthreads();
    y[i] = __int_as_float(s);""",
    0 * P + P.max(),
    given=P,
    before="__device__ int s;",
)
feature(
    "atomicCAS, 16 bits",
    """unsigned short old = *(volatile unsigned short *)&s, was; do { was = old;
    old = atomicCAS(&s, was, (unsigned short)(was + 3)); }
    while (old != was); __syncthreads(); y[i] = s;""",
    0 * I + 192,
    before="__device__ unsigned short s;",
)
feature(
    "atomicCAS, 64 bits",
    """unsigned long long old = *(volatile unsigned long long *)&s, was; do { was = old;
    old = atomicCAS(&s, was, was + x[i]); }
    while (old != was); __syncthreads(); y[i] = s;""",
    total(WIDE, np.int64),
    given=WIDE,
    before="__device__ unsigned long long s;",
)
feature(
    "atomicCAS, atomicExch, 128 bits",
    """Q was = {0, 0}, to = {1ll + i, 7}; Q old = atomicCAS(&s, was, to); __syncthreads();
    if (!i) { Q v = atomicExch(&s, was); y[0] = v.b;
    } else y[i] = old.b == 7 || old.a == 0 ? 7 : 0;""",
    0 * I + 7,
    before="struct alignas(16) Q { long long a, b; }; __device__ Q s;",
)
feature(
    "atomicAdd_block, atomicAdd_system",
    "atomicAdd_block(&a, 1); atomicAdd_system(&b, x[i]); __syncthreads(); y[i] = a + b;",
    0 * I + 64 + X.sum(),
    before="__device__ int a, b;",
)
feature(
    "shared memory: add, min, exchange, compare",
    """__shared__ int a, b, c; __shared__ unsigned long long d; if (!i) a = b = c = d = 0;
    __syncthreads();
    atomicAdd(&a, x[i]); atomicMin(&b, x[i]); atomicCAS(&c, 0, 5); atomicAdd(&d, 1ull << 33);
    __syncthreads(); y[i] = a + b * 100 + c * 10000 + int(d >> 33);""",
    0 * I + X.sum() + X.min() * 100 + 50000 + 64,
)
feature(
    "shared memory: float, double and __half",
    """__shared__ float a; __shared__ double b; __shared__ __half c; if (!i) a = b = c = 0;
    __syncthreads();
    atomicAdd(&a, x[i]); atomicAdd(&b, 2.0 * x[i]); atomicAdd(&c, __float2half(1));
    __syncthreads(); y[i] = a + float(b) + float(c);""",
    total(F, np.float32) * 3 + 64,
    given=F,
    before="#include <cuda_fp16.h>",
)
feature(
    "histogram in shared memory",
    "__shared__ int h[8]; if (i < 8) h[i] = 0; __syncthreads(); atomicAdd(&h[x[i] & 7], 1);"
    " __syncthreads(); y[i] = h[i % 8];",
    np.bincount(X & 7, minlength=8).astype(np.int32)[I % 8],
)
feature(
    "__nv_atomic_load_n, _store_n, _fetch_add",
    "__nv_atomic_fetch_add(&s, x[i], __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);"
    " __syncthreads();"
    " int v; __nv_atomic_load(&s, &v, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE); y[i] = v;",
    total(X, np.int32),
    before="__device__ int s;",
)

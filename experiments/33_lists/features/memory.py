"""Spaces of memory, kinds of access, and what is shared by a block, a cluster, a grid."""

import numpy as np

from features.feature import Feature, I, X, of

FEATURES: list[Feature] = []
feature = of("memory", FEATURES)
GROUPS = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"

feature(
    "static shared memory",
    "__shared__ int s[64]; s[i] = x[i]; __syncthreads(); y[i] = s[63 - i];",
    X[::-1],
)
feature(
    "shared memory in two dimensions, of a struct",
    "__shared__ P s[8][9]; s[i % 8][i / 8] = {x[i], i}; __syncthreads();"
    " P p = s[i / 8][i % 8]; y[i] = p.a * 100 + p.b;",
    (X * 100 + I).reshape(8, 8).T.ravel(),
    before="struct P { int a, b; };",
)
feature(
    "dynamic shared memory",
    "extern __shared__ int s[]; s[i] = x[i]; __syncthreads(); y[i] = s[(i + 1) % 64];",
    np.roll(X, -1),
    shared=256,
)
feature(
    "dynamic shared memory, cut in two",
    "extern __shared__ __align__(8) char raw[]; double *d = (double *)raw;"
    " int *n = (int *)(d + 64);"
    " d[i] = x[i] / 2.0; n[i] = i; __syncthreads(); y[i] = int(2 * d[63 - i]) + n[(i + 1) % 64];",
    X[::-1] + np.roll(I, -1),
    shared=64 * 12,
)
feature(
    "constant memory",
    "y[i] = c[i % 4] * x[i];",
    np.array([3, 1, 4, 1], np.int32)[I % 4] * X,
    before="__constant__ int c[4] = {3, 1, 4, 1};",
)
feature(
    "constant memory, by address",
    "const int *p = i & 1 ? c : d; y[i] = p[i % 4] + x[i];",
    np.where(I & 1, I % 4, 10 * (I % 4)) + X,
    before="__constant__ int c[4] = {0, 1, 2, 3}; __constant__ int d[4] = {0, 10, 20, 30};",
)
feature(
    "device variable",
    "atomicAdd(&total, x[i]); __syncthreads(); y[i] = total;",
    0 * I + X.sum() + 5,
    before="__device__ int total = 5;",
)
feature(
    "device table of pointers",
    "y[i] = *t[i % 2] + x[i];",
    X + np.where(I % 2, 20, 10).astype(np.int32),
    before="__device__ int a = 10, b = 20; __device__ int *t[2] = {&a, &b};",
)
feature(
    "local array by a variable index",
    "int a[8]; for (int j = 0; j < 8; j++) a[(j * 3 + i) % 8] = j + x[i]; y[i] = a[x[i] & 7];",
    np.array(
        [
            x + next(j for j in range(8) if (j * 3 + i) % 8 == x & 7)
            for i, x in zip(range(64), X.tolist())
        ],
        np.int32,
    ),
)
feature(
    "generic pointers of three spaces",
    "__shared__ int s; if (!i) s = 100; __syncthreads(); int l = 10;"
    " const int *p = i % 3 == 0 ? &s : i % 3 == 1 ? &l : x + i; y[i] = *p;",
    np.choose(I % 3, [0 * I + 100, 0 * I + 10, X]),
)
feature(
    "__isShared, __isGlobal, __isLocal, __isConstant",
    "__shared__ int s; int l = i;"
    " y[i] = __isShared(&s) + 2 * __isGlobal(x) + 4 * __isLocal(&l) + 8 * __isConstant(&c) +"
    " 16 * __isShared(x);",
    0 * I + 15,
    before="__constant__ int c;",
)
feature(
    "__cvta_generic_to_shared and back",
    "__shared__ int s[64]; s[i] = x[i]; unsigned a = __cvta_generic_to_shared(s + i);"
    ' int v; asm("ld.shared.s32 %0, [%1];" : "=r"(v) : "r"(a));'
    " y[i] = v + *(int *)__cvta_shared_to_generic(a);",
    2 * X,
)
feature(
    "int4 and float2",
    "int4 v = ((const int4 *)x)[i % 16]; float2 f = make_float2(v.x, v.w);"
    " y[i] = v.y - v.z + int(f.x + f.y);",
    np.tile(X.reshape(16, 4) @ np.array([1, 1, -1, 1], np.int32), 4),
)
feature(
    "uchar4, from an int",
    "int v = x[i]; uchar4 c = *(uchar4 *)&v; y[i] = c.x + c.y + c.z + c.w;",
    X.view(np.uint8).reshape(-1, 4).sum(axis=1).astype(np.int32),
)
feature(
    "memcpy and memset",
    "int a[4]; memset(a, 1, sizeof a); memcpy(a + 1, x + i, 4);"
    " y[i] = a[1] + (a[0] == 0x01010101);",
    X + 1,
)
feature("volatile", "volatile int *p = y + i; *p = x[i]; *p = *p + 1;", X + 1)
feature(
    "__ldg, __ldcg, __ldca, __ldcs, __ldlu, __ldcv",
    "y[i] = __ldg(x + i) + __ldcg(x + i) + __ldca(x + i) + __ldcs(x + i) + __ldlu(x + i) +"
    " __ldcv(x + i);",
    6 * X,
)
feature(
    "__stwb, __stcg, __stcs, __stwt",
    "__stwb(y + i, 1); __stcg(y + i, 2); __stcs(y + i, 3); __stwt(y + i, x[i]);",
    X,
)
feature(
    "__restrict__",
    "f(x, y, i);",
    X + 1,
    before="__device__ void f(const int *__restrict__ a, int *__restrict__ b, int i)"
    " { b[i] = a[i] + 1; }",
)
feature(
    "malloc and free", "int *p = (int *)malloc(16); p[i % 4] = x[i]; y[i] = p[i % 4]; free(p);", X
)
feature(
    "__syncthreads_count, _and, _or",
    "y[i] = __syncthreads_count(x[i] > 0) * 100 + __syncthreads_and(i < 64) * 10 +"
    " __syncthreads_or(i == 70);",
    0 * I + (X > 0).sum() * 100 + 10,
)
feature(
    "last block adds up, by __threadfence and atomicInc",
    """__shared__ bool last; if (!threadIdx.x) { part[blockIdx.x] = x[i] + x[i + 1];
    __threadfence();
  last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1; __threadfence(); } __syncthreads();
  if (last) { int s = 0; for (int j = 0; j < 4; j++) s += ((volatile int *)part)[j];
    y[threadIdx.x] = s; }""",
    0 * I[:16] + sum(int(X[16 * b] + X[16 * b + 1]) for b in range(4)),
    threads=16,
    blocks=4,
    before="__device__ int part[4]; __device__ unsigned done;",
)
feature(
    "cluster, distributed shared memory",
    """__shared__ int s[32]; auto c = cg::this_cluster(); s[threadIdx.x] = x[i]; c.sync();
  int *other = c.map_shared_rank(s, c.block_rank() ^ 1); y[i] = other[threadIdx.x]; c.sync();""",
    np.roll(X, 32),
    threads=32,
    blocks=2,
    before=GROUPS,
    attributes="__cluster_dims__(2, 1, 1)",
)
feature(
    "barrier of the grid",
    "y[i] = 0; part[blockIdx.x] = blockIdx.x + 1; cg::this_grid().sync();"
    " y[i] = x[i] + part[(blockIdx.x + 1) % gridDim.x];",
    X + np.array([2, 3, 4, 1], np.int32)[I // 16],
    threads=16,
    blocks=4,
    before=GROUPS + "__device__ int part[4];",
)
feature(
    "texture object", "y[i] = tex1Dfetch<int>(t, i);", X, value=("cudaTextureObject_t t", bytes(8))
)
feature(
    "surface object",
    "surf1Dwrite(x[i], t, 4 * i); y[i] = 0;",
    X,
    value=("cudaSurfaceObject_t t", bytes(8)),
)

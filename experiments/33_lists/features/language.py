"""The language: templates, lambdas, classes, calls, flow."""

import numpy as np

from features.feature import THREADS, Feature, I, X, of

FEATURES: list[Feature] = []
feature = of("language", FEATURES)
TRIANGLE = np.array([sum(range(n % 9)) for n in I], np.int32)
FIBONACCI = np.array([0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89], np.int32)
ROLLED = sum(np.roll(X, -j) for j in range(8))


def nested(n: int) -> int:
    total = 0
    for a in range(10):
        for b in range(a + 1) if a != n % 5 else ():
            if a * b > 20:
                return total
            total += b
    return total


feature(
    "function template",
    "y[i] = times<3>(x[i]);",
    3 * X,
    before="template <int N, class T> __device__ T times(T v) { return N * v; }",
)
feature(
    "template specialisation",
    "y[i] = size<int>() + size<char>() + x[i];",
    X + 11,
    before="""template <class T> __device__ int size() { return 1; }
template <> __device__ int size<int>() { return 10; }""",
)
feature(
    "variadic template, fold expression",
    "y[i] = sum(x[i], i, 7, 'a');",
    X + I + 7 + ord("a"),
    before="template <class... T> __device__ int sum(T... v) { return (v + ...); }",
)
feature(
    "if constexpr",
    "y[i] = f(x[i]) + f(0.5f);",
    X + 2,
    before="""template <class T> __device__ int f(T v) {
  if constexpr (sizeof(T) == sizeof(int) && T(0.5) == T(0)) return v; else return int(4 * v); }""",
)
feature(
    "constexpr function and table",
    "constexpr auto t = table(); y[i] = t.v[i % 8];",
    (I % 8) ** 2,
    before="""struct T { int v[8]; };
constexpr __device__ T table() { T t{}; for (int j = 0; j < 8; j++) t.v[j] = j * j; return t; }""",
)
feature(
    "lambda, captures by value", "auto f = [=](int v) { return v + i; }; y[i] = f(x[i]);", X + I
)
feature(
    "lambda, captures by reference",
    "int s = 0; auto f = [&](int v) { s += v; }; for (int j = 0; j < i % 9; j++) f(j); y[i] = s;",
    TRIANGLE,
)
feature(
    "generic lambda", "auto f = [](auto v) { return v + v; }; y[i] = f(x[i]) + f(0.5f);", 2 * X + 1
)
feature(
    "lambda given to a template",
    "y[i] = apply(x[i], [](int v) { return v * v; });",
    X * X,
    before="template <class F> __device__ int apply(int v, F f) { return f(v); }",
)
feature(
    "class with operators",
    "V a{x[i], i}, b{1, 2}; V c = a + b * 3; y[i] = c.p * 1000 + c.q;",
    (X + 3) * 1000 + I + 6,
    before="""struct V { int p, q;
  __device__ V operator+(V o) const { return {p + o.p, q + o.q}; }
  __device__ V operator*(int s) const { return {p * s, q * s}; } };""",
)
feature(
    "constructors and destructors",
    "int n = 0; { Count a(&n), b(&n); y[i] = n; } y[i] = y[i] * 10 + n + x[i];",
    X + 20,
    before="""struct Count { int *n; __device__ Count(int *n) : n(n) { ++*n; }
  __device__ ~Count() { --*n; } };""",
)
feature(
    "virtual function",
    "Square s; Shape *p = &s; y[i] = p->area(x[i]);",
    X * X,
    before="""struct Shape { __device__ virtual int area(int v) { return 0; } };
struct Square : Shape { __device__ int area(int v) override { return v * v; } };""",
)
feature(
    "virtual functions, lanes apart",
    "One a; Two b; Base *all[2] = {&a, &b}; y[i] = all[x[i] & 1]->f(x[i]);",
    np.where(X & 1, X - 2, X + 1),
    before="""struct Base { __device__ virtual int f(int v) = 0; };
struct One : Base { __device__ int f(int v) override { return v + 1; } };
struct Two : Base { __device__ int f(int v) override { return v - 2; } };""",
)
feature(
    "multiple and virtual inheritance",
    "C c(x[i]); A *a = &c; B *b = &c; y[i] = a->f() * 100 + b->g() + c.base;",
    X * 100 + X + 1 + X,
    before="""struct R { int base; __device__ R(int v) : base(v) {} };
struct A : virtual R { __device__ A() : R(0) {} __device__ virtual int f() { return base; } };
struct B : virtual R { __device__ B() : R(0) {} __device__ virtual int g() { return base + 1; } };
struct C : A, B { __device__ C(int v) : R(v) {} };""",
)
feature(
    "table of function pointers, lanes apart",
    "F all[3] = {one, two, three}; y[i] = all[i % 3](x[i]);",
    np.choose(I % 3, [X + 1, X * 2, -X]),
    before="""typedef int (*F)(int);
__device__ __noinline__ int one(int v) { return v + 1; }
__device__ __noinline__ int two(int v) { return v * 2; }
__device__ __noinline__ int three(int v) { return -v; }""",
)
feature(
    "pointer to a member function",
    "int (V::*f)() const = i & 1 ? &V::p : &V::q; V v{x[i]}; y[i] = (v.*f)();",
    np.where(I & 1, X + 1, X - 1),
    before="""struct V { int a; __device__ __noinline__ int p() const { return a + 1; }
  __device__ __noinline__ int q() const { return a - 1; } };""",
)
feature(
    "recursion",
    "y[i] = fib(i % 12);",
    FIBONACCI[I % 12],
    before="__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }",
)
feature(
    "mutual recursion",
    "y[i] = even(i);",
    1 - I % 2,
    before="""__device__ int odd(int n);
__device__ __noinline__ int even(int n) { return n ? odd(n - 1) : 1; }
__device__ __noinline__ int odd(int n) { return n ? even(n - 1) : 0; }""",
)
feature(
    "struct as a parameter of a kernel",
    "y[i] = x[i] * s.a + s.b[i % 3] + int(s.c);",
    X * 5 + np.array([10, 20, 30], np.int32)[I % 3] + 2,
    before="struct S { char a; short b[3]; double c; };",
    value=(
        "S s",
        np.array([(5, [10, 20, 30], 2.5)], np.dtype("i1, 3i2, f8", align=True)).tobytes(),
    ),
)
feature(
    "struct as a __grid_constant__ parameter, by address",
    "const int *p = s.v; y[i] = x[i] + p[i % 4];",
    X + np.array([1, 2, 4, 8], np.int32)[I % 4],
    before="struct S { int v[4]; };",
    value=("const __grid_constant__ S s", np.array([1, 2, 4, 8], np.int32).tobytes()),
)
feature(
    "large struct, returned by value",
    "S s = make(x[i]); y[i] = s.v[i % 16];",
    X * (I % 16),
    before="""struct S { int v[16]; };
__device__ __noinline__ S make(int a) { S s; for (int j = 0; j < 16; j++) s.v[j] = a * j;
  return s; }""",
)
feature(
    "union",
    "union { float f; unsigned u; } a; a.f = 1.0f; y[i] = int(a.u >> 23) + x[i];",
    X + 127,
)
feature(
    "bit fields",
    "struct { unsigned a : 3; int b : 5; unsigned c : 24; } s; s.a = i; s.b = x[i]; s.c = i * i;"
    " y[i] = s.a * 1000000 + s.b * 10000 + s.c;",
    (I % 8) * 1000000 + ((X + 16) % 32 - 16) * 10000 + I * I,
)
feature(
    "switch with fall through",
    """int v = x[i]; switch (i % 7) { case 0: v += 1; case 1: v *= 2; break; case 2: v = 9; break;
  case 3: v -= 3; case 4: v ^= 5; break; case 5: v = -v; break; default: v <<= 1; } y[i] = v;""",
    np.choose(I % 7, [(X + 1) * 2, X * 2, 0 * X + 9, (X - 3) ^ 5, X ^ 5, -X, X << 1]),
)
feature(
    "break and continue in nested loops",
    """int s = 0; for (int a = 0; a < 10; a++) { if (a == i % 5) continue;
  for (int b = 0; ; b++) { if (b > a) break; if (b * a > 20) goto out; s += b; } }
  out: y[i] = s;""",
    [nested(n) for n in range(THREADS)],
)
feature(
    "goto", "int n = 0; again: n += 2; if (n < i) goto again; y[i] = n;", np.maximum(2, I + I % 2)
)
feature(
    "overloading, default arguments, references",
    "int v = x[i]; bump(v); bump(v, 10); y[i] = kind(v) * 1000 + kind(1.0f) + v;",
    1000 + 2 + X + 11,
    before="""__device__ void bump(int &v, int by = 1) { v += by; }
__device__ int kind(int) { return 1; } __device__ int kind(float) { return 2; }""",
)
feature(
    "structured bindings, range-based for",
    "auto [a, b] = pair(x[i]); int s = 0; int all[3] = {a, b, i};"
    " for (int v : all) s += v; y[i] = s;",
    X + X + 1 + I,
    before="struct P { int a, b; }; __device__ P pair(int v) { return {v, v + 1}; }",
)
feature(
    "static variable in a function",
    "atomicAdd(counter(), 1); __syncthreads(); y[i] = *counter() + x[i];",
    X + THREADS,
    before="__device__ int *counter() { static int n = 0; return &n; }",
)
feature(
    "concepts (C++20)",
    "y[i] = twice(x[i]);",
    2 * X,
    before="template <class T> concept Small = sizeof(T) <= 4;\n"
    "template <Small T> __device__ T twice(T v) { return v + v; }",
    options=("--std=c++20",),
)
feature(
    "designated initialisers (C++20)",
    "A a{.p = x[i], .q = i}; y[i] = (a < A{.p = 0, .q = 0}) * 2 + (a.q == i);",
    (X < 0) * 2 + 1,
    before="struct A { int p, q; __device__ bool operator<(A o) const { return p < o.p; } };",
    options=("--std=c++20",),
)
feature(
    "placement new",
    "alignas(8) char room[8]; int *p = new (room) int(x[i]); y[i] = *p + 1;",
    X + 1,
)
feature(
    "new and delete",
    "int *p = new int[4]; for (int j = 0; j < 4; j++) p[j] = x[i] + j;"
    " y[i] = p[i % 4]; delete[] p;",
    X + I % 4,
)
feature(
    "alloca, by inline PTX",
    """int *p; asm volatile("{ .reg .u64 a; alloca.u64 a, %1; cvta.local.u64 %0, a; }"
    : "=l"(p) : "l"(16ll)); for (int j = 0; j < 4; j++) p[j] = j; y[i] = p[i % 4] + x[i];""",
    X + I % 4,
)
feature(
    "128-bit integers",
    "__int128 v = x[i]; v *= 0x100000001ll; v *= 0x100000001ll; y[i] = int(v >> 64);",
    X - (X < 0),
    options=("--device-int128",),
)
feature(
    "loop that is unrolled",
    "int s = 0;\n#pragma unroll\nfor (int j = 0; j < 8; j++) s += x[(i + j) % 64]; y[i] = s;",
    ROLLED,
)
feature(
    "loop that is not unrolled",
    "int s = 0;\n#pragma unroll 1\nfor (int j = 0; j < 8; j++) s += x[(i + j) % 64]; y[i] = s;",
    ROLLED,
)
feature(
    "inline PTX",
    'int v; asm("add.s32 %0, %1, %2;" : "=r"(v) : "r"(x[i]), "n"(5)); y[i] = v;',
    X + 5,
)
feature(
    "inline PTX with a scope, a predicate and memory",
    'asm volatile("{ .reg .pred p; .reg .b32 v; setp.lt.s32 p, %1, 0; mov.b32 v, %1;\\n"'
    ' "@p neg.s32 v, v; st.global.b32 [%0], v; }" :: "l"(y + i), "r"(x[i]) : "memory");',
    np.abs(X),
)
feature(
    "three dimensions of blocks and grid",
    """int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int j = b * (blockDim.x * blockDim.y * blockDim.z) + t; y[j] = x[j] + b;""",
    X + I // 8,
    threads=(2, 2, 2),
    blocks=(2, 2, 2),
)
feature(
    "__launch_bounds__", "y[i] = x[i] + blockDim.x;", X + 64, attributes="__launch_bounds__(64, 2)"
)
feature(
    "printf",
    'if (i < 2) printf("%d: %u %s %.2f %c\\n", i, 7u, "seven", 0.25, \'x\'); y[i] = x[i];',
    X,
    printed="0: 7 seven 0.25 x\n1: 7 seven 0.25 x\n",
)
feature(
    "assert that holds", "assert(x[i] < 100); y[i] = x[i];", X, before="#include <cuda/std/cassert>"
)
feature(
    "assert that fails",
    "assert(i != 5); y[i] = x[i];",
    X,
    before="#include <cuda/std/cassert>",
    reported="trap",
)
feature("__trap", "if (i == 5) __trap(); y[i] = x[i];", X, reported="trap")
feature(
    "__builtin_assume, __builtin_expect, unsigned wrap around",
    "unsigned v = x[i]; __builtin_assume(i < 64); y[i] = __builtin_expect(v * 3u > 5u, 1);",
    (X.astype(np.uint32) * np.uint32(3) > 5).astype(np.int32),
)

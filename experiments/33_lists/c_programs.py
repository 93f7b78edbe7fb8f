"""Random functions in what C++ and CUDA C++ have in common, whose values both languages fix to the
bit: no signed overflow, no shift beyond the type, no division that traps, no fused multiply-add
but where it is written. One text is compiled as kernels, and for the host as functions of a thread.
"""

import random
from collections.abc import Iterator

VALUES = 6  # words that a function gets, and variables that it gives back
HEAD = """
#ifdef __CUDACC_RTC__
#define IN __device__ __forceinline__
#define FUNCTION(name) extern "C" __global__ void name(const unsigned *x, unsigned long long *y)
#define THREAD int(blockIdx.x * blockDim.x + threadIdx.x)
#else
#include <cmath>
#include <cstring>
#define IN static inline
#define FUNCTION(name) extern "C" void name(const unsigned *x, unsigned long long *y, int thread)
#define THREAD thread
#endif
typedef int i32; typedef unsigned u32; typedef long long i64; typedef unsigned long long u64;
typedef signed char i8; typedef unsigned short u16; typedef float f32; typedef double f64;
template <class T> IN T quotient(T a, T b) { return b == 0 || b == T(-1) ? a : a / b; }
template <class T> IN T rest(T a, T b) { return b == 0 || b == T(-1) ? T(0) : a % b; }
template <class T> IN T sum(T a, u64 b) { return T(u64(a) + b); }
template <class T> IN T difference(T a, u64 b) { return T(u64(a) - b); }
template <class T> IN T product(T a, u64 b) { return T(u64(a) * b); }
template <class T> IN T left(T a, int b) { return T(u64(a) << (b & (8 * sizeof(T) - 1))); }
template <class T> IN T right(T a, int b) { return T(a >> (b & (8 * sizeof(T) - 1))); }
template <class T> IN T whole(f64 v) {  // towards zero; what does not fit is 7
  return v > -2e9 && v < 2e9 ? T(i64(v)) : T(7); }
IN f32 root(f32 v) { return sqrtf(fabsf(v)); }
IN f64 root(f64 v) { return sqrt(fabs(v)); }
IN f32 fused(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
IN f64 fused(f64 a, f64 b, f64 c) { return fma(a, b, c); }
IN u64 bits(i32 v) { return u64(i64(v)); }
IN u64 bits(u32 v) { return v; }
IN u64 bits(i8 v) { return u64(i64(v)); }
IN u64 bits(u16 v) { return v; }
IN u64 bits(i64 v) { return u64(v); }
IN u64 bits(u64 v) { return v; }
IN u64 bits(f32 v) { u32 b; memcpy(&b, &v, 4); return v != v ? 0x7fc00000u : b; }
IN u64 bits(f64 v) { u64 b; memcpy(&b, &v, 8); return v != v ? 0x7ff8000000000000ull : b; }
IN f32 number(f32, u32 b) { f32 v; memcpy(&v, &b, 4); return b & 1 ? v : i32(b) / 65536.0f; }
IN f64 number(f64, u32 b) { return number(0.0f, b) / 3.0; }
template <class T> IN T number(T, u32 b) { return T(b & 1 ? i32(b) : i32(b) >> 24); }
"""
KINDS = {  # types of the variables; is there flow?
    "integers of 32 bits": (("i32", "u32"), False),
    "integers of 8, 16 and 64 bits": (("i8", "u16", "i64", "u64", "i32"), False),
    "float": (("f32",), False),
    "double, and conversions": (("f64", "f32", "i32", "u32", "i64"), False),
    "flow of integers": (("i32", "u32"), True),
    "flow of floats and integers": (("f32", "i32", "f64"), True),
    "flow, long": (("i32", "i64", "f32"), True),
}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
INTEGERS = ("sum", "difference", "product", "quotient", "rest")
CONSTANTS = ("0", "1", "2", "3", "7", "13", "100", "255")


class Writer:
    """Of one function, of ``kind``. The same ``seed``, the same text."""

    def __init__(self, kind: str, seed: int) -> None:
        self.types, self.flow = KINDS[kind]
        self.draw = random.Random(f"{kind} {seed}")
        self.variables = {f"v{n}": self.draw.choice(self.types) for n in range(VALUES)}
        self.statements = 14 if kind.endswith("long") else 7
        self.loops = 0

    def function(self, name: str) -> str:
        heads = ", ".join(f"{kind} &{each}" for each, kind in self.variables.items())
        body = "\n".join(self.block(self.statements, 3 if self.flow else 0, "  "))
        starts = "".join(
            f" {kind} {each} = number({kind}(0), x[{VALUES} * i + {n}]);"
            for n, (each, kind) in enumerate(self.variables.items())
        )
        ends = "".join(
            f" y[{VALUES} * i + {n}] = bits({each});" for n, each in enumerate(self.variables)
        )
        return (
            f"IN void of_{name}(int i, {heads}) {{\n{body}\n}}\n"
            f"FUNCTION({name}) {{ int i = THREAD;{starts}\n"
            f"  of_{name}(i, {', '.join(self.variables)});\n {ends} }}\n"
        )

    def block(self, count: int, depth: int, indent: str) -> Iterator[str]:
        for _ in range(count):
            yield from self.statement(depth, indent)

    def statement(self, depth: int, indent: str) -> Iterator[str]:
        kind = (
            self.draw.choice(("set", "set", "if", "else", "for", "switch", "leave"))
            if depth
            else "set"
        )
        inside = indent + "  "
        if kind == "set":
            name = self.draw.choice(list(self.variables))
            yield f"{indent}{name} = {self.value(self.variables[name], 3)};"
        elif kind in ("if", "else"):
            yield f"{indent}if ({self.condition()}) {{"
            yield from self.block(2, depth - 1, inside)
            if kind == "else":
                yield f"{indent}}} else {{"
                yield from self.block(2, depth - 1, inside)
            yield f"{indent}}}"
        elif kind == "for":
            self.loops += 1
            turns = f"n{self.loops}"
            most = f"({self.value('i32', 1)} & 7)"
            yield f"{indent}for (int {turns} = 0; {turns} < {most}; {turns}++) {{"
            yield f"{inside}if ({self.condition()}) {self.draw.choice(('break', 'continue'))};"
            yield from self.block(2, depth - 1, inside)
            yield f"{indent}}}"
        elif kind == "switch":
            yield f"{indent}switch ({self.value('i32', 1)} & 3) {{"
            for case in range(3):
                yield f"{indent}case {case}:"
                yield from self.block(1, depth - 1, inside)
                if self.draw.random() < 0.7:
                    yield f"{inside}break;"
            yield f"{indent}default:"
            yield from self.block(1, depth - 1, inside)
            yield f"{indent}}}"
        else:
            yield f"{indent}if ({self.condition()}) return;"

    def condition(self) -> str:
        if self.draw.random() < 0.3:
            return f"(i & {self.draw.choice((1, 3, 6, 12))}) == {self.draw.choice((0, 1, 2))}"
        kind = self.draw.choice(self.types)
        return f"{self.value(kind, 1)} {self.draw.choice(COMPARISONS)} {self.value(kind, 1)}"

    def value(self, kind: str, depth: int) -> str:
        draw = self.draw.random
        if not depth or draw() < 0.15:
            return self.leaf(kind)
        if draw() < 0.1:
            first, second = self.value(kind, depth - 1), self.value(kind, depth - 1)
            return f"({self.condition()} ? {first} : {second})"
        a, b = self.value(kind, depth - 1), self.value(kind, depth - 1)
        if kind[0] == "f":
            form = self.draw.choice(
                ("({} + {})", "({} - {})", "({} * {})", "({} / {})", "root", "fused")
            )
            if form == "root":
                return f"root({a})"
            return f"fused({a}, {b}, {self.leaf(kind)})" if form == "fused" else form.format(a, b)
        form = self.draw.choice((*INTEGERS, "left", "right", "&", "|", "^", "~"))
        if form in ("left", "right"):
            return f"{form}<{kind}>({a}, {self.value('i32', 0)})"
        if form in INTEGERS:
            return f"{form}<{kind}>({a}, {b})"
        return f"{kind}(~{a})" if form == "~" else f"{kind}({a} {form} {b})"

    def leaf(self, kind: str) -> str:
        same = [each for each, its in self.variables.items() if its == kind]
        if same and self.draw.random() < 0.75:
            return self.draw.choice(same)
        other, its = self.draw.choice(list(self.variables.items()))
        if self.draw.random() < 0.5 and its != kind:
            return (
                f"whole<{kind}>({other})"
                if its[0] == "f" and kind[0] != "f"
                else f"{kind}({other})"
            )
        return f"{kind}({self.draw.choice(CONSTANTS)}{'.5' if kind[0] == 'f' else ''})"


def text(kind: str, seeds: range) -> str:
    """Functions k<seed> of all seeds."""
    return HEAD + "".join(Writer(kind, seed).function(f"k{seed}") for seed in seeds)

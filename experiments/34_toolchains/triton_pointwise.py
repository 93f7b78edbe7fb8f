"""Triton cases of one element each: arithmetic and mathematical functions."""

import numpy as np
import triton
import triton.language as tl
from recording import bound, poisoned
from triton.language.extra import libdevice
from triton_kit import BF16, case, launch, name_of

N, BLOCK = 2000, 512  # the last block is not full
GRID = -(-N // BLOCK)


@triton.jit
def unary(x, y, n, F: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, F(value), mask=at < n)


@triton.jit
def binary(x, w, y, n, F: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + at, mask=at < n, other=1)
    b = tl.load(w + at, mask=at < n, other=1)
    tl.store(y + at, F(a, b), mask=at < n)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def exp2(x):
    return tl.exp2(x)


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def log2(x):
    return tl.log2(x)


@triton.jit
def sine(x):
    return tl.sin(x)


@triton.jit
def cosine(x):
    return tl.cos(x)


@triton.jit
def square_root(x):
    return tl.sqrt(x)


@triton.jit
def square_root_rounded(x):
    return tl.sqrt_rn(x)


@triton.jit
def reciprocal_root(x):
    return tl.rsqrt(x)


@triton.jit
def ceiling(x):
    return tl.ceil(x)


@triton.jit
def floor(x):
    return tl.floor(x)


@triton.jit
def error_function(x):
    return tl.erf(x)


@triton.jit
def sigmoid(x):
    return tl.sigmoid(x)


@triton.jit
def magnitude(x):
    return tl.abs(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def cube_root(x):
    return libdevice.cbrt(x)


@triton.jit
def nearest(x):
    return libdevice.rint(x)


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + libdevice.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


def reference_gelu(x):
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def reference_erf(x):
    from scipy.special import erf

    return erf(x)


def logistic(x):
    return 1 / (1 + np.exp(-x))


# name: (function, its float64 reference, lowest and highest argument, relative and absolute error
# before the last rounding: of the .approx instructions' documented 2^-22 and of their arguments'
# roundings)
UNARY = {
    "exp": (exp, np.exp, -8, 8, 2**-20, 0),
    "exp2": (exp2, np.exp2, -8, 8, 2**-21, 0),
    "log": (log, np.log, 0.1, 9, 2**-22, 2**-21),
    "log2": (log2, np.log2, 0.1, 9, 2**-22, 2**-21),
    "sin": (sine, np.sin, -8, 8, 2**-22, 2**-21),
    "cos": (cosine, np.cos, -8, 8, 2**-22, 2**-21),
    "sqrt": (square_root, np.sqrt, 0, 9, 2**-22, 0),
    "sqrt_rn": (square_root_rounded, np.sqrt, 0, 9, 0, 0),
    "rsqrt": (reciprocal_root, lambda x: 1 / np.sqrt(x), 0.1, 9, 2**-22, 0),
    "ceil": (ceiling, np.ceil, -9, 9, 0, 0),
    "floor": (floor, np.floor, -9, 9, 0, 0),
    "erf": (error_function, reference_erf, -4, 4, 2**-22, 0),
    "sigmoid": (sigmoid, logistic, -8, 8, 2**-20, 0),
    "abs": (magnitude, np.abs, -9, 9, 0, 0),
    "tanh (libdevice)": (tanh, np.tanh, -4, 4, 2**-21, 0),
    "log1p (libdevice)": (log1p, np.log1p, -0.5, 9, 2**-21, 0),
    "expm1 (libdevice)": (expm1, np.expm1, -4, 4, 2**-21, 0),
    "cbrt (libdevice)": (cube_root, np.cbrt, -9, 9, 2**-22, 0),
    "rint (libdevice)": (nearest, np.rint, -9, 9, 0, 0),
    "gelu": (gelu, reference_gelu, -4, 4, 2**-18, 2**-20),
    "silu": (silu, lambda x: x * logistic(x), -8, 8, 2**-20, 0),
}


def add_unary(title, function, reference, low, high, relative, absolute, dtype):
    @case(title)
    def fill(case, values):
        x = values.random.uniform(low, high, N).astype(dtype)
        y = poisoned(N, dtype)
        launch(case, unary, GRID, x, y, N, F=function, B=BLOCK)
        value = reference(x.astype(np.float64))
        case.expect(y, value, bound(value, dtype, relative) + absolute)


for title, row in UNARY.items():
    add_unary(title, *row, np.float32)
for title in ("exp", "sqrt", "erf", "abs", "floor"):
    add_unary(f"{title}, fp64", *UNARY[title][:4], 2**-51, 0, np.float64)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def minus(a, b):
    return a - b


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def over(a, b):
    return a / b


@triton.jit
def over_rounded(a, b):
    return tl.div_rn(a, b)


@triton.jit
def whole_over(a, b):
    return a // b


@triton.jit
def rest(a, b):
    return a % b


@triton.jit
def high_product(a, b):
    return tl.umulhi(a, b)


@triton.jit
def logic(a, b):
    return (a & b) ^ (a | ~b)


@triton.jit
def shifts(a, b):
    return (a << (b & 7)) + (a >> (b & 3))


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def larger_or_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def smaller(a, b):
    return tl.minimum(a, b)


@triton.jit
def clamped(a, b):
    return tl.clamp(a, -b, b)


@triton.jit
def chosen(a, b):
    return tl.where(a < b, a, b * 2)


@triton.jit
def fused(a, b):
    return tl.fma(a, b, b)


@triton.jit
def power(a, b):
    return libdevice.pow(a, b)


def truncated_rest(a, b):
    return np.fmod(a, b)


FLOATS = (np.float32, np.float16, BF16, np.float64)
# name: (function, float64 or integer reference, types, relative error before rounding)
BINARY = {
    "add": (plus, np.add, (*FLOATS, np.int32, np.int64, np.int8), 0),
    "subtract": (minus, np.subtract, (np.float32, np.int16), 0),
    "multiply": (times, np.multiply, (np.float32, np.float16, BF16, np.int32, np.int64), 0),
    "divide": (over, np.divide, (np.float32, np.float64), 2**-22),
    "div_rn": (over_rounded, np.divide, (np.float32,), 0),
    "divide integers": (whole_over, lambda a, b: np.trunc(a / b), (np.int32, np.int64), 0),
    "remainder": (rest, truncated_rest, (np.int32, np.uint32), 0),
    "umulhi": (high_product, lambda a, b: (a * b) >> 32, (np.uint32,), 0),
    "and, or, not, xor": (logic, lambda a, b: (a & b) ^ (a | ~b), (np.int32, np.int64), 0),
    "shifts": (shifts, lambda a, b: (a << (b & 7)) + (a >> (b & 3)), (np.int32,), 0),
    "maximum": (larger, np.maximum, (np.float32, np.float16, BF16, np.int32), 0),
    "maximum, NaN kept": (larger_or_nan, np.maximum, (np.float32,), 0),
    "minimum": (smaller, np.minimum, (np.float32, np.uint32), 0),
    "clamp": (clamped, lambda a, b: np.clip(a, -np.abs(b), np.abs(b)), (np.float32,), 0),
    "where": (chosen, lambda a, b: np.where(a < b, a, b * 2), (np.float32,), 0),
    "fma": (fused, lambda a, b: a * b + b, (np.float32, np.float64), 0),
    "pow (libdevice)": (power, np.power, (np.float32,), 2**-20),
}


def add_binary(title, function, reference, dtype, relative):
    @case(f"{title}, {name_of(dtype)}")
    def fill(case, values):
        x, w = values.of(dtype, N), values.of(dtype, N)
        if "div" in title or title == "remainder":
            w = np.where(w == 0, 3, w).astype(dtype)
        if title == "clamp":
            w = np.abs(w)
        if "pow" in title:
            x = np.abs(x) + np.float32(0.1)
        if title == "umulhi":
            x, w = (values.integers(0, 2**32, N, dtype=dtype) for _ in range(2))
        if "NaN" in title:
            x[::7], w[::5] = np.nan, np.nan
        y = poisoned(N, dtype)
        launch(case, binary, GRID, x, w, y, N, F=function, B=BLOCK)
        if np.dtype(dtype).kind in "iu":
            wide = np.uint64 if title == "umulhi" else np.int64
            value = reference(x.astype(wide), w.astype(wide)).astype(dtype)
            case.expect(y, value)
        else:
            value = reference(x.astype(np.longdouble), w.astype(np.longdouble))
            case.expect(y, value, bound(value, dtype, relative))


for title, (function, reference, dtypes, relative) in BINARY.items():
    for dtype in dtypes:
        add_binary(title, function, reference, dtype, relative)

"""Expressions in tinygrad, each with its float64 result and the bound of its error.

A function gets tinygrad's Tensor and NumPy's random numbers.
"""

import numpy as np
from recording import bound

CASES: list = []  # (name, function)
F32 = np.float32


def case(name: str):
    def register(function):
        CASES.append((name, function))
        return function

    return register


def normal(random, *shape, dtype=F32):
    return random.standard_normal(shape).astype(dtype)


def wide(*arrays):
    return [each.astype(np.float64) for each in arrays]


@case("add, with broadcasting")
def _(Tensor, random):
    a, b = normal(random, 30, 50), normal(random, 50)
    value = np.add(*wide(a, b))
    return Tensor(a) + Tensor(b), value, bound(value, F32)


@case("a chain of elementwise operations, fused")
def _(Tensor, random):
    a, b = normal(random, 40, 33), normal(random, 40, 33)
    x, y = wide(a, b)
    value = (x * y + x).clip(0, None) - y
    more = 2**-22 * (np.abs(x * y) + np.abs(x) + np.abs(y))
    return (Tensor(a) * Tensor(b) + Tensor(a)).relu() - Tensor(b), value, more


def add_function(name, of_tensor, of_numpy, low, high, relative, absolute, dtype=F32):
    @case(name)
    def _(Tensor, random):
        a = random.uniform(low, high, (24, 40)).astype(dtype)
        value = of_numpy(a.astype(np.float64))
        return of_tensor(Tensor(a)), value, bound(value, dtype, relative) + absolute


def logistic(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


# name, of a Tensor, of NumPy, lowest and highest argument, relative and absolute error: exp2 and
# log2 approximate, and of arguments that were multiplied by log2(e)
add_function("exp", lambda x: x.exp(), np.exp, -8, 8, 2**-19, 0)
add_function("log", lambda x: x.log(), np.log, 0.1, 9, 2**-21, 2**-21)
add_function("sin", lambda x: x.sin(), np.sin, -3, 3, 2**-20, 2**-20)
add_function("sqrt", lambda x: x.sqrt(), np.sqrt, 0.01, 9, 2**-21, 0)
add_function("rsqrt", lambda x: x.rsqrt(), lambda x: 1 / np.sqrt(x), 0.1, 9, 2**-20, 0)
add_function("sigmoid", lambda x: x.sigmoid(), logistic, -8, 8, 2**-19, 0)
add_function("tanh", lambda x: x.tanh(), np.tanh, -4, 4, 2**-20, 2**-21)
add_function("gelu", lambda x: x.gelu(), gelu, -4, 4, 2**-18, 2**-19)
add_function("silu", lambda x: x.silu(), lambda x: x * logistic(x), -8, 8, 2**-19, 0)
add_function("floor", lambda x: x.floor(), np.floor, -9, 9, 0, 0)
add_function("round half to even", lambda x: x.round(), np.round, -9, 9, 0, 0)
add_function("exp, fp16", lambda x: x.exp(), np.exp, -4, 4, 2**-8, 0, np.float16)
add_function("sqrt, fp64", lambda x: x.sqrt(), np.sqrt, 0.01, 9, 2**-51, 0, np.float64)


@case("integer division, remainder and shifts")
def _(Tensor, random):
    a = random.integers(0, 1000, (30, 31)).astype(np.int32)
    b = random.integers(1, 20, (30, 31)).astype(np.int32)
    x, y = Tensor(a), Tensor(b)
    return (x // y) * 3 + (x % y) + (x << 2), (a // b) * 3 + a % b + (a << 2), 0


@case("where, comparisons and booleans")
def _(Tensor, random):
    a, b = normal(random, 20, 30), normal(random, 20, 30)
    x, y = Tensor(a), Tensor(b)
    return ((x < y) & (x > 0)).where(x, y), np.where((a < b) & (a > 0), a, b), 0


@case("casts between types")
def _(Tensor, random):
    a = (normal(random, 500) * 20).astype(F32)
    value = a.astype(np.int32).astype(np.float16).astype(np.float64)
    return Tensor(a).int().half().float(), value, 0


def add_reduction(name, of_tensor, of_numpy, shape, axis, exact):
    @case(f"{name} of {'x'.join(map(str, shape))} along {axis}")
    def _(Tensor, random):
        a = normal(random, *shape)
        value = of_numpy(a.astype(np.float64), axis=axis)
        count = a.size // max(value.size, 1)
        most = np.abs(a.astype(np.float64)).sum(axis=axis)
        allowed = 0 if exact else bound(value, F32, 0, count, most)
        return of_tensor(Tensor(a), axis), value, allowed


add_reduction("sum", lambda x, axis: x.sum(axis), np.sum, (64, 80), 1, False)
add_reduction("sum", lambda x, axis: x.sum(axis), np.sum, (64, 80), 0, False)
add_reduction("sum", lambda x, axis: x.sum(axis), np.sum, (40000,), 0, False)
add_reduction("mean", lambda x, axis: x.mean(axis), np.mean, (16, 8, 40), (0, 2), False)
add_reduction("max", lambda x, axis: x.max(axis), np.max, (64, 80), 1, True)
add_reduction("argmax", lambda x, axis: x.argmax(axis), np.argmax, (30, 50), 1, True)


@case("variance")
def _(Tensor, random):
    a = normal(random, 20, 60)
    value = a.astype(np.float64).var(1, ddof=1)
    return Tensor(a).var(1), value, bound(value, F32, 2**-17)


@case("cumulative sum")
def _(Tensor, random):
    a = normal(random, 8, 300)
    value, most = np.cumsum(*wide(a), axis=1), np.cumsum(np.abs(a), axis=1)
    return Tensor(a).cumsum(1), value, bound(value, F32, 0, 300, most)


@case("sort")
def _(Tensor, random):
    a = normal(random, 4, 64)
    return Tensor(a).sort(1)[0], np.sort(a, 1), 0


@case("softmax")
def _(Tensor, random):
    a = normal(random, 20, 70)
    value = np.exp(a.astype(np.float64))
    value /= value.sum(1, keepdims=True)
    return Tensor(a).softmax(1), value, bound(value, F32, 2**-17)


@case("log softmax")
def _(Tensor, random):
    a = normal(random, 20, 70)
    exact = a.astype(np.float64)
    value = exact - np.log(np.exp(exact).sum(1, keepdims=True))
    return Tensor(a).log_softmax(1), value, bound(value, F32, 2**-18) + 2**-19


@case("layer norm")
def _(Tensor, random):
    a = normal(random, 20, 64)
    exact = a.astype(np.float64)
    centred = exact - exact.mean(1, keepdims=True)
    value = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return Tensor(a).layernorm(), value, bound(value, F32, 2**-18) + 2**-18


def add_product(m, n, k, dtype, sums):
    name = np.dtype(dtype).name

    @case(f"matmul {m}x{k} by {k}x{n}, {name}, sums in {np.dtype(sums).name}")
    def _(Tensor, random):
        a, b = normal(random, m, k, dtype=dtype), normal(random, k, n, dtype=dtype)
        x, y = wide(a, b)
        value, most = x @ y, np.abs(x) @ np.abs(y)
        types = {np.dtype(F32): "float", np.dtype(np.float16): "half"}
        found = Tensor(a).matmul(Tensor(b), dtype=types[np.dtype(sums)])
        # tf32 keeps 10 bits of an operand; products of fp16 that no tensor core makes are rounded
        # to fp16, and so are sums in fp16
        more = 2**-9 * most if dtype == F32 else 2**-11 * most
        more = more + (k * 2**-11 * most if sums == np.float16 else 0)
        return found, value, bound(value, sums, 0, k, most) + more


add_product(64, 64, 64, F32, F32)
add_product(64, 64, 64, np.float16, F32)
add_product(128, 96, 64, np.float16, np.float16)
add_product(33, 17, 45, F32, F32)
add_product(1, 128, 256, F32, F32)
add_product(256, 1, 128, np.float16, F32)


@case("batched matmul")
def _(Tensor, random):
    a, b = normal(random, 3, 32, 16), normal(random, 3, 16, 32)
    x, y = wide(a, b)
    most = np.abs(x) @ np.abs(y)
    return Tensor(a) @ Tensor(b), x @ y, bound(x @ y, F32, 0, 16, most) + 2**-9 * most


@case("integer matmul")
def _(Tensor, random):
    a = random.integers(-9, 10, (32, 48)).astype(np.int32)
    b = random.integers(-9, 10, (48, 32)).astype(np.int32)
    return Tensor(a) @ Tensor(b), a @ b, 0


@case("attention")
def _(Tensor, random):
    q, k, v = (normal(random, 2, 32, 16) for _ in range(3))
    x, y, z = wide(q, k, v)
    score = x @ y.swapaxes(1, 2) / 4
    weight = np.exp(score - score.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    found = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v))
    return found, weight @ z, 2**-6 * (weight @ np.abs(z))  # scores of products in tf32


@case("convolution of 3 x 3 with stride 2")
def _(Tensor, random):
    a, w = normal(random, 2, 4, 17, 17), normal(random, 8, 4, 3, 3)
    x, y = wide(a, w)

    def convolved(x, y):
        value = np.zeros((2, 8, 8, 8))
        for i in range(3):
            for j in range(3):
                part = x[:, :, i : i + 15 : 2, j : j + 15 : 2]
                value += np.einsum("bchw,fc->bfhw", part, y[:, :, i, j])
        return value

    value, most = convolved(x, y), convolved(np.abs(x), np.abs(y))
    return Tensor(a).conv2d(Tensor(w), stride=2), value, bound(value, F32, 0, 36, most)


@case("maximum pooling")
def _(Tensor, random):
    a = normal(random, 2, 3, 16, 16)
    value = a.reshape(2, 3, 8, 2, 8, 2).max((3, 5))
    return Tensor(a).max_pool2d((2, 2)), value, 0


@case("embedding: rows by index")
def _(Tensor, random):
    table, index = normal(random, 40, 16), random.integers(0, 40, 50).astype(np.int32)
    return Tensor(table)[Tensor(index)], table[index], 0


@case("permute, reshape, pad, shrink, flip")
def _(Tensor, random):
    a = normal(random, 6, 10, 8)
    found = Tensor(a).permute(2, 0, 1).reshape(16, 30).pad(((1, 2), (0, 3)))[1:, 2:].flip(1)
    value = np.pad(a.transpose(2, 0, 1).reshape(16, 30), ((1, 2), (0, 3)))[1:, 2:][:, ::-1]
    return found, value, 0


@case("concatenation")
def _(Tensor, random):
    a, b = normal(random, 20, 30), normal(random, 15, 30)
    return Tensor(a).cat(Tensor(b), dim=0), np.concatenate([a, b]), 0


@case("a gradient: of a layer's weight")
def _(Tensor, random):
    a, w = normal(random, 32, 24), normal(random, 24, 16)
    weight = Tensor(w)
    (slope,) = Tensor(a).matmul(weight).relu().sum().gradient(weight)
    x, y = wide(a, w)
    # a rounded product may be of another sign only where it is 0 to its rounding
    value = x.T @ (x @ y > 0)
    most = np.abs(x).T @ np.ones((32, 16))
    return slope, value, bound(value, F32, 0, 32, most) + 2**-9 * most


@case("random numbers (Threefry): all within [0, 1), of mean 1/2")
def _(Tensor, random):
    drawn = Tensor.rand(64, 64)
    inside = ((drawn >= 0) & (drawn < 1)).int().sum()
    near = ((drawn.mean() - 0.5).abs() < 0.02).int()
    return inside + near, np.int32(64 * 64 + 1), 0

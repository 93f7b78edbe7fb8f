"""Triton cases of reductions, scans, sorting, histograms, and layers made of them."""

import numpy as np
import triton
import triton.language as tl
from recording import bound, poisoned
from triton_kit import BF16, case, launch, name_of

ROWS, COLUMNS = 6, 200
DEPTH = 8  # of the tree of a sum of 256
WIDTH = 256  # of a block, wider than a row


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def row_sum(x):
    return tl.sum(x, 0)


@triton.jit
def row_max(x):
    return tl.max(x, 0)


@triton.jit
def row_min(x):
    return tl.min(x, 0)


@triton.jit
def row_argmax(x):
    return tl.argmax(x, 0)


@triton.jit
def row_argmin(x):
    return tl.argmin(x, 0)


@triton.jit
def row_xor(x):
    return tl.xor_sum(x, 0)


@triton.jit
def row_product(x):
    return tl.reduce(x, 0, product)


@triton.jit
def reduce_rows(x, y, n, other, F: tl.constexpr, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, mask=at < n, other=other)
    tl.store(y + row, F(value))


REDUCTIONS = {
    "sum": (row_sum, np.sum, 0, (np.float32, np.float16, np.int32, np.float64)),
    "max": (row_max, np.max, -99, (np.float32, BF16, np.int32)),
    "min": (row_min, np.min, 99, (np.float32, np.int64)),
    "argmax": (row_argmax, np.argmax, -99, (np.float32, np.int32)),
    "argmin": (row_argmin, np.argmin, 99, (np.float32,)),
    "xor_sum": (row_xor, np.bitwise_xor.reduce, 0, (np.int32,)),
    "product": (row_product, np.prod, 1, (np.float32,)),
}


def add_reduction(title, function, reference, other, dtype, warps):
    @case(f"{title} of rows, {name_of(dtype)}, {warps} warp{'s' * (warps > 1)}")
    def fill(case, values):
        x = values.of(dtype, ROWS, COLUMNS)
        if title == "product":
            x = np.abs(x) ** np.float32(0.1)
        of = np.int32 if title in ("argmax", "argmin") else dtype
        y = poisoned(ROWS, of)
        floats = np.dtype(dtype).kind not in "iu"
        given = float(other) if floats else other
        launch(case, reduce_rows, ROWS, x, y, COLUMNS, given, F=function, B=WIDTH, num_warps=warps)
        exact = x.astype(np.float64) if floats else x
        value = np.array([reference(row) for row in exact]).astype(None if floats else of)
        if title in ("sum", "product") and floats:
            magnitude = np.abs(exact).sum(1) if title == "sum" else value
            more = DEPTH * 2**-11 * magnitude if dtype == np.float16 else 0  # partial sums too
            case.expect(y, value, bound(value, dtype, 0, COLUMNS, magnitude) + more)
        else:
            case.expect(y, value)


for title, (function, reference, other, dtypes) in REDUCTIONS.items():
    for dtype in dtypes:
        for warps in (1, 4) if title in ("sum", "argmax") else (4,):
            add_reduction(title, function, reference, other, dtype, warps)


@triton.jit
def reduce_tile(x, y, AXIS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    total = tl.sum(tl.load(x + at), AXIS)
    tl.store(y + tl.arange(0, N if AXIS == 0 else M), total)


def add_tile(axis, warps):
    @case(f"sum of a tile along axis {axis}, {warps} warps")
    def fill(case, values):
        x = values.normal(64, 32)
        y = poisoned(x.shape[1 - axis], np.float32)
        launch(case, reduce_tile, 1, x, y, AXIS=axis, M=64, N=32, num_warps=warps)
        value = x.astype(np.float64).sum(axis)
        case.expect(y, value, bound(value, np.float32, 0, 64, np.abs(x).sum(axis)))


for axis in (0, 1):
    for warps in (2, 8):
        add_tile(axis, warps)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def sums_so_far(x, REVERSE: tl.constexpr):
    return tl.cumsum(x, 0, reverse=REVERSE)


@triton.jit
def products_so_far(x, REVERSE: tl.constexpr):
    return tl.cumprod(x, 0, reverse=REVERSE)


@triton.jit
def largest_so_far(x, REVERSE: tl.constexpr):
    return tl.associative_scan(x, 0, larger, reverse=REVERSE)


@triton.jit
def scan_rows(x, y, F: tl.constexpr, B: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, F(tl.load(x + at), REVERSE))


SCANS = {
    "cumulative sum": (sums_so_far, np.cumsum),
    "cumulative product": (products_so_far, np.cumprod),
    "cumulative maximum": (largest_so_far, np.maximum.accumulate),
}


def add_scan(title, function, reference, dtype, reverse):
    @case(f"{title}, {name_of(dtype)}{', from the end' * reverse}")
    def fill(case, values):
        x = values.of(dtype, 3, WIDTH)
        if title == "cumulative product":
            x = np.abs(x) ** np.float32(0.1)
        y = poisoned(x.shape, dtype)
        launch(case, scan_rows, 3, x, y, F=function, B=WIDTH, REVERSE=reverse)
        exact = x[:, ::-1] if reverse else x
        floats = np.dtype(dtype).kind == "f"
        exact = exact.astype(np.float64) if floats else exact

        def scanned(of):
            found = reference(of, axis=1)
            return found[:, ::-1] if reverse else found

        value = scanned(exact)
        if "maximum" in title or not floats:
            case.expect(y, value.astype(dtype))
        else:
            magnitude = scanned(np.abs(exact))
            case.expect(y, value, bound(value, dtype, 0, WIDTH, magnitude))


for title, (function, reference) in SCANS.items():
    for dtype in (np.float32, np.int32) if title != "cumulative product" else (np.float32,):
        for reverse in (False, True):
            add_scan(title, function, reference, dtype, reverse)


@triton.jit
def linear_step(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def recurrence(a, b, y, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    _, value = tl.associative_scan((tl.load(a + at), tl.load(b + at)), 0, linear_step)
    tl.store(y + at, value)


@case("linear recurrence, a scan of pairs")
def _(case, values):
    a, b = values.random.uniform(0, 1, (2, 128)).astype(np.float32), values.normal(2, 128)
    y = poisoned(a.shape, np.float32)
    launch(case, recurrence, 2, a, b, y, B=128)
    value, magnitude = np.zeros((2, 128)), np.zeros((2, 128))
    state, most = np.zeros(2), np.zeros(2)
    for t in range(128):
        state = state * a[:, t] + b[:, t]
        most = most * a[:, t] + np.abs(b[:, t])
        value[:, t], magnitude[:, t] = state, most
    case.expect(y, value, bound(value, np.float32, 0, 32, magnitude))


@triton.jit
def sort_rows(x, y, B: tl.constexpr, DOWN: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.sort(tl.load(x + at), descending=DOWN))


@triton.jit
def largest_rows(x, y, B: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    tl.store(y + row * K + tl.arange(0, K), tl.topk(tl.load(x + row * B + tl.arange(0, B)), K))


def add_sort(dtype, down):
    @case(f"sort, {name_of(dtype)}{', descending' * down}")
    def fill(case, values):
        x = values.of(dtype, 2, 128)
        y = poisoned(x.shape, dtype)
        launch(case, sort_rows, 2, x, y, B=128, DOWN=down)
        value = np.sort(x, axis=1)
        case.expect(y, value[:, ::-1] if down else value)


for dtype, down in ((np.float32, False), (np.int32, True), (np.float16, False)):
    add_sort(dtype, down)


@case("topk")
def _(case, values):
    x, y = values.normal(2, 256), poisoned((2, 8), np.float32)
    launch(case, largest_rows, 2, x, y, B=256, K=8)
    case.expect(y, np.sort(x, axis=1)[:, ::-1][:, :8])


@triton.jit
def count_values(x, y, B: tl.constexpr, BINS: tl.constexpr):
    found = tl.histogram(tl.load(x + tl.program_id(0) * B + tl.arange(0, B)), BINS)
    tl.atomic_add(y + tl.arange(0, BINS), found)


@case("histogram")
def _(case, values):
    x, y = values.integers(0, 32, 4 * 512), np.zeros(32, np.int32)
    launch(case, count_values, 4, x, y, B=512, BINS=32)
    case.expect(y, np.bincount(x, minlength=32))


@triton.jit
def softmax(x, y, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * n + at, value / tl.sum(value, 0), mask=at < n)


@triton.jit
def softmax_in_parts(x, y, n, B: tl.constexpr):
    row = tl.program_id(0)
    most, total = -float("inf"), 0.0
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        value = tl.load(x + row * n + at, mask=at < n, other=-float("inf")).to(tl.float32)
        new = tl.maximum(most, tl.max(value, 0))
        total = total * tl.exp(most - new) + tl.sum(tl.exp(value - new), 0)
        most = new
    for start in range(0, n, B):
        at = start + tl.arange(0, B)
        value = tl.load(x + row * n + at, mask=at < n, other=0).to(tl.float32)
        tl.store(y + row * n + at, tl.exp(value - most) / total, mask=at < n)


def add_softmax(kernel, title, dtype, width):
    @case(f"{title}, {name_of(dtype)}")
    def fill(case, values):
        x = values.normal(ROWS, COLUMNS, dtype=dtype)
        y = poisoned(x.shape, dtype)
        launch(case, kernel, ROWS, x, y, COLUMNS, B=width)
        exact = x.astype(np.float64)
        value = np.exp(exact - exact.max(1, keepdims=True))
        value /= value.sum(1, keepdims=True)
        case.expect(y, value, bound(value, dtype, 2**-18))


for dtype in (np.float32, np.float16, BF16):
    add_softmax(softmax, "softmax", dtype, WIDTH)
add_softmax(softmax_in_parts, "softmax in parts", np.float32, 64)


@triton.jit
def layer_norm(x, weight, bias, y, n, eps, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, mask=at < n, other=0).to(tl.float32)
    centred = tl.where(at < n, value - tl.sum(value, 0) / n, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    w, b = tl.load(weight + at, mask=at < n), tl.load(bias + at, mask=at < n)
    tl.store(y + row * n + at, centred * scale * w + b, mask=at < n)


@triton.jit
def rms_norm(x, weight, y, n, eps, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, mask=at < n, other=0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / n + eps)
    tl.store(y + row * n + at, value * scale * tl.load(weight + at, mask=at < n), mask=at < n)


def add_norm(dtype):
    @case(f"layer norm, {name_of(dtype)}")
    def fill(case, values):
        x = values.normal(ROWS, COLUMNS, dtype=dtype)
        weight, bias = values.normal(COLUMNS), values.normal(COLUMNS)
        y = poisoned(x.shape, dtype)
        launch(case, layer_norm, ROWS, x, weight, bias, y, COLUMNS, 1e-5, B=WIDTH)
        exact = x.astype(np.float64)
        centred = exact - exact.mean(1, keepdims=True)
        value = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * weight
        case.expect(y, value + bias, bound(value + bias, dtype, 0, 32, np.abs(value) + 1))

    @case(f"RMS norm, {name_of(dtype)}")
    def _(case, values):
        x, weight = values.normal(ROWS, COLUMNS, dtype=dtype), values.normal(COLUMNS)
        y = poisoned(x.shape, dtype)
        launch(case, rms_norm, ROWS, x, weight, y, COLUMNS, 1e-5, B=WIDTH)
        exact = x.astype(np.float64)
        value = exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-5) * weight
        case.expect(y, value, bound(value, dtype, 2**-19))


for dtype in (np.float32, np.float16):
    add_norm(dtype)


@triton.jit
def cross_entropy(x, target, y, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    most = tl.max(value, 0)
    total = tl.log(tl.sum(tl.exp(value - most), 0)) + most
    tl.store(y + row, total - tl.load(x + row * n + tl.load(target + row)))


@case("cross entropy")
def _(case, values):
    x, target = values.normal(ROWS, COLUMNS), values.integers(0, COLUMNS, ROWS)
    y = poisoned(ROWS, np.float32)
    launch(case, cross_entropy, ROWS, x, target, y, COLUMNS, B=WIDTH)
    exact = x.astype(np.float64)
    value = np.log(np.exp(exact).sum(1)) - exact[np.arange(ROWS), target]
    case.expect(y, value, bound(value, np.float32, 2**-18) + 2**-18)


@triton.jit
def welford_step(mean1, m1, n1, mean2, m2, n2):
    count = n1 + n2
    share = tl.where(count == 0, 0.0, n2 / count)
    delta = mean2 - mean1
    return mean1 + delta * share, m1 + m2 + delta * delta * n1 * share, count


@triton.jit
def variance(x, y, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, mask=at < n, other=0)
    ones = tl.where(at < n, 1.0, 0.0)
    _, m2, count = tl.reduce((value, tl.zeros_like(value), ones), 0, welford_step)
    tl.store(y + row, m2 / count)


@case("variance by Welford, a reduction of triples")
def _(case, values):
    x, y = values.normal(ROWS, COLUMNS), poisoned(ROWS, np.float32)
    launch(case, variance, ROWS, x, y, COLUMNS, B=WIDTH)
    value = x.astype(np.float64).var(1)
    case.expect(y, value, bound(value, np.float32, 2**-18))

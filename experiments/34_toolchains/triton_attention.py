"""Triton cases of whole layers: attention, its backward pass, rotary embedding, convolution,
quantised products, optimisers."""

import numpy as np
import triton
import triton.language as tl
from recording import bound, poisoned
from triton_kit import BF16, Tiles, case, launch, name_of


@triton.jit
def attention(
    q, k, v, out, most, T, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * T * D
    rows, columns, width = (
        tl.program_id(0) * BM + tl.arange(0, BM),
        tl.arange(0, BN),
        tl.arange(0, D),
    )
    query = tl.load(q + head + rows[:, None] * D + width[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total, sums = tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    end = (tl.program_id(0) + 1) * BM if CAUSAL else T
    for start in range(0, end, BN):
        key = tl.load(k + head + (start + columns)[None, :] * D + width[:, None])
        score = tl.dot(query, key) * scale
        if CAUSAL:
            score = tl.where(rows[:, None] >= (start + columns)[None, :], score, -float("inf"))
        new = tl.maximum(top, tl.max(score, 1))
        weight, less = tl.exp(score - new[:, None]), tl.exp(top - new)
        total, top = total * less + tl.sum(weight, 1), new
        value = tl.load(v + head + (start + columns)[:, None] * D + width[None, :])
        sums = tl.dot(weight.to(value.dtype), value, sums * less[:, None])
    tl.store(
        out + head + rows[:, None] * D + width[None, :],
        (sums / total[:, None]).to(q.dtype.element_ty),
    )
    tl.store(most + tl.program_id(1) * T + rows, top + tl.log(total))


def attended(q, k, v, scale, causal):
    """(weights, output, log of the sum) in float64."""
    q, k, v = (each.astype(np.float64) for each in (q, k, v))
    score = q @ k.swapaxes(-1, -2) * scale
    if causal:
        score = np.where(np.tri(score.shape[-1], dtype=bool), score, -np.inf)
    top = score.max(-1, keepdims=True)
    weight = np.exp(score - top)
    total = weight.sum(-1, keepdims=True)
    return weight / total, weight / total @ v, (top + np.log(total))[..., 0]


def add_attention(dtype, tokens, width, tile, causal, warps):
    title = f"attention, {name_of(dtype)}, {tokens} tokens of {width}, tile {tile[0]}x{tile[1]}"

    @case(title + ", causal" * causal)
    def fill(case, values):
        q, k, v = (values.normal(2, tokens, width, dtype=dtype) for _ in range(3))
        out, most, scale = poisoned(q.shape, dtype), poisoned((2, tokens), np.float32), width**-0.5
        launch(
            case, attention, (tokens // tile[0], 2), q, k, v, out, most, tokens, scale,
            D=width, BM=tile[0], BN=tile[1], CAUSAL=causal, num_warps=warps, num_stages=2,
        )  # fmt: skip
        weight, value, log = attended(q, k, v, scale, causal)
        # weights are rounded to the type of v before the second product
        rounded = {"float16": 2**-11, "bfloat16": 2**-8}.get(np.dtype(dtype).name, 2**-10)
        magnitude = weight @ np.abs(v.astype(np.float64))
        # scores of fp32 operands are products in tf32
        more = 2 * rounded + (2**-7 if dtype == np.float32 else 2**-16)
        case.expect(out, value, bound(value, dtype) + more * magnitude)
        case.expect(most, log, 2**-16 * (1 + np.abs(log)) + (2**-7 if dtype == np.float32 else 0))


for dtype, tokens, width, tile, causal, warps in (
    (np.float16, 128, 64, (64, 64), False, 4),
    (np.float16, 128, 64, (64, 32), True, 4),
    (BF16, 64, 32, (32, 32), True, 2),
    (np.float16, 128, 128, (128, 64), False, 8),
    (np.float32, 64, 32, (32, 32), False, 4),
):
    add_attention(dtype, tokens, width, tile, causal, warps)


@triton.jit
def attention_tiles(q, k, v, out, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM
    query = q.load([row, 0])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total, sums = tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for start in range(0, T, BN):
        score = tl.dot(query, k.load([start, 0]).T) * scale
        new = tl.maximum(top, tl.max(score, 1))
        weight, less = tl.exp(score - new[:, None]), tl.exp(top - new)
        total, top = total * less + tl.sum(weight, 1), new
        sums = tl.dot(weight.to(tl.float16), v.load([start, 0]), sums * less[:, None])
    out.store([row, 0], (sums / total[:, None]).to(tl.float16))


@case("attention by descriptors", ("sm_90",))
def _(case, values):
    q, k, v = (values.normal(128, 64, dtype=np.float16) for _ in range(3))
    out = poisoned(q.shape, np.float16)
    tiles = [Tiles(each, [64, 64]) for each in (q, k, v, out)]
    launch(case, attention_tiles, 2, *tiles, 128, 0.125, D=64, BM=64, BN=64)
    weight, value, _ = attended(q, k, v, 0.125, False)
    magnitude = weight @ np.abs(v.astype(np.float64))
    case.expect(out, value, bound(value, np.float16) + 2**-10 * magnitude)


@triton.jit
def norm_backward(
    x, dy, weight, dx, dw, lock, n, eps, GROUPS: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    row, at = tl.program_id(0), tl.arange(0, B)
    mask = at < n
    value = tl.load(x + row * n + at, mask, 0.0)
    slope = tl.load(dy + row * n + at, mask, 0.0)
    w = tl.load(weight + at, mask, 0.0)
    mean = tl.sum(value, 0) / n
    centred = tl.where(mask, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    normed = centred * scale
    inner = w * slope
    c1, c2 = tl.sum(normed * inner, 0) / n, tl.sum(inner, 0) / n
    tl.store(dx + row * n + at, (inner - (normed * c1 + c2)) * scale, mask)
    group = row % GROUPS
    while tl.atomic_cas(lock + group, 0, 1) == 1:
        pass
    place = dw + group * n + at
    tl.store(place, tl.load(place, mask) + slope * normed, mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock + group, 0)


@case("layer norm's backward pass, with locks")
def _(case, values):
    rows, n = 8, 100
    x, dy, weight = values.normal(rows, n), values.normal(rows, n), values.normal(n)
    dx, dw, lock = (
        poisoned(x.shape, np.float32),
        np.zeros((2, n), np.float32),
        np.zeros(2, np.int32),
    )
    launch(case, norm_backward, rows, x, dy, weight, dx, dw, lock, n, 1e-5, GROUPS=2, B=128)
    exact = x.astype(np.float64)
    centred = exact - exact.mean(1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    normed, inner = centred * scale, weight * dy.astype(np.float64)
    c1, c2 = (normed * inner).mean(1, keepdims=True), inner.mean(1, keepdims=True)
    value = (inner - (normed * c1 + c2)) * scale
    magnitude = (
        np.abs(inner)
        + np.abs(normed) * np.abs(normed * inner).mean(1, keepdims=True)
        + np.abs(inner).mean(1, keepdims=True)
    ) * scale
    case.expect(dx, value, 128 * 2**-23 * magnitude)
    parts = (dy * normed).reshape(4, 2, n).sum(0)
    case.expect(dw, parts, 128 * 2**-23 * np.abs(dy * normed).reshape(4, 2, n).sum(0) + 2**-20)


@triton.jit
def rotary(x, cosine, sine, y, D: tl.constexpr):
    token, at = tl.program_id(0), tl.arange(0, D // 2)
    first, second = tl.load(x + token * D + at), tl.load(x + token * D + D // 2 + at)
    c, s = tl.load(cosine + token * D // 2 + at), tl.load(sine + token * D // 2 + at)
    tl.store(y + token * D + at, first * c - second * s)
    tl.store(y + token * D + D // 2 + at, second * c + first * s)


@case("rotary embedding")
def _(case, values):
    x, angle = values.normal(16, 64), values.normal(16, 32)
    c, s, y = np.cos(angle), np.sin(angle), poisoned((16, 64), np.float32)
    launch(case, rotary, 16, x, c, s, y, D=64)
    a, b = x[:, :32].astype(np.float64), x[:, 32:].astype(np.float64)
    value = np.concatenate([a * c - b * s, b * c + a * s], 1)
    most = np.abs(a) + np.abs(b)
    case.expect(y, value, bound(value, np.float32, 0, 2, np.concatenate([most, most], 1)))


@triton.jit
def convolution(x, w, y, H, W, C: tl.constexpr, F: tl.constexpr, B: tl.constexpr):
    at, filters, channels = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, F), tl.arange(0, C)
    row, column = at // W, at % W
    total = tl.zeros((B, F), tl.float32)
    for tap in range(9):
        i, j = row + tap // 3 - 1, column + tap % 3 - 1
        inside = (i >= 0) & (i < H) & (j >= 0) & (j < W)
        value = tl.load(
            x + (i * W + j)[:, None] * C + channels[None, :], mask=inside[:, None], other=0.0
        )
        weight = tl.load(w + tap * C * F + channels[:, None] * F + filters[None, :])
        total = tl.dot(value, weight, total)
    tl.store(y + at[:, None] * F + filters[None, :], total, mask=(at < H * W)[:, None])


@case("convolution of 3 x 3 by products")
def _(case, values):
    h, w, c, f = 12, 10, 16, 32
    x, weight = (
        values.normal(h, w, c, dtype=np.float16),
        values.normal(3, 3, c, f, dtype=np.float16),
    )
    y = poisoned((h, w, f), np.float32)
    launch(case, convolution, 4, x, weight, y, h, w, C=c, F=f, B=32)

    def convolved(x, weight):
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        taps = [(i, j) for i in range(3) for j in range(3)]
        return sum(padded[i : i + h, j : j + w] @ weight[i, j] for i, j in taps)

    exact, weights = x.astype(np.float64), weight.astype(np.float64)
    magnitude = convolved(np.abs(exact), np.abs(weights))
    value = convolved(exact, weights)
    case.expect(y, value, bound(value, np.float32, 0, 9 * c, magnitude))


@triton.jit
def four_bits(x, packed, scale, y, K, N: tl.constexpr, M: tl.constexpr, BK: tl.constexpr):
    rows, columns, depth = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(x + rows[:, None] * K + (k + depth)[None, :])
        words = tl.load(packed + ((k + depth) // 8)[:, None] * N + columns[None, :])
        codes = (words >> ((depth % 8) * 4)[:, None]) & 15
        step = tl.load(scale + (k // BK) * N + columns)
        right = (codes - 8).to(tl.float16) * step[None, :]
        total = tl.dot(left, right, total)
    tl.store(y + rows[:, None] * N + columns[None, :], total.to(tl.float16))


@case("product with weights of 4 bits")
def _(case, values):
    m, n, k, group = 16, 32, 128, 32
    x, codes = values.normal(m, k, dtype=np.float16), values.integers(0, 16, k, n)
    scale = values.random.uniform(0.5, 1, (k // group, n)).astype(np.float16)
    shifts = np.uint32(4) * np.arange(8, dtype=np.uint32)[None, :, None]
    packed = (codes.astype(np.uint32).reshape(k // 8, 8, n) << shifts).sum(1).astype(np.uint32)
    y = poisoned((m, n), np.float16)
    launch(case, four_bits, 1, x, packed.view(np.int32), scale, y, k, N=n, M=m, BK=group)
    weight = (codes - 8).astype(np.float16) * np.repeat(scale, group, 0)  # rounded to fp16
    value = x.astype(np.float64) @ weight.astype(np.float64)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64)
    case.expect(y, value, bound(value, np.float16, 0, k, magnitude))


@triton.jit
def quantise(x, codes, scales, n, B: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, B)
    value = tl.load(x + row * n + at, at < n, 0.0)
    scale = tl.max(tl.abs(value), 0) / 127.0
    tl.store(scales + row, scale)
    tl.store(codes + row * n + at, tl.floor(value / scale + 0.5).to(tl.int8), at < n)


@case("quantise rows to int8")
def _(case, values):
    x = values.normal(6, 100)
    codes, scales = poisoned((6, 100), np.int8), poisoned(6, np.float32)
    launch(case, quantise, 6, x, codes, scales, 100, B=128)
    scale = np.abs(x.astype(np.float64)).max(1) / 127
    case.expect(scales, scale, bound(scale, np.float32, 2**-22))
    case.expect(codes, np.floor(x / scale[:, None] + 0.5).astype(np.int8))


@triton.jit
def adam(p, g, m, v, n, rate, first, second, eps, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    mask = at < n
    slope = tl.load(g + at, mask)
    mean = first * tl.load(m + at, mask) + (1 - first) * slope
    square = second * tl.load(v + at, mask) + (1 - second) * slope * slope
    tl.store(m + at, mean, mask)
    tl.store(v + at, square, mask)
    tl.store(p + at, tl.load(p + at, mask) - rate * mean / (tl.sqrt(square) + eps), mask)


@case("Adam's step")
def _(case, values):
    n = 700
    p, g, m = values.normal(n), values.normal(n), values.normal(n)
    v = np.abs(values.normal(n))
    exact = [each.astype(np.float64) for each in (p, g, m, v)]
    launch(case, adam, 3, p, g, m, v, n, 0.01, 0.9, 0.99, 1e-8, B=256)
    rate, first, second = (float(np.float32(each)) for each in (0.01, 0.9, 0.99))
    mean = first * exact[2] + (1 - first) * exact[1]
    square = second * exact[3] + (1 - second) * exact[1] ** 2
    step = rate * mean / (np.sqrt(square) + 1e-8)
    most = first * np.abs(exact[2]) + np.abs(exact[1]) * (1 - first)
    case.expect(m, mean, 2**-20 * most)
    case.expect(v, square, 2**-20 * square)
    more = 2**-18 * rate * most / np.sqrt(square)
    case.expect(p, exact[0] - step, bound(exact[0] - step, np.float32) + more)


@triton.jit
def grouped(
    a, b, c, sizes, K: tl.constexpr, N: tl.constexpr, BM: tl.constexpr, GROUPS: tl.constexpr
):
    start = 0
    depth, columns = tl.arange(0, K), tl.arange(0, N)
    for group in range(GROUPS):
        size = tl.load(sizes + group)
        right = tl.load(b + group * K * N + depth[:, None] * N + columns[None, :])
        for first in range(tl.program_id(0) * BM, size, tl.num_programs(0) * BM):
            rows = first + tl.arange(0, BM)
            mask = (rows < size)[:, None]
            left = tl.load(a + (start + rows)[:, None] * K + depth[None, :], mask, 0.0)
            at = (start + rows)[:, None] * N + columns[None, :]
            tl.store(c + at, tl.dot(left, right), mask)
        start += size


@case("grouped products of experts")
def _(case, values):
    sizes, k, n = np.array([20, 0, 45, 15], np.int32), 32, 32
    a, b = values.normal(80, k, dtype=np.float16), values.normal(4, k, n, dtype=np.float16)
    c = poisoned((80, n), np.float32)
    launch(case, grouped, 2, a, b, c, sizes, K=k, N=n, BM=16, GROUPS=4)
    of = np.repeat(np.arange(4), sizes)
    exact, weights = a.astype(np.float64)[:, None], b.astype(np.float64)[of]
    value, magnitude = exact @ weights, np.abs(exact) @ np.abs(weights)
    case.expect(c, value[:, 0], bound(value, np.float32, 0, k, magnitude)[:, 0])

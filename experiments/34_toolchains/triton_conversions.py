"""Triton cases of one element each: conversions between types, and random numbers."""

import numpy as np
import triton
import triton.language as tl
from recording import bound, poisoned
from triton_kit import BF16, E4M3, E5M2, case, launch, name_of

N, BLOCK = 2000, 512  # the last block is not full
GRID = -(-N // BLOCK)


@triton.jit
def convert(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at, mask=at < n).to(y.dtype.element_ty), mask=at < n)


CONVERSIONS = [
    *[(np.float32, to) for to in (np.float16, BF16, E5M2, np.float64, np.int32, np.int8)],
    *[(of, np.float32) for of in (np.float16, BF16, E5M2, np.float64, np.int32, np.int64)],
    *[(np.float16, BF16), (np.int8, np.float16), (np.int32, np.int8), (np.uint8, BF16)],
]


def add_conversion(of, to, targets):
    @case(f"convert {name_of(of)} to {name_of(to)}", targets)
    def fill(case, values):
        x = values.of(of, N)
        if np.dtype(of).name == "float32":
            x = x * np.float32(3)
        y = poisoned(N, to)
        launch(case, convert, GRID, x, y, N, B=BLOCK)
        if np.dtype(to).kind == "i":  # towards zero
            case.expect(y, np.trunc(x.astype(np.float64)).astype(np.int64).astype(to))
        else:
            value = x.astype(np.float64)
            case.expect(y, value, bound(value, to) / 2)


for of, to in CONVERSIONS:
    add_conversion(of, to, ("sm_80", "sm_90"))
for of, to in ((np.float32, E4M3), (E4M3, np.float32), (E4M3, np.float16)):
    add_conversion(of, to, ("sm_90",))


@triton.jit
def towards_zero(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, mask=at < n).to(tl.bfloat16, fp_downcast_rounding="rtz")
    tl.store(y + at, value, mask=at < n)


@case("convert fp32 to bf16 towards zero", ("sm_90",))
def _(case, values):
    x, y = values.normal(N), poisoned(N, BF16)
    launch(case, towards_zero, GRID, x, y, N, B=BLOCK)
    case.expect(y, (x.view(np.uint32) & 0xFFFF0000).view(np.float32))


@triton.jit
def bits(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, mask=at < n).to(tl.int32, bitcast=True)
    tl.store(y + at, (value >> 23) & 0xFF, mask=at < n)


@case("bitcast fp32 to i32")
def _(case, values):
    x, y = values.normal(N), poisoned(N, np.int32)
    launch(case, bits, GRID, x, y, N, B=BLOCK)
    case.expect(y, (x.view(np.int32) >> 23) & 0xFF)


@triton.jit
def noise(y, n, seed, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.rand(seed, at), mask=at < n)


def philox(seed: int, counters: np.ndarray) -> np.ndarray:
    """The first of the four words of Philox4x32-10 of each counter."""
    mask = np.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = counters.astype(np.uint64), *(np.zeros(len(counters), np.uint64),) * 3
    k0, k1 = np.uint64(seed), np.uint64(0)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c2 = (b >> np.uint64(32)) ^ c1 ^ k0, (a >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = b & mask, a & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    return c0.astype(np.uint32)


@case("rand (Philox)")
def _(case, values):
    y = poisoned(N, np.float32)
    launch(case, noise, GRID, y, N, 1234567, B=BLOCK)
    word = philox(1234567, np.arange(N)).view(np.int32).astype(np.int64)
    word = np.where(word < 0, -word - 1, word)
    value = word * 4.6566127342e-10
    case.expect(y, value, bound(value, np.float32, 2**-22))


@triton.jit
def dropout(x, y, n, p, seed, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, mask=at < n)
    keep = tl.rand(seed, at) > p
    tl.store(y + at, tl.where(keep, value / (1 - p), 0.0), mask=at < n)


@case("dropout")
def _(case, values):
    x, y = values.normal(N), poisoned(N, np.float32)
    launch(case, dropout, GRID, x, y, N, 0.25, 77, B=BLOCK)
    word = philox(77, np.arange(N)).view(np.int32).astype(np.int64)
    word = np.where(word < 0, -word - 1, word) * 4.6566127342e-10
    value = np.where(word > 0.25, x / 0.75, 0)
    case.expect(y, value, bound(value, np.float32, 2**-21))

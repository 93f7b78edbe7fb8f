"""Kernels in the CuTe DSL, each with its float64 result and the bound of its error."""

import cutlass
import cutlass.cute as cute
import numpy as np
from cute_kit import run, tensor
from recording import bound, poisoned

CASES: list = []  # (name, targets, function that fills a Case)
BOTH = ("sm_80", "sm_90")


def case(name: str, targets=BOTH):
    def register(function):
        CASES.append((name, targets, function))
        return function

    return register


def normal(*shape, dtype=np.float32):
    return np.random.default_rng(34).standard_normal(shape).astype(dtype)


@cute.kernel
def add_kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 128 + thread
    if at < cute.size(c):
        c[at] = a[at] + b[at]


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    blocks = (cute.size(c) + 127) // 128
    add_kernel(a, b, c).launch(grid=(blocks, 1, 1), block=(128, 1, 1))


def add_sum(dtype):
    @case(f"add, {np.dtype(dtype).name}")
    def fill(case):
        a, b, c = normal(1000, dtype=dtype), normal(1000, dtype=dtype)[::-1].copy(), None
        c = poisoned(1000, dtype)
        run(case, add, *(tensor(case, each) for each in (a, b, c)))
        value = a.astype(np.float64) + b.astype(np.float64)
        case.expect(c, value, bound(value, dtype))


for dtype in (np.float32, np.float16):
    add_sum(dtype)

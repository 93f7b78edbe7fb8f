"""Products of cuBLAS that programs compare their kernels with, or use beside them, by NumPy in
float64: column-major matrices of float32, float16 and bfloat16, alpha and beta on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

FLOAT, HALF, BFLOAT = 0, 2, 14  # numbers of enum cudaDataType
BYTES = {FLOAT: 4, HALF: 2, BFLOAT: 2}
NOTHING_TO_DO = """cublasDestroy cublasSetMathMode cublasLtDestroy cublasSetStream
cublasSetWorkspace""".split()


def numbers(raw: np.ndarray, kind: int) -> np.ndarray:
    if kind == BFLOAT:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(np.float32 if kind == FLOAT else np.float16)


def stored(values: np.ndarray, kind: int) -> np.ndarray:
    if kind == BFLOAT:
        bits = values.astype(np.float32).view(np.uint32)
        return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return values.astype(np.float32 if kind == FLOAT else np.float16)


class Blas:
    """``memory(address, nbytes)``: the bytes there."""

    def __init__(self, memory: Callable[[int, int], np.ndarray]) -> None:
        self.memory = memory

    def function(self, name: str):
        name = name.removesuffix("_v2")
        if name in NOTHING_TO_DO:
            return self.nothing
        return getattr(self, name, None) if name.startswith("cublas") else None

    def nothing(self):
        return 0

    def cublasCreate(self, place):
        ctypes.c_long.from_address(place).value = 0x77

    cublasLtCreate = cublasCreate

    def cublasSgemm(self, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        self.product(
            (ta, tb, m, n, k), (alpha, beta), [(a, lda, FLOAT), (b, ldb, FLOAT), (c, ldc, FLOAT)]
        )

    def cublasSgemmStridedBatched(
        self, handle, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, count
    ):
        for i in range(count & 0xFFFFFFFF):
            self.product(
                (ta, tb, m, n, k),
                (alpha, beta),
                [
                    (a + 4 * i * sa, lda, FLOAT),
                    (b + 4 * i * sb, ldb, FLOAT),
                    (c + 4 * i * sc, ldc, FLOAT),
                ],
            )

    def cublasGemmEx(
        self, handle, ta, tb, m, n, k, alpha, a, ka, lda, b, kb, ldb, beta, c, kc, ldc
    ):
        self.product(
            (ta, tb, m, n, k),
            (alpha, beta),
            [(a, lda, ka & 0xFF), (b, ldb, kb & 0xFF), (c, ldc, kc & 0xFF)],
        )

    def cublasGemmStridedBatchedEx(self, *given):
        _, ta, tb, m, n, k, alpha, a, ka, lda, sa, b, kb, ldb, sb, beta, *rest = given
        c, kc, ldc, sc, count, *_ = rest
        of = (a, ka & 0xFF, lda, sa), (b, kb & 0xFF, ldb, sb), (c, kc & 0xFF, ldc, sc)
        for i in range(count & 0xFFFFFFFF):
            self.product(
                (ta, tb, m, n, k),
                (alpha, beta),
                [(at + BYTES[kind] * i * step, lead, kind) for at, kind, lead, step in of],
            )

    def product(self, form: tuple, factors: tuple, matrices: list) -> None:
        """c = alpha op(a) op(b) + beta c. ``form``: of which a and b are transposed, m, n, k;
        ``matrices``: address, leading dimension and type of a, b and c."""
        ta, tb, m, n, k = (each & 0xFFFFFFFF for each in form)
        alpha, beta = (ctypes.c_float.from_address(each).value for each in factors)
        shapes = (k, m) if ta else (m, k), (n, k) if tb else (k, n), (m, n)
        views = []
        for (address, leading, kind), (rows, columns) in zip(matrices, shapes):
            leading &= 0xFFFFFFFF
            size = (columns - 1) * leading + rows
            raw = self.memory(address, size * BYTES[kind])
            strides = BYTES[kind] * np.array((1, leading))
            words = raw.view(f"u{BYTES[kind]}")
            views.append(np.lib.stride_tricks.as_strided(words, (rows, columns), strides))
        x, y, out = (
            numbers(np.ascontiguousarray(view).reshape(-1).view(np.uint8), kind)
            .reshape(view.shape)
            .astype(np.float64)
            for view, (_, _, kind) in zip(views, matrices)
        )
        found = alpha * ((x.T if ta else x) @ (y.T if tb else y)) + (beta * out if beta else 0)
        (_, _, kind) = matrices[2]
        views[2][:] = stored(found, kind).view(f"u{BYTES[kind]}")

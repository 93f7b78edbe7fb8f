"""Kernels of numba-cuda-mlir as anybody writes them. A module of its own: messages name lines of
it."""

import numba_cuda_mlir.types as types
from numba_cuda_mlir import cuda

THREADS = 64


@cuda.jit(device=True)
def scaled(factor, x):
    return factor * x


@cuda.jit
def saxpy(factor, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = scaled(factor, x[i]) + y[i]


@cuda.jit
def transposed(table, out):
    i, j = cuda.grid(2)
    if i < table.shape[0] and j < table.shape[1]:
        out[j, i] = table[i, j]


@cuda.jit
def total(x, out):
    shared = cuda.shared.array(THREADS, types.int32)
    t = cuda.threadIdx.x
    shared[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    width = THREADS // 2
    while width:
        if t < width:
            shared[t] += shared[t + width]
        cuda.syncthreads()
        width //= 2
    if t == 0:
        cuda.atomic.add(out, 0, shared[0])


@cuda.jit
def numbers(out, whole, real, truth, pair):
    out[0] = whole + pair[0]
    if truth:
        out[1] = real + pair[1]


@cuda.jit
def too_far(x):
    i = cuda.grid(1)
    x[i] = i


@cuda.jit
def unordered(out):
    shared = cuda.shared.array(THREADS, types.int32)
    i = cuda.threadIdx.x
    shared[i] = i
    out[i] = shared[THREADS - 1 - i]  # no syncthreads

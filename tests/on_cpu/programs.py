"""Kernels as anybody writes them. A module of its own: messages name lines of it."""

import numpy as np
from numba import cuda, float32, int32

TILE = 8


@cuda.jit(device=True)
def scaled(factor, x):
    return factor * x


@cuda.jit
def saxpy(factor, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = scaled(factor, x[i]) + y[i]


@cuda.jit
def too_far(x):
    i = cuda.grid(1)
    x[i] = i


@cuda.jit
def too_far_in_two(table):
    i, j = cuda.grid(2)
    table[i, j] = 1


@cuda.jit
def unordered(out):
    shared = cuda.shared.array(64, int32)
    i = cuda.threadIdx.x
    shared[i] = i
    out[i] = shared[63 - i]  # no syncthreads


@cuda.jit
def product(a, b, c):
    left = cuda.shared.array((TILE, TILE), float32)
    right = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for step in range(a.shape[1] // TILE):
        left[tx, ty] = a[x, ty + step * TILE]
        right[tx, ty] = b[tx + step * TILE, y]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[tx, k] * right[k, ty]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit
def counted(values, bins):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(bins, values[i], 1)


@cuda.jit
def rows(table):
    """Every row is the one before in reverse order, and one more."""
    column, grid = cuda.grid(1), cuda.cg.this_grid()
    for row in range(1, table.shape[0]):
        table[row, column] = table[row - 1, table.shape[1] - column - 1] + 1
        grid.sync()


@cuda.jit
def says(x):
    i = cuda.grid(1)
    print("thread", i, "has", x[i], x[i] > 1)


WEIGHTS = np.arange(8, dtype=np.float32)


@cuda.jit
def weighted(out):
    weights, mine = cuda.const.array_like(WEIGHTS), cuda.local.array(4, float32)
    i = cuda.grid(1)
    for j in range(4):
        mine[j] = weights[i] * j
    out[i] = mine[1] + mine[3]


@cuda.jit
def dynamic(out):
    shared = cuda.shared.array(0, int32)
    i = cuda.threadIdx.x
    shared[i] = 2 * i
    cuda.syncthreads()
    out[i] = shared[cuda.blockDim.x - 1 - i]


@cuda.jit
def counting(turns, out):
    for _ in range(turns):
        cuda.atomic.add(out, cuda.blockIdx.x, 1)

"""A guard that says `and` where it means `or`."""

import numpy as np
from numba import cuda, float32

from numba_marlin import judge

ISSUES = ("numba/numba#6884", "numba/numba#7324", "numba/numba#7330")
SEEN = """The matrix product with tiles in shared memory in Numba's own documentation gave wrong
results to who copied it."""
CAUSE = """A thread left only if its row *and* its column were outside. In the last row or column
of blocks the others went on, and read and wrote what is not theirs."""
FIX = """Numba's documentation now fills what is outside of the matrices with zeros, keeps all
threads for the barriers, and stores only what is inside."""
KIND = "out-of-bounds"
TILE = 4


def tiles(size):
    return -(-size // TILE)


task = judge.Task(
    title="product of matrices",
    sizes={name: judge.Size(1, 9) for name in ("m", "n", "k")},
    arguments=[
        judge.Input("a", "float32", ("m", "k")),
        judge.Input("b", "float32", ("k", "n")),
        judge.Output("c", "float32", ("m", "n")),
    ],
    reference=lambda a, b: a @ b,
    bound=lambda a, b, k: judge.sum_bound(k + TILE, np.abs(a) @ np.abs(b)),
    grid=lambda m, n: (tiles(m), tiles(n)),
    block=(TILE, TILE),
)


@cuda.jit
def broken(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if x >= c.shape[0] and y >= c.shape[1]:
        return
    total = float32(0)
    for i in range(cuda.gridDim.x):
        tile_a[tx, ty] = a[x, ty + i * TILE]
        tile_b[tx, ty] = b[tx + i * TILE, y]
        cuda.syncthreads()
        for j in range(TILE):
            total += tile_a[tx, j] * tile_b[j, ty]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit
def fixed(a, b, c):
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for i in range((a.shape[1] + TILE - 1) // TILE):
        tile_a[tx, ty] = 0
        tile_b[tx, ty] = 0
        if x < a.shape[0] and ty + i * TILE < a.shape[1]:
            tile_a[tx, ty] = a[x, ty + i * TILE]
        if y < b.shape[1] and tx + i * TILE < b.shape[0]:
            tile_b[tx, ty] = b[tx + i * TILE, y]
        cuda.syncthreads()
        for j in range(TILE):
            total += tile_a[tx, j] * tile_b[j, ty]
        cuda.syncthreads()
    if x < c.shape[0] and y < c.shape[1]:
        c[x, y] = total

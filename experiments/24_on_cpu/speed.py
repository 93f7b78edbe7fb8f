"""Five kernels as Numba's documentation has them, timed by the process's own time: python speed.py
BLOCKS RACES prints a line of JSON each. With NUMBA_ENABLE_CUDASIM=1 they run on Numba's old
simulator, else under the switch.
"""

import contextlib
import json
import os
import sys
import time
import warnings

import numpy as np
from numba import cuda, float32, int32

warnings.simplefilter("ignore")
TILE, THREADS = 16, 128


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


@cuda.jit
def matmul(a, b, c):
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
def reduce(x, out):
    shared = cuda.shared.array(THREADS, int32)
    tid, i = cuda.threadIdx.x, cuda.grid(1)
    shared[tid] = x[i]
    cuda.syncthreads()
    s = THREADS // 2
    while s:
        if tid < s:
            shared[tid] += shared[tid + s]
        cuda.syncthreads()
        s //= 2
    if tid == 0:
        cuda.atomic.add(out, 0, shared[0])


@cuda.jit
def histogram(x, bins):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(bins, x[i], 1)


@cuda.jit
def rows(table):
    column, grid = cuda.grid(1), cuda.cg.this_grid()
    for row in range(1, table.shape[0]):
        table[row, column] = table[row - 1, table.shape[1] - column - 1] + 1
        grid.sync()


def cases(blocks):
    """(name, launch, is it right?) for about ``blocks`` blocks."""
    n, rng = blocks * THREADS, np.random.default_rng(0)
    x = rng.integers(0, 16, n).astype(np.int32)
    out = np.zeros(n, np.int32)
    yield "vector add", lambda: add[blocks, THREADS](x, x, out), lambda: (out == 2 * x).all()
    side = TILE * max(1, round(blocks**0.5))
    a = rng.integers(-4, 5, (side, side)).astype(np.float32)
    c, tiles = np.zeros_like(a), (side // TILE,) * 2
    yield "matmul", lambda: matmul[tiles, (TILE, TILE)](a, a, c), lambda: (c == a @ a).all()
    total = np.zeros(1, np.int32)
    yield "reduction", lambda: reduce[blocks, THREADS](x, total), lambda: total[0] == x.sum()
    bins = np.zeros(16, np.int32)
    yield (
        "histogram",
        lambda: histogram[blocks, THREADS](x, bins),
        lambda: (bins == np.bincount(x, minlength=16)).all(),
    )
    if not os.environ.get("NUMBA_ENABLE_CUDASIM") or blocks == 1:  # which has one block there
        table = np.zeros((8, n), np.int32)
        yield (
            "grid.sync",
            lambda: rows[blocks, THREADS](table),
            lambda: (table == np.arange(8)[:, None]).all(),
        )


def main():
    blocks, races = int(sys.argv[1]), {"auto": None, "on": True, "off": False}[sys.argv[2]]
    old = bool(os.environ.get("NUMBA_ENABLE_CUDASIM"))
    if old:
        switch = contextlib.nullcontext()
    else:
        from numba_marlin.on_cpu import cuda as on_cpu

        switch = on_cpu(races=races)
    with switch:
        for name, launch, right in cases(blocks):
            start = time.process_time()
            launch()
            first = time.process_time() - start
            assert right(), name
            seconds = []
            while len(seconds) < 3 and sum(seconds) < 10:
                start = time.process_time()
                launch()
                seconds.append(time.process_time() - start)
            print(
                json.dumps(
                    {
                        "case": name,
                        "blocks": blocks,
                        "on": "simulator" if old else f"machine, races {sys.argv[2]}",
                        "first": round(first, 4),
                        "seconds": round(min(seconds), 5),
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()

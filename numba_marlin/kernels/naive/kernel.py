"""Rung 1: a thread per output. What the product *is*, with no idea about how to make it fast:
1333 us on an H200, for 16 rows of x times 4096 x 4096 weights (experiments/18_ladder).

    y[row, col] = sum over k of x[row, k] * (code[k, col] - 8) * scale[k's group, col]

    x, y      float16 [m, k] and [m, n]
    qweight   int32 [k / 16, 2 n]: 4-bit codes, eight to a word, in the order of the Marlin format
    scales    float16 [groups, n]: one per column and group of k / groups weights, in Marlin's order

k is a multiple of 16, so is the length of a group, and n is a multiple of 64. There are two groups
or more: of a single one, a scale per column, Marlin stores the scales in another order, and this
kernel would take the wrong ones without a word. Nothing else is checked here either. To try it:

    import numpy as np, numba_marlin as nm
    w = np.random.randn(k, n).astype(np.float32)
    p = nm.pack(nm.quantize(w, group_size=64))      # p.qweight and p.scales are what is wanted here
    threads = 128
    naive[(m * n + threads - 1) // threads, threads](x, p.qweight, p.scales, y)

The one thing to learn here is where Marlin keeps a weight. It packs blocks of 16 (k) by 64 (n)
weights, 128 words each: four consecutive words for each of 32 lanes. "Lane" means a place in the
format here: this kernel has no use for warps. Word 4 * lane + j, j = 0 to 3, holds eight codes;
nibble p (bits 4 p to 4 p + 3) is that of

    k = 2 * (lane % 4) + p // 4 + 8 * (p % 2)
    n = 16 * j + lane // 4 + 8 * (p // 2 % 2)

because that is what a lane of the tensor core's ``mma.m16n8k16`` multiplies (the next rung uses
it). Read backwards, this gives the word and the nibble of any k and n, below. Group scales are
permuted for the same reason: inside 64 columns, column c stands at place 8 * (c % 8) + c // 8.
"""

import numpy as np
from numba import cuda


@cuda.jit(device=True, forceinline=True)
def code_of(qweight, k, n):
    """The code of weight [k, n], 0 to 15."""
    # n % 8 is lane // 4, and k // 2 % 4 is lane % 4
    lane = n % 8 * 4 + k // 2 % 4
    nibble = k // 8 % 2 + 2 * (n // 8 % 2) + 4 * (k % 2)
    word = qweight[k // 16, n // 64 * 128 + 4 * lane + n // 16 % 4]
    return (word >> (4 * nibble)) & 15


@cuda.jit
def naive(x, qweight, scales, y):
    m, n = y.shape
    group_size = x.shape[1] // scales.shape[0]
    output = cuda.grid(1)
    row, col = output // n, output % n
    if row >= m:
        return
    total = np.float32(0)
    for group in range(scales.shape[0]):
        # inside its 64 columns, col stands at 8 * (col % 8) + col // 8 % 8
        scale = np.float32(scales[group, col // 64 * 64 + 8 * (col % 8) + col // 8 % 8])
        for k in range(group * group_size, (group + 1) * group_size):
            weight = np.float32(code_of(qweight, k, col) - 8) * scale
            total += np.float32(x[row, k]) * weight
    y[row, col] = total

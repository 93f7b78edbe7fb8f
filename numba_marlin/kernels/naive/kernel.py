"""Rung 1: a thread per output. What the product *is*, with no idea about how to make it fast.

    y[row, col] = sum over k of x[row, k] * (code[k, col] - 8) * scale[k's group, col]

x, y      float16 [m, k] and [m, n]
qweight   int32 [k / 16, 2 n]: the 4-bit codes, eight to a word, in the order of the Marlin format
scales    float16 [groups, n]: one per column and group of k / groups weights, in Marlin's order
          n is a multiple of 64; a group, of which there are two or more, a multiple of 16 long

    threads = 128
    naive[(m * n + threads - 1) // threads, threads](x, qweight, scales, y)

The one thing to learn here is where Marlin keeps a weight. It packs blocks of 16 (k) by 64 (n)
weights, 128 words each. A warp's lane owns four consecutive words of a block, and nibble p of word
4 * lane + j (bits 4 p to 4 p + 3) holds the code of

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
        scale = np.float32(scales[group, col // 64 * 64 + 8 * (col % 8) + col // 8 % 8])
        for k in range(group * group_size, (group + 1) * group_size):
            weight = np.float32(code_of(qweight, k, col) - 8) * scale
            total += np.float32(x[row, k]) * weight
    y[row, col] = total

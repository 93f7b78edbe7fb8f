"""The first kernel of the ladder (README.md): one thread per output. It shows what the product is,
with no idea about how to make it fast: 1333 us on an H200 (m 16, n and k 4096, groups of 128; cold
L2, experiments/18_ladder). Next: ``tiled``, ``buffered``, ``ampere``: kernels are named by their
folder in numba_marlin/kernels, other files from the repository's root; declare.py is beside this.

    y[row, col] = sum over w_row, 0 to k - 1, of
        x[row, w_row] * (code[w_row, col] - 8) * scale[w_row // group_size, col]

    x, y      float16 [m, k] and [m, n]
    qweight   int32 [k / 16, 2 n]: 4-bit codes, eight to a word, in the order of the Marlin format
    scales    float16 [groups, n], where group_size = k / groups, in Marlin's order

The kernel needs n to be a multiple of 64, k of 16, and group_size to divide k; the format needs
group_size to be a multiple of 16. m is any number: indices have 64 bits. There must be two groups
or more: the scales of a single group are in another order (numba_marlin/kernels/dequantize/
lookup.py, ``load_scale``), and the result would be wrong. A launch checks nothing of this. ``pack``
and ``nm.matmul(x, p, kernel="naive")`` do (``takes`` in declare.py); the latter launches this code.

To try it, run ``pip install -e '.[cu13]'`` in a checkout of the repository (cu12 if the driver is
for CUDA 12). That installs numba_marlin, which quantises and packs the weights, and numba-cuda 0.30
or newer, which replaces the ``numba.cuda`` that Numba brings. The GPU must have compute capability
8.0 or more (the package's limit, not this kernel's). Copy this file to a notebook, then run:

    import numba_marlin as nm
    m, n, k, threads = 16, 256, 512, 128
    x = np.random.randn(m, k).astype(np.float16)
    w = np.random.randn(k, n).astype(np.float32)
    p = nm.pack(nm.quantize(w, group_size=128))  # 4 bits, as above: p.qweight, p.scales
    y = np.empty((m, n), np.float16)
    naive[(m * n + threads - 1) // threads, threads](x, p.qweight, p.scales, y)  # any ``threads``
    wanted = x @ nm.dequantize(p, np.float32)  # (code - 8) * scale, exact; product in float32
    np.testing.assert_allclose(y, wanted, rtol=0.001, atol=0.05)  # y is rounded to float16

These are NumPy arrays: Numba copies them to the GPU and back (and warns that this is slow). Arrays
on the device (``cuda.to_device``, CuPy, torch) do as well. Without a GPU, ``nm.matmul(x, p,
backend="emulator", kernel="naive")`` runs the package's copy of this file on its PTX emulator.

The one thing to learn here is where Marlin keeps a weight. W [k, n] is cut into pieces of 16 x 64
weights, 128 words each. That of rows k0 to k0 + 15 and columns n0 to n0 + 63 is in row k0 / 16 of
qweight, words 2 n0 to 2 n0 + 127: four consecutive words for each of 32 lanes. "Lane" means a place
in the format here: this kernel has no use for warps. Word 4 * lane + j of the piece, j = 0 to 3,
holds eight codes; nibble p (bits 4 p to 4 p + 3) is the code of the weight in this row and column:

    w_row = k0 + 2 * (lane % 4) + p // 4 + 8 * (p % 2)
    col   = n0 + 16 * j + lane // 4 + 8 * (p // 2 % 2)

because these are a lane's B fragments of the tensor core's ``mma.m16n8k16`` (``tiled`` uses it) for
8 columns (register 0: nibbles 0, 4; register 1: 1, 5) and the next 8 (2, 6; 3, 7). ``code_of`` is
the same read backwards. The scale of column n0 + c, c = 0 to 63, is at n0 + 8 * (c % 8) + c // 8 of
its group's row: lanes 4 g to 4 g + 3 need those of columns n0 + g + 8 i, i = 0 to 7, side by side.

Order of work, per group: load the scale; per row of W: load the word, shift and mask, subtract 8,
multiply by the scale; load x, add the product (numba-cuda: one FMA). Nothing overlaps but what the
compiler reorders: no copy is asynchronous, there are no stages, and there is no shared memory (so
no bank conflicts). No sum is shared either: each is one thread's, fp32, over rising w_row, the same
in every run. Weights are fp32 (exact); ``tiled`` and ``buffered`` round them to float16, so their
last bits differ. For one w_row, a warp's 32 columns need 16 words of qweight, two in each of 8
sectors of 32 bytes: a quarter of what is fetched. The other words of these sectors are for other
rows of the 16 and for the next warp, if L1 keeps them until then.

State of the main loop: ``group``, a row of scales; ``scale``, of this group and column; ``w_row``,
a row of W; ``total``, the sum over the rows of W before it.
"""

import numpy as np
from numba import cuda


@cuda.jit(device=True, forceinline=True)
def code_of(qweight, w_row, col):
    """The code, 0 to 15, of the weight in this row and column of the whole matrix."""
    lane = col % 8 * 4 + w_row // 2 % 4  # col % 8 is lane // 4, and w_row // 2 % 4 is lane % 4
    nibble = w_row // 8 % 2 + 2 * (col // 8 % 2) + 4 * (w_row % 2)
    word = qweight[w_row // 16, col // 64 * 128 + 4 * lane + col // 16 % 4]
    return (word >> (4 * nibble)) & 15  # word is signed: the mask removes the copies of its sign


@cuda.jit
def naive(x, qweight, scales, y):
    m, n = y.shape
    group_size = x.shape[1] // scales.shape[0]
    output = cuda.grid(1)  # y's elements in the order of memory, one per thread
    row, col = output // n, output % n
    if row >= m:  # a thread of the last thread block, past the end of y
        return
    total = np.float32(0)
    for group in range(scales.shape[0]):
        # place in the row: that of the 64 columns, and 8 * (c % 8) + c // 8 with c = col % 64
        scale = np.float32(scales[group, col // 64 * 64 + 8 * (col % 8) + col // 8 % 8])
        for w_row in range(group * group_size, (group + 1) * group_size):
            weight = np.float32(code_of(qweight, w_row, col) - 8) * scale
            total += np.float32(x[row, w_row]) * weight
    y[row, col] = total  # Numba converts to float16 (cvt.rn: to nearest, ties to even): 2 bytes

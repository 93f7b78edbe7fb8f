"""Activations to 8 bits: plain Numba, float16 and bfloat16 to int8 and e4m3.

    x        int32 [m, k / 2]: two numbers to a word
    codes    int32 [m, k / 4]: four codes to a word, k permuted within 16 (``layout.w4a8``)
    scales   float32 [m, groups]: each of k / groups numbers, a multiple of 16

A thread block of 256 threads has a group of a row (blockIdx.x: row, y: group), and reads it twice,
the second time out of L1 or L2: for its largest magnitude, and to divide by the scale that follows
from it. Of each 16 numbers, word t of codes has those of words t and t + 4 of x: k = 2t, 2t + 1, 2t
+ 8, 2t + 9, which is the order that is wanted, so that nothing is shuffled. Magnitudes are compared
as integers, the bits of a float without its sign: infinity and NaN are then the largest, and give
the scale NaN and codes of 0 (``quantizers.activations`` has the rules).

Expected, for nobody has timed it: m k numbers take 3 m k bytes of memory, 25 us at m = 4096, k =
8192 on an H200; a division is eight instructions, about 14 us of all SMs' issue slots.
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

THREADS, WARPS = 256, 8
SIZE, INFINITY = 0x7FFFFFFF, 0x7F800000  # all bits of a float32 but its sign; those of infinity
NAN_BITS = 0x7FC00000
LARGEST_INT8, LARGEST_FP8 = np.float32(127), np.float32(448)
ROUND = np.float32(12582912)  # 1.5 * 2**23: adding it rounds to an integer, in the lowest bits


@cuda.jit(device=True, forceinline=True)
def numbers_of(x, row, word, brain):
    """-> the four numbers of a word of codes, as float32. brain: of bfloat16."""
    first = x[row, word // 4 * 8 + word % 4]
    second = x[row, word // 4 * 8 + word % 4 + 4]
    if brain:
        return (
            ptx.cvt_f32_bf16_low(first),
            ptx.cvt_f32_bf16_high(first),
            ptx.cvt_f32_bf16_low(second),
            ptx.cvt_f32_bf16_high(second),
        )
    return (
        ptx.cvt_f32_f16_low(first),
        ptx.cvt_f32_f16_high(first),
        ptx.cvt_f32_f16_low(second),
        ptx.cvt_f32_f16_high(second),
    )


@cuda.jit(device=True, forceinline=True)
def size_of(number):
    """A magnitude, as the integer that its bits are."""
    return np.int32(ptx.bits_of_f32(number) & SIZE)


@cuda.jit(device=True, forceinline=True)
def largest_of_block(largest, shared):
    """-> the largest integer of all threads, in all of them. shared: a word for each warp."""
    for step in range(5):
        largest = max(largest, np.int32(ptx.shfl_sync_bfly(largest, 16 >> step)))
    if cuda.threadIdx.x % 32 == 0:
        shared[cuda.threadIdx.x // 32] = largest
    cuda.syncthreads()
    for warp in range(WARPS):
        largest = max(largest, shared[warp])
    return largest


@cuda.jit(device=True, forceinline=True)
def byte_of(quotient):
    """The nearest integer from -127 to 127, ties to even: a byte in two's complement."""
    near = ptx.min_f32(ptx.max_f32(quotient, -LARGEST_INT8), LARGEST_INT8)
    return ptx.bits_of_f32(near + ROUND) & 255


@cuda.jit(device=True, forceinline=True)
def int8_of(a, b, c, d):
    return byte_of(a) | byte_of(b) << 8 | byte_of(c) << 16 | byte_of(d) << 24


@cuda.jit(device=True, forceinline=True)
def e4m3_of(a, b, c, d):
    low, high = ptx.cvt_rn_satfinite_e4m3x2_f32(a, b), ptx.cvt_rn_satfinite_e4m3x2_f32(c, d)
    return np.int32(low) | np.int32(high) << 16


@cuda.jit(device=True, forceinline=True)
def quantize(x, codes, scales, shared, brain, fp8):
    """shared: of ``largest_of_block`` (declared in the kernels: in a device function
    numba-cuda-mlir 0.6 loses it); brain: x is bfloat16; fp8: codes are e4m3."""
    row, group, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    words = codes.shape[1] // scales.shape[1]
    first, end = group * words, (group + 1) * words
    largest = np.int32(0)
    for word in range(first + thread, end, THREADS):
        a, b, c, d = numbers_of(x, row, word, brain)
        largest = max(largest, max(max(size_of(a), size_of(b)), max(size_of(c), size_of(d))))
    largest = largest_of_block(largest, shared)
    finite = largest < INFINITY
    scale = ptx.f32_of_bits(largest) / (LARGEST_FP8 if fp8 else LARGEST_INT8)
    if thread == 0:
        scales[row, group] = scale if finite else ptx.f32_of_bits(NAN_BITS)
    for word in range(first + thread, end, THREADS):
        made = np.int32(0)
        if finite and largest != 0:
            a, b, c, d = numbers_of(x, row, word, brain)
            if fp8:
                made = np.int32(e4m3_of(a / scale, b / scale, c / scale, d / scale))
            else:
                made = np.int32(int8_of(a / scale, b / scale, c / scale, d / scale))
        codes[row, word] = made


@cuda.jit
def float16_to_int8(x, codes, scales):
    quantize(x, codes, scales, cuda.shared.array(WARPS, np.int32), False, False)


@cuda.jit
def float16_to_fp8(x, codes, scales):
    quantize(x, codes, scales, cuda.shared.array(WARPS, np.int32), False, True)


@cuda.jit
def bfloat16_to_int8(x, codes, scales):
    quantize(x, codes, scales, cuda.shared.array(WARPS, np.int32), True, False)


@cuda.jit
def bfloat16_to_fp8(x, codes, scales):
    quantize(x, codes, scales, cuda.shared.array(WARPS, np.int32), True, True)

"""Activations to 8 bits: plain Numba, float16 and bfloat16 to int8 and e4m3.

    x        int32 [m, k / 2]: two numbers to a word
    codes    int32 [m, k / 4]: four codes to a word, k permuted within 16 (``layout.w4a8``)
    scales   float32 [m, groups]: each of k / groups numbers, a multiple of 16
    offsets  int32 [parts m, P / 2]: two to a word, of e4m3 with a scale per row; one part of
             float16, two of bfloat16 (``formats.activations``)

A thread block has a group of a row (blockIdx.x: row, y: group), and reads it twice, the second time
out of L1: for its largest magnitude, and to multiply by the inverse of the scale that follows from
it. A thread takes 16 numbers at a time, two loads of 16 bytes. Of each 16, word t of codes has
those of words t and t + 4 of x: k = 2t, 2t + 1, 2t + 8, 2t + 9, which is the order that is wanted,
so that nothing is shuffled. Magnitudes are compared as integers, the bits of a number without its
sign, in the upper half of a word: infinity and NaN are then the largest, and give the scale NaN and
codes of 0 (``quantizers.activations`` has the rules).

m k numbers take 3 m k bytes of memory: 23 us at m = 4096, k = 8192 on an H200, where this takes 31,
and 33 with offsets (4096 x 4096: 14 and 15 of 12; 4096 x 28672: 93 and 95 of 82; 2026-11-29). A
form with loads of 4 bytes and a division for each number took 80. Counting in 64 bits, as Python's
``range`` and ``//`` do in Numba, took half of all instructions (five divisions of 64 bits before
the first load), 26 us where it then was 15 to 16; and blocks whose rows do not fit into L1 together
read them again from L2: 139 us with 256 threads at k = 28672, 104 with 512, 181 with 1,024
(``definitions.RowTypes.for_rows``).

Many rows are bound by instructions. Of 16 numbers, float16 to e4m3, they were 51 in the first loop
and 89 in the second, 191 with offsets (36 us at 4096 x 8192, 128 at 4096 x 28672, 9.7 at 1024 x
8192, which takes 7.1 now). They are 30 and 52, with offsets 93 (bfloat16: 123; numba-cuda for
sm_90a). With offsets, tensor cores have taken the place of 16 conversions to float32, 16 additions
and four of seven shuffles (``sums_of``). The rest was in all kernels: addresses that were computed
anew in each turn, which the compilers prefer to registers; counters of 64 bits, which Numba makes
of the sum of two of 32; masks of halves, which it takes to put two together but by a shift and an
or; and what lies between the loops, where blocks of many warps went through the warps' results in a
loop of 63 instructions for four (``largest_of_block``). A block of 32 warps, as few rows have, so
issued 4,000 on each of a multiprocessor's four schedulers, and 16 rows of k = 28672 took 7.5 us
where they take 3.8 now. What is left there is that a thread's second 16 numbers are loaded when the
first are compared, and all of them twice.

From sm_90 on the first instruction lets the next kernel start (``early``): a product then loads
weights while x is quantised: about 1 us less of both for few rows (experiments/23_w4a8).
"""

import numpy as np
from numba import cuda

from numba_marlin import ptx

MOST_WARPS = 32
INFINITY_FLOAT16, INFINITY_BFLOAT16 = 0x7C00, 0x7F80
NAN_BITS = 0x7FC00000
LARGEST_INT8, LARGEST_FP8 = np.float32(127), np.float32(448)
LARGEST_FLOAT = np.float32(3.4028234663852886e38)
SMALL, LIFT = np.float32(2.0**-64), np.float32(2.0**64)
ROUND = np.float32(12582912)  # 1.5 * 2**23: adding it rounds to an integer, in the lowest bits
UNITS_OF_GROUP, UNITS_OF_WORD = 8, 16  # of 16 numbers: in the 128 of an offset, of two offsets
EVEN, ODD = np.float32(-8), np.float32(7)  # ``formats.activations`` has the formula
UNIT_OF_CODES = np.float32(2.0**-9)
BYTES_OF_NUMBERS, BYTES_OF_CODES = 32, 16  # of 16 numbers
ONE = 0x3C00  # float16
LANES_OF_QUAD = 4
FIRST_BYTES, LOWER_HALVES = 0x0040, 0x5410  # of two words, side by side: selectors of prmt


@cuda.jit(device=True, forceinline=True)
def sixteen_numbers(there):
    """-> the eight words of 16 numbers at an address."""
    first = ptx.ld_global_v4_b32(there)
    second = ptx.ld_global_v4_b32(there + np.uint64(16))
    return (
        first[0],
        first[1],
        first[2],
        first[3],
        second[0],
        second[1],
        second[2],
        second[3],
    )


@cuda.jit(device=True, forceinline=True)
def larger(a, b):
    """-> of two unsigned ones; numba-cuda-mlir 0.6 has signed numbers in ``max`` even then."""
    return a if a > b else b


@cuda.jit(device=True, forceinline=True)
def larger_of(largest, words):
    """-> the largest magnitude, in the upper 15 bits: shifts take off the signs. What is below
    decides nothing."""
    for i in range(8):
        low, high = np.uint32(words[i] << 17), np.uint32(words[i] << 1)
        largest = larger(largest, larger(low, high))
    return largest


@cuda.jit(device=True, forceinline=True)
def largest_of_warp(largest):
    for step in range(5):
        largest = max(largest, np.int32(ptx.shfl_sync_bfly(largest, 16 >> step)))
    return largest


@cuda.jit(device=True, forceinline=True)
def largest_of_block(largest, shared):
    """-> the largest integer of all threads, none of them negative, in all of them. shared: a word
    for each warp, of which each lane takes one: a loop takes every warp 500 instructions if there
    are 32."""
    thread, largest = np.uint32(cuda.threadIdx.x), largest_of_warp(largest)
    lane = np.uint32(thread & 31)
    if lane == 0:
        shared[thread >> 5] = largest
    cuda.syncthreads()
    largest = np.int32(0)
    if lane < np.uint32(cuda.blockDim.x >> 5):
        largest = shared[lane]
    return largest_of_warp(largest)


@cuda.jit(device=True, forceinline=True)
def pair_of(word, brain):
    """-> the two numbers of a word of x, as float32. brain: of bfloat16."""
    if brain:
        return ptx.cvt_f32_bf16_low(word), ptx.cvt_f32_bf16_high(word)
    return ptx.cvt_f32_f16_low(word), ptx.cvt_f32_f16_high(word)


@cuda.jit(device=True, forceinline=True)
def integers_of(a, b, inverse):
    """-> the integers nearest to two numbers over the scale, in the lowest bytes of a half each."""
    low, high = ptx.fma_rn_f32(a, inverse, ROUND), ptx.fma_rn_f32(b, inverse, ROUND)
    return ptx.prmt_b32(ptx.bits_of_f32(low), ptx.bits_of_f32(high), FIRST_BYTES)


@cuda.jit(device=True, forceinline=True)
def codes_of(first, second, lift, inverse, brain, fp8):
    """-> four codes: of two words of x. lift: of numbers that are bfloat16."""
    a, b = pair_of(first, brain)
    c, d = pair_of(second, brain)
    if brain:
        a, b, c, d = a * lift, b * lift, c * lift, d * lift
    if fp8:
        low = ptx.cvt_rn_satfinite_e4m3x2_f32(a * inverse, b * inverse)
        high = ptx.cvt_rn_satfinite_e4m3x2_f32(c * inverse, d * inverse)
        return np.uint32(np.uint32(low) | np.uint32(high << 16))
    low, high = integers_of(a, b, inverse), integers_of(c, d, inverse)
    return ptx.prmt_b32(low, high, LOWER_HALVES)


@cuda.jit(device=True, forceinline=True)
def sixteen_codes(numbers, lift, inverse, brain, fp8):
    """-> the four words of codes of the 16 numbers at an address."""
    w = sixteen_numbers(numbers)
    return (
        codes_of(w[0], w[4], lift, inverse, brain, fp8),
        codes_of(w[1], w[5], lift, inverse, brain, fp8),
        codes_of(w[2], w[6], lift, inverse, brain, fp8),
        codes_of(w[3], w[7], lift, inverse, brain, fp8),
    )


@cuda.jit(device=True, forceinline=True)
def find_scale(x_row, scales, units, shared, brain, fp8):
    """Write the scale of the block's numbers, of which there are 16 ``units``, of the row of x at
    the address x_row -> (whether they are finite, what to multiply them by: a power of two, and
    then the inverse). shared: of ``largest_of_block`` (declared in the kernels: in a device
    function numba-cuda-mlir 0.6 loses it); brain: x is bfloat16; fp8: codes are e4m3."""
    row, group, thread = cuda.blockIdx.x, np.uint32(cuda.blockIdx.y), np.uint32(cuda.threadIdx.x)
    first, step = np.uint32(group * units), np.uint32(cuda.blockDim.x)
    end = np.uint32(first + units)
    largest, unit = ptx.opaque_u32(0), np.uint32(first + thread)  # of 32 bits
    while unit < end:
        largest = larger_of(largest, sixteen_numbers(x_row + np.uint64(BYTES_OF_NUMBERS * unit)))
        unit = np.uint32(unit + step)
    size = largest_of_block(np.int32(largest >> 1), shared) >> 16
    finite = size < (INFINITY_BFLOAT16 if brain else INFINITY_FLOAT16)
    amax, _ = pair_of(size, brain)
    bound = LARGEST_FP8 if fp8 else LARGEST_INT8
    if thread == 0:
        scales[np.uint32(row), group] = amax / bound if finite else ptx.f32_of_bits(NAN_BITS)
    lift = LIFT if amax < SMALL else np.float32(1)  # else L / amax might be infinite
    return finite, lift, ptx.min_f32(bound / (amax * lift), LARGEST_FLOAT)


@cuda.jit(device=True, forceinline=True)
def quantize(x, codes, scales, shared, brain, fp8):
    """shared, brain, fp8: of ``find_scale``."""
    row, group, thread = cuda.blockIdx.x, np.uint32(cuda.blockIdx.y), np.uint32(cuda.threadIdx.x)
    # of 16 numbers, in a group
    units = np.uint32(codes.shape[1]) // np.uint32(4 * scales.shape[1])
    x_row, codes_row = ptx.cvta_to_global(x, (row, 0)), ptx.cvta_to_global(codes, (row, 0))
    finite, lift, inverse = find_scale(x_row, scales, units, shared, brain, fp8)
    first, step = np.uint32(group * units), np.uint32(cuda.blockDim.x)
    end = np.uint32(first + units)
    unit = np.uint32(first + thread)
    # addresses are carried along: the compilers would compute the row's anew in each turn, to have
    # fewer registers
    numbers = x_row + np.uint64(BYTES_OF_NUMBERS * unit)
    there = codes_row + np.uint64(BYTES_OF_CODES * unit)
    while unit < end:
        if finite:
            ptx.st_global_v4_b32(there, sixteen_codes(numbers, lift, inverse, brain, fp8))
        else:
            ptx.st_global_v4_b32(there, (0, 0, 0, 0))
        unit = np.uint32(unit + step)
        numbers += np.uint64(BYTES_OF_NUMBERS * step)
        there += np.uint64(BYTES_OF_CODES * step)


@cuda.jit(device=True, forceinline=True)
def summands():
    """-> the registers of B of ``sums_of``, which are alike: B[i, j] is 1 where i and j are both
    even or both odd, else 0."""
    return np.uint32(ONE << (((cuda.threadIdx.x >> 2) & 1) << 4))


@cuda.jit(device=True, forceinline=True)
def sums_of(words, b):
    """-> what the codes of e4m3 in all words of the lane's quad (lanes 4g to 4g + 3) stand for,
    added up, in each of the four: those of even k, of odd k. b: ``summands``.

    Widened to halves they are A, each register with an even k in its lower half and the odd one
    next to it in the upper one. Rows g and g + 8 of A are the quad's, so that columns 2t and 2t + 1
    of those rows of A B, which lane t of it holds, are its sums of even and of odd k: of half of
    the registers in row g, of the others in row g + 8.

    It is exact: codes are multiples of 2**-9 up to 448, so that all sums of the 32 of a quad, and
    of 64 of a group, are multiples of 2**-9 below 2**15, 24 bits; and tensor cores, which cut off
    what lies more than 24 bits below the largest exponent among the terms, 13 at most, lose nothing
    of it (``emulator.tensor.tensor_sums``)."""
    low, high = ptx.cvt_rn_f16x2_e4m3x4(words[0]), ptx.cvt_rn_f16x2_e4m3x4(words[1])
    zero = np.float32(0)
    d = ptx.mma_m16n8k16_f32_f16(
        (low[0], low[1], high[0], high[1]), (b, b), (zero, zero, zero, zero)
    )
    low, high = ptx.cvt_rn_f16x2_e4m3x4(words[2]), ptx.cvt_rn_f16x2_e4m3x4(words[3])
    d = ptx.mma_m16n8k16_f32_f16((low[0], low[1], high[0], high[1]), (b, b), d)
    return d[0] + d[2], d[1] + d[3]


@cuda.jit(device=True, forceinline=True)
def offset_of(even, odd):
    """-> that of the lane's group, which two quads have, in all of their lanes. even, odd: the
    quad's sums."""
    even += ptx.f32_of_bits(ptx.shfl_sync_bfly(ptx.bits_of_f32(even), LANES_OF_QUAD))
    odd += ptx.f32_of_bits(ptx.shfl_sync_bfly(ptx.bits_of_f32(odd), LANES_OF_QUAD))
    return UNIT_OF_CODES * ptx.fma_rn_f32(ODD, odd, EVEN * even)


@cuda.jit(device=True, forceinline=True)
def halves_of(low, high, brain):
    """-> two numbers, rounded to 16 bits each, in a word."""
    return ptx.cvt_rn_bf16x2_f32(low, high) if brain else ptx.cvt_rn_f16x2_f32(low, high)


@cuda.jit(device=True, forceinline=True)
def write_offsets(there, below, own, owns, brain):
    """Those of two groups in a word, by one of the 16 lanes that have them. there: address of the
    word, below: how many bytes after it the second part's is; own: the lane's group's; owns:
    whether it is this lane that writes."""
    other = ptx.f32_of_bits(ptx.shfl_sync_bfly(ptx.bits_of_f32(own), UNITS_OF_GROUP))
    if owns:
        rounded = halves_of(own, other, brain)
        ptx.st_global_b32(there, rounded)
        if brain:
            low, high = pair_of(rounded, brain)
            ptx.st_global_b32(there + below, halves_of(own - low, other - high, brain))


@cuda.jit(device=True, forceinline=True)
def quantize_with_offsets(x, codes, scales, offsets, shared, brain):
    """To e4m3, with a scale per row. A warp stays together, because all of it adds up: its lanes
    beyond the row, and all of a row that is not finite, have codes of 0."""
    row, thread, step = cuda.blockIdx.x, np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockDim.x)
    units, words_of_row = np.uint32(codes.shape[1] >> 2), np.uint32(offsets.shape[1])
    x_row, codes_row = ptx.cvta_to_global(x, (row, 0)), ptx.cvta_to_global(codes, (row, 0))
    offsets_row = ptx.cvta_to_global(offsets, (2 * row if brain else row, 0))
    below = np.uint64(4 * words_of_row)
    finite, lift, inverse = find_scale(x_row, scales, units, shared, brain, True)
    lane, b, zero = np.uint32(thread & 31), ptx.opaque_u32(summands()), ptx.opaque_u32(0)
    of_warp, unit = np.uint32(thread - lane), thread
    # as in ``quantize``
    numbers = x_row + np.uint64(BYTES_OF_NUMBERS * unit)
    there = codes_row + np.uint64(BYTES_OF_CODES * unit)
    word_there = offsets_row + np.uint64(unit >> 2)
    while of_warp < units:
        words = (zero, zero, zero, zero)
        if unit < units:
            if finite:
                words = sixteen_codes(numbers, lift, inverse, brain, True)
            ptx.st_global_v4_b32(there, words)
        even, odd = sums_of(words, b)
        own, owns = offset_of(even, odd), unit < units and unit % UNITS_OF_WORD == 0
        write_offsets(word_there, below, own, owns, brain)
        of_warp, unit = np.uint32(of_warp + step), np.uint32(unit + step)
        numbers += np.uint64(BYTES_OF_NUMBERS * step)
        there += np.uint64(BYTES_OF_CODES * step)
        word_there += np.uint64(step >> 2)
    word = thread
    while word < words_of_row:
        if UNITS_OF_WORD * word >= units:  # of no group: the memory is new
            there = offsets_row + np.uint64(4 * word)
            ptx.st_global_b32(there, zero)
            if brain:
                ptx.st_global_b32(there + below, zero)
        word = np.uint32(word + step)


def kernel_of(brain, fp8, early):
    """brain: of bfloat16; fp8: to e4m3; early: what comes behind may start before this has ended,
    so that it has begun to load weights."""

    @cuda.jit
    def rows(x, codes, scales):
        if early:
            ptx.griddepcontrol_launch_dependents()
        quantize(x, codes, scales, cuda.shared.array(MOST_WARPS, np.int32), brain, fp8)

    return rows


def kernel_with_offsets(brain, early):
    """As ``kernel_of``, to e4m3."""

    @cuda.jit
    def rows_with_offsets(x, codes, scales, offsets):
        if early:
            ptx.griddepcontrol_launch_dependents()
        shared = cuda.shared.array(MOST_WARPS, np.int32)
        quantize_with_offsets(x, codes, scales, offsets, shared, brain)

    return rows_with_offsets

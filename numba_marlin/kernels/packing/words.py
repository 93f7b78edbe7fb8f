"""Marlin's words from codes, and codes from Marlin's words: 4 and 8 bits, plain Numba.

    codes   int32 [k, n / 4]: the codes of W [k, n], a byte each (uint8 [k, n]), four to a word
    words   int32 [k / 16, n_packed * bits / 2]: n_packed is n, rounded up to a multiple of 64

k is a multiple of 16, n of 8, codes are less than 2 ** bits; ``pack_4`` and ``pack_8`` fill the
columns from n to n_packed with the middle code, which decodes to zero. Launch: k / 16 by
n_packed / 256 (rounded up) thread blocks of 128 threads. Nothing is checked here.

A warp moves a block of 16 rows (k0 and on) by 64 columns (n0 and on): 1024 codes, which are 512 or
1024 contiguous bytes of a row of ``words``. Which word has which code (g 0 to 7, t and j 0 to 3):

    4 bits: word 4 (4 g + t) + j, nibble p:      k = k0 + 2 t + p // 4 + 8 (p % 2)
                                                 n = n0 + 16 j + g + 8 (p // 2 % 2)
    8 bits: word 8 (4 g + t) + tile, byte p:     k = k0 + 2 t + p // 2 + 8 (p % 2)
                                                 n = n0 + 8 tile + g

So a word has codes of four rows, k0 + 2 t + (0, 8, 1, 9), and neighbouring columns are g's, far
apart in ``words``. A lane therefore reads four columns of its four rows at once (a word of
``codes`` each), and turns four words into four by transposing their bytes. A quarter of the
block's 2 t and all its j (8 bits: tile) are lanes of one instruction: the words that it stores lie
side by side, 64 bytes in each of two places, 128 for 8 bits, sectors of 32 bytes whole. Of
``codes``, an instruction of ``pack`` takes every second word of 4 rows by 64 bytes, the next one
the others, out of L1. Stores are put together in L2 only, where a sector's halves cost as much as
two sectors: so a lane of ``unpack`` stores two neighbouring words, one of which is another lane's
with 4 bits. No memory is shared, nothing waits for anything.
"""

from numba import cuda

from numba_marlin import ptx

MIDDLE_4, MIDDLE_8 = 0x08080808, -0x7F7F7F80  # 8 and 128, four times; the latter as an int32
NIBBLES = 0x0F0F0F0F


@cuda.jit(device=True, forceinline=True)
def transposed(a, b, c, d):
    """-> four words; word i has bytes i of a, b, c, d."""
    ab, cd = ptx.prmt_b32(a, b, selector=0x5140), ptx.prmt_b32(c, d, selector=0x5140)  # 0 and 1
    first = ptx.prmt_b32(ab, cd, selector=0x5410)
    second = ptx.prmt_b32(ab, cd, selector=0x7632)
    ab, cd = ptx.prmt_b32(a, b, selector=0x7362), ptx.prmt_b32(c, d, selector=0x7362)  # 2 and 3
    third = ptx.prmt_b32(ab, cd, selector=0x5410)
    fourth = ptx.prmt_b32(ab, cd, selector=0x7632)
    return first, second, third, fourth


@cuda.jit(device=True, forceinline=True)
def load_rows(codes, row, column, middle):
    """-> words of rows ``row`` + (0, 8, 1, 9); ``column`` counts words. Past n: ``middle``."""
    if column < codes.shape[1]:
        return (
            codes[row, column],
            codes[row + 8, column],
            codes[row + 1, column],
            codes[row + 9, column],
        )
    return middle, middle, middle, middle


@cuda.jit(device=True, forceinline=True)
def store_rows(codes, row, column, left, right):
    """Two words side by side in each of the rows of ``load_rows``; ``column``, that of the left
    one, is even (n is a multiple of 8: both exist, or none). Past n nothing is stored."""
    first, eighth, second, ninth = left
    first_right, eighth_right, second_right, ninth_right = right
    if column < codes.shape[1]:
        ptx.st_global_v2_b32(ptx.cvta_to_global(codes, (row, column)), (first, first_right))
        ptx.st_global_v2_b32(ptx.cvta_to_global(codes, (row + 8, column)), (eighth, eighth_right))
        ptx.st_global_v2_b32(ptx.cvta_to_global(codes, (row + 1, column)), (second, second_right))
        ptx.st_global_v2_b32(ptx.cvta_to_global(codes, (row + 9, column)), (ninth, ninth_right))


@cuda.jit(device=True, forceinline=True)
def exchanged(left, right, half):
    """A lane of half 0 gives its right word for the left one of the lane 16 on."""
    received = ptx.shfl_sync_bfly(right if half == 0 else left, 16)
    return (left, received) if half == 0 else (received, right)


@cuda.jit(device=True, forceinline=True)
def store_packed(words, place, step, made):
    """The words of g, g + 1, g + 2, g + 3, which are ``step`` apart."""
    first, second, third, fourth = made
    row = cuda.blockIdx.x
    words[row, place], words[row, place + step] = first, second
    words[row, place + 2 * step], words[row, place + 3 * step] = third, fourth


@cuda.jit(device=True, forceinline=True)
def load_packed(words, place, step):
    """The inverse of ``store_packed``."""
    row = cuda.blockIdx.x
    return (
        words[row, place],
        words[row, place + step],
        words[row, place + 2 * step],
        words[row, place + 3 * step],
    )


@cuda.jit(device=True, forceinline=True)
def block_column():
    """The block of 64 columns that this warp moves."""
    return cuda.blockIdx.y * 4 + cuda.threadIdx.x // 32


@cuda.jit
def pack_4(codes, words):
    lane, block = cuda.threadIdx.x % 32, block_column()
    t, j, half = lane % 4, lane // 4 % 4, lane // 16  # half: g from 0 or from 4 on
    if 128 * block >= words.shape[1]:  # a warp of the last thread block, past n_packed
        return
    row, column = cuda.blockIdx.x * 16 + 2 * t, 16 * block + 4 * j + half
    a, b, c, d = load_rows(codes, row, column, MIDDLE_4)
    e, f, g, h = load_rows(codes, row, column + 2, MIDDLE_4)  # 8 columns on
    made = transposed(a | b << 4, e | f << 4, c | d << 4, g | h << 4)
    store_packed(words, 128 * block + 64 * half + 4 * t + j, 16, made)


@cuda.jit
def unpack_4(codes, words):
    lane, block = cuda.threadIdx.x % 32, block_column()
    t, j, half = lane % 4, lane // 4 % 4, lane // 16
    if 128 * block >= words.shape[1]:
        return
    e, f, g, h = load_packed(words, 128 * block + 64 * half + 4 * t + j, 16)
    a, b, c, d = transposed(e, f, g, h)
    row, column = cuda.blockIdx.x * 16 + 2 * t, 16 * block + 4 * j + 2 * half
    # four columns from 4 j + half words on, and from 2 words farther on
    first, first_right = exchanged(a & NIBBLES, b & NIBBLES, half)
    eighth, eighth_right = exchanged(a >> 4 & NIBBLES, b >> 4 & NIBBLES, half)
    second, second_right = exchanged(c & NIBBLES, d & NIBBLES, half)
    ninth, ninth_right = exchanged(c >> 4 & NIBBLES, d >> 4 & NIBBLES, half)
    left = (first, eighth, second, ninth)
    right = (first_right, eighth_right, second_right, ninth_right)
    store_rows(codes, row, column, left, right)


@cuda.jit
def pack_8(codes, words):
    lane, block = cuda.threadIdx.x % 32, block_column()
    t, tile = lane % 4, lane // 4
    if 256 * block >= words.shape[1]:
        return
    for half in range(2):  # g from 0 or from 4 on
        row, column = cuda.blockIdx.x * 16 + 2 * t, 16 * block + 2 * tile + half
        a, b, c, d = load_rows(codes, row, column, MIDDLE_8)
        made = transposed(a, b, c, d)
        store_packed(words, 256 * block + 128 * half + 8 * t + tile, 32, made)


@cuda.jit
def unpack_8(codes, words):
    lane, block = cuda.threadIdx.x % 32, block_column()
    t, tile = lane % 4, lane // 4
    if 256 * block >= words.shape[1]:
        return
    place = 256 * block + 8 * t + tile
    a, b, c, d = load_packed(words, place, 32)
    e, f, g, h = load_packed(words, place + 128, 32)
    row, column = cuda.blockIdx.x * 16 + 2 * t, 16 * block + 2 * tile
    store_rows(codes, row, column, transposed(a, b, c, d), transposed(e, f, g, h))

"""Codes of a byte each out of the words of checkpoint files: plain Numba, 4 and 8 bits.

    codes   int32 [k, n / 4]: a byte for each code of W [k, n], four columns to a word
    rows    int32 [k]: the row of ``codes`` that each row of the file goes to
    words   int32, 32 / bits codes to a word, the first one lowest:
            along_k [k * bits / 32, n]        neighbouring rows of a column (GPTQ)
            transposed [n, k * bits / 32]     the same, the other way round (compressed-tensors)
            interleaved [k, n / 8]            columns 0, 2, 4, 6, 1, 3, 5, 7 of a row (AWQ; 4 bits)

A thread of the first two has 32 / bits rows of four columns: four words, whose codes it shifts
out, each row's four a word of ``codes``. Neighbouring threads have neighbouring columns, so that
stores are whole sectors; of the words of ``transposed``, 8 in a row (a sector) are one thread
block's, which reads them out of L1. Thread blocks have 128 threads; ``definitions`` has the grids.
"""

from numba import cuda


@cuda.jit(device=True, forceinline=True)
def four_bytes(a, b, c, d, shift, mask):
    """-> the codes at bit ``shift`` of four words, side by side. Words are signed: the mask drops
    the copies of their signs."""
    left = (a >> shift & mask) | (b >> shift & mask) << 8
    return left | (c >> shift & mask) << 16 | (d >> shift & mask) << 24


@cuda.jit(device=True, forceinline=True)
def along_k(words, rows, codes, bits):
    row, column = cuda.blockIdx.x, cuda.blockIdx.y * 128 + cuda.threadIdx.x
    if column < codes.shape[1]:
        a, b = words[row, 4 * column], words[row, 4 * column + 1]
        c, d = words[row, 4 * column + 2], words[row, 4 * column + 3]
        for place in range(32 // bits):
            made = four_bytes(a, b, c, d, bits * place, (1 << bits) - 1)
            codes[rows[32 // bits * row + place], column] = made


@cuda.jit(device=True, forceinline=True)
def transposed(words, rows, codes, bits):
    row = cuda.blockIdx.x * 8 + cuda.threadIdx.x // 16
    column = cuda.blockIdx.y * 16 + cuda.threadIdx.x % 16
    if column < codes.shape[1] and row < words.shape[1]:
        a, b = words[4 * column, row], words[4 * column + 1, row]
        c, d = words[4 * column + 2, row], words[4 * column + 3, row]
        for place in range(32 // bits):
            made = four_bytes(a, b, c, d, bits * place, (1 << bits) - 1)
            codes[rows[32 // bits * row + place], column] = made


@cuda.jit
def along_k_4(words, rows, codes):
    along_k(words, rows, codes, 4)


@cuda.jit
def along_k_8(words, rows, codes):
    along_k(words, rows, codes, 8)


@cuda.jit
def transposed_4(words, rows, codes):
    transposed(words, rows, codes, 4)


@cuda.jit
def transposed_8(words, rows, codes):
    transposed(words, rows, codes, 8)


@cuda.jit
def interleaved_4(words, rows, codes):
    row, column = cuda.blockIdx.x, cuda.blockIdx.y * 128 + cuda.threadIdx.x
    if column < words.shape[1]:
        word = words[row, column]
        odd = word >> 16  # columns 1, 3, 5, 7
        codes[rows[row], 2 * column] = four_bytes(word, odd, word >> 4, odd >> 4, 0, 15)
        codes[rows[row], 2 * column + 1] = four_bytes(word, odd, word >> 4, odd >> 4, 8, 15)

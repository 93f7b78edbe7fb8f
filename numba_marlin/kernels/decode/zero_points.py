"""Codes minus integer zero points, for ``weights``. Codes without zero points have the middle of
their range subtracted, a constant; here it is a register instead, so a weight costs no instruction
more, and stays exact.

``zero_point_verbs(lang, config)`` -> namespace: ``registers`` that hold a group's zero points for
the columns of a lane; ``unpack_zeros(zeros, address)`` fetches and unpacks them;
``expand(word, zeros, j, half)``: a word's codes minus the zero points of their columns, in the
registers that ``dequantize.expand`` gives. The word is of the 16-column block j, and, if it holds
8-bit codes, of the lower or upper 8 columns (half 0 or 1).

A register of zero points is 2**e + zero, twice: 2**e + code is as far from it as code from zero. It
comes out of one ``prmt``: a byte of zero points below the upper byte of 2**e, twice. That is 8 to
22 instructions for a warp's part of a group, its load apart, and 8 or 16 registers. The other way,
to take zero * (sum of x) off the group's accumulators (``promote``), is an ``mma`` more for each
k16 row and n8 block, 8 conversions, and a multiply-add more for each accumulator: with four k16
rows, 4 + 8 + 16 instructions at batch=8 and 8 + 8 + 32 at batch=16, and to unpack zero points comes
on top. (Counted, not timed.)

A code is or-ed into the mantissa of 2**e, so e leaves as many bits as that takes: float16's 1024
takes 8, bfloat16's 128 takes 4.

In a stage, and in global memory, a group's zero points of 64 columns are words: with 4 bits one for
each g, whose nibble p is that of column 16 (p % 4) + 8 (p // 4) + g; with 8 bits two for each g,
2g + h, whose byte p is that of column 32 h + 16 (p % 2) + 8 (p // 2) + g. Registers stand in the
order in which zero points come out of these words. 4 bits: nibbles 0, 2, 4 and 6 of the word of g,
then 1, 3, 5 and 7, so that of column 16j + 8 half + g is register 4 (j % 2) + j // 2 + 2 half. 8
bits: the bytes of word 2g, then of word 2g + 1, so it is register 4 (j // 2) + j % 2 + 2 half.
"""

from numba_marlin.kernels.dequantize.expand import EVEN_BYTES, ODD_BYTES
from numba_marlin.kernels.dequantize.expand import pair as twice
from numba_marlin.kernels.dequantize.verbs import AND_OR, HIGH_NIBBLES, LOW_NIBBLES

NIBBLE_OF_BYTES = 0x0F0F0F0F
TWICE = 0x4040  # prmt selector: byte 0 below byte 4, twice; + 0x0101 for each byte further
POWER = {"float16": 1024, "bfloat16": 128}
UPPER_BYTES = {"float16": 0x64646464, "bfloat16": 0x43434343}  # of POWER's 16 bits


def zero_point_verbs(lang, config):
    return {
        ("float16", 4): float16_nibbles,
        ("bfloat16", 4): bfloat16_nibbles,
        ("float16", 8): float16_bytes,
        ("bfloat16", 8): bfloat16_bytes,
    }[config.product_dtype, config.bits](lang)


def power_verbs(lang, dtype):
    """-> namespace of what the types share."""
    ptx = lang.ptx
    and_or = ptx.lop3(table=AND_OR)
    byte_0, byte_1, byte_2, byte_3 = (
        ptx.prmt_b32(selector=TWICE + 0x0101 * byte) for byte in range(4)
    )
    subtract = {"float16": ptx.sub_f16x2, "bfloat16": ptx.sub_bf16x2}[dtype]
    power, above = twice(POWER[dtype], dtype), UPPER_BYTES[dtype]

    @lang.device
    def add_power(zeros, start, word):
        """The four bytes of a word, each added to 2**e, in both halves of a register."""
        zeros[start] = byte_0(word, above)
        zeros[start + 1] = byte_1(word, above)
        zeros[start + 2] = byte_2(word, above)
        zeros[start + 3] = byte_3(word, above)

    @lang.device
    def low_minus(word, zero):
        """Nibbles 0 and 4 of a word, minus zero points."""
        return subtract(and_or(word, LOW_NIBBLES, power), zero)

    return lang.namespace("powers", add_power=add_power, low_minus=low_minus)


def nibble_column(j, half):
    return 4 * (j % 2) + j // 2 + 2 * half


def byte_column(j, half):
    return 4 * (j // 2) + j % 2 + 2 * half


def float16_nibbles(lang):
    """Registers 0 to 7: 1024 + zero, for nibbles 0 and 4 of a word and, after a shift by 8, 2 and
    6. 8 to 15: -(64 + zero), for nibbles 1 and 5 (3 and 7). These stay 4 bits higher in the
    mantissa, as 1024 + 16 code, so (1024 + 16 code) / 16 - (64 + zero) is code - zero. The nibbles
    of one register have one column, so one register of zero points."""
    ptx = lang.ptx
    powers, column = power_verbs(lang, "float16"), lang.device(nibble_column)
    and_or = ptx.lop3(table=AND_OR)
    power, sixteenth, from_high = (twice(value, "float16") for value in (1024, 1 / 16, 960))

    @lang.device
    def unpack_zeros(zeros, address):
        word = ptx.ld_shared_b32(address)
        powers.add_power(zeros, 0, word & NIBBLE_OF_BYTES)
        powers.add_power(zeros, 4, word >> 4 & NIBBLE_OF_BYTES)
        for i in range(8):
            zeros[8 + i] = ptx.sub_f16x2(from_high, zeros[i])

    @lang.device
    def high_minus(word, zero):
        """Nibbles 1 and 5."""
        return ptx.fma_rn_f16x2(and_or(word, HIGH_NIBBLES, power), sixteenth, zero)

    @lang.device
    def expand(word, zeros, j, half):
        left, right = column(j, 0), column(j, 1)
        shifted = word >> 8
        w0, w2 = powers.low_minus(word, zeros[left]), powers.low_minus(shifted, zeros[right])
        w1, w3 = high_minus(word, zeros[8 + left]), high_minus(shifted, zeros[8 + right])
        return w0, w1, w2, w3

    return lang.namespace("codes", registers=16, unpack_zeros=unpack_zeros, expand=expand)


def bfloat16_nibbles(lang):
    """Registers: 128 + zero."""
    ptx = lang.ptx
    powers, column = power_verbs(lang, "bfloat16"), lang.device(nibble_column)

    @lang.device
    def unpack_zeros(zeros, address):
        word = ptx.ld_shared_b32(address)
        powers.add_power(zeros, 0, word & NIBBLE_OF_BYTES)
        powers.add_power(zeros, 4, word >> 4 & NIBBLE_OF_BYTES)

    @lang.device
    def expand(word, zeros, j, half):
        left, right = column(j, 0), column(j, 1)
        w0 = powers.low_minus(word, zeros[left])
        w1 = powers.low_minus(word >> 4, zeros[left])
        w2 = powers.low_minus(word >> 8, zeros[right])
        w3 = powers.low_minus(word >> 12, zeros[right])
        return w0, w1, w2, w3

    return lang.namespace("codes", registers=8, unpack_zeros=unpack_zeros, expand=expand)


def float16_bytes(lang):
    """Registers: 1024 + zero."""
    ptx = lang.ptx
    powers, column = power_verbs(lang, "float16"), lang.device(byte_column)
    even_bytes, odd_bytes = ptx.prmt_b32(selector=EVEN_BYTES), ptx.prmt_b32(selector=ODD_BYTES)
    above = UPPER_BYTES["float16"]

    @lang.device
    def unpack_zeros(zeros, address):
        q = ptx.ld_shared_v2_b32(address)
        for i in range(2):
            powers.add_power(zeros, 4 * i, q[i])

    @lang.device
    def expand(word, zeros, j, half):
        zero = zeros[column(j, half)]
        return (
            ptx.sub_f16x2(even_bytes(word, above), zero),
            ptx.sub_f16x2(odd_bytes(word, above), zero),
        )

    return lang.namespace("codes", registers=8, unpack_zeros=unpack_zeros, expand=expand)


def bfloat16_bytes(lang):
    """A byte is made of nibbles, 16 high + low, and so is its zero point. Registers 0 to 7: 128 +
    low nibble, 8 to 15: 128 + high nibble."""
    ptx = lang.ptx
    powers, column = power_verbs(lang, "bfloat16"), lang.device(byte_column)
    sixteen = twice(16, "bfloat16")

    @lang.device
    def unpack_zeros(zeros, address):
        q = ptx.ld_shared_v2_b32(address)
        for i in range(2):
            powers.add_power(zeros, 4 * i, q[i] & NIBBLE_OF_BYTES)
            powers.add_power(zeros, 8 + 4 * i, q[i] >> 4 & NIBBLE_OF_BYTES)

    @lang.device
    def even_minus(word, low_zero, high_zero):
        """Bytes 0 and 2."""
        low, high = powers.low_minus(word, low_zero), powers.low_minus(word >> 4, high_zero)
        return ptx.fma_rn_bf16x2(high, sixteen, low)

    @lang.device
    def expand(word, zeros, j, half):
        low_zero, high_zero = zeros[column(j, half)], zeros[8 + column(j, half)]
        w0 = even_minus(word, low_zero, high_zero)
        w1 = even_minus(word >> 8, low_zero, high_zero)
        return w0, w1

    return lang.namespace("codes", registers=16, unpack_zeros=unpack_zeros, expand=expand)

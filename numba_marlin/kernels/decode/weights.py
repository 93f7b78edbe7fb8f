"""From a stage's words to A fragments, for every type of weight that the decode kernel (``decode``)
takes.

``weight_verbs(lang, config)`` -> namespace of device functions and the numbers of registers they
want. A lane's share of a k16 row and 64 columns is ``words`` words, those of its column block j (16
columns) being word j, or words 2j and 2j + 1 of 8-bit codes (``formats.marlin_order``).

Integer zero points are subtracted where the middle of the grid is otherwise: from a register
instead of a constant, so that a weight costs no instruction more, and stays exact. 2**p + zero,
from which 2**p + code is as far as code from zero, comes out of one ``prmt``: a byte of zero points
below the upper byte of 2**p, twice. That is 8 to 22 instructions for a warp's part of a group, and
8 or 16 registers. To take zero * (sum of x) off the group's sums ("offset") is a product more for
each k16 row and an instruction more for each accumulator: 35 with four k16 rows at m = 8, 55 at m =
16. But float16 zero points lie between codes, and code - zero is in no 16-bit type: there "offset"
it is, the sums of x being products with a matrix of -1, and of codes that nothing was subtracted
from: the middle of the grid would be 8 subtractions of zero points more.

An 8-bit lane has 32 bytes, two loads. Asked for in the same order by all, lanes 0 and 4 of a load
would want the same bank, so every second column of lanes begins with its upper half, and picks the
words it means when it expands them: 8 instructions a k16 row, which takes twice as long to arrive
as one of 4 bits. (Reckoned, not timed.)
"""

from types import SimpleNamespace

from numba_marlin.kernels.dequantize.expand import EVEN_BYTES, ODD_BYTES, expand_verbs, pair
from numba_marlin.kernels.dequantize.lookup import MIDDLE
from numba_marlin.kernels.dequantize.verbs import AND_OR, HIGH_NIBBLES, LOW_NIBBLES

NIBBLE_OF_BYTES = 0x0F0F0F0F
TWICE = 0x4040  # prmt selector: byte 0 below byte 4, twice; + 0x0101 for each byte further


def weight_verbs(lang, config):
    ptx, uint32 = lang.ptx, lang.uint32
    BITS, DTYPE = config.bits, config.dtype
    expand_symmetric = expand_verbs(
        lang, DTYPE, BITS, origin=0 if config.zeros == "float16" else MIDDLE[BITS]
    )
    and_or = ptx.lop3(table=AND_OR)
    even_bytes, odd_bytes = ptx.prmt_b32(selector=EVEN_BYTES), ptx.prmt_b32(selector=ODD_BYTES)
    byte_0, byte_1, byte_2, byte_3 = (
        ptx.prmt_b32(selector=TWICE + 0x0101 * byte) for byte in range(4)
    )
    power, above = (
        (pair(1024, "float16"), 0x64646464)
        if DTYPE == "float16"
        else (pair(128, "bfloat16"), 0x43434343)
    )
    sixteenth, sixteen, from_high = (
        pair(1 / 16, "float16"),
        pair(16, "bfloat16"),
        pair(960, "float16"),
    )
    integers = config.zeros == "integer"
    # types that take two registers to subtract a zero point with
    SPLIT = (DTYPE, BITS) in (("float16", 4), ("bfloat16", 8))

    @lang.device
    def upper_first(lane):
        """Whether a lane begins with the upper half of its words."""
        return lane // uint32(4) % uint32(2) != uint32(0)

    @lang.device
    def fetch_words(words, at, address, other):
        """A lane's words of a k16 row, to words[at] and after; other: the address of the half that
        is fetched second."""
        q = ptx.ld_shared_v4_b32(address)
        for j in range(4):
            words[at + j] = q[j]
        if BITS == 8:
            q = ptx.ld_shared_v4_b32(other)
            for j in range(4):
                words[at + 4 + j] = q[j]

    @lang.device
    def column(j, half):
        """Which of the registers of zero points is that of columns g + 8 half of block j: they are
        in the order of packed zero points."""
        return 4 * (j % 2) + j // 2 + 2 * half if BITS == 4 else 4 * (j // 2) + j % 2 + 2 * half

    @lang.device
    def add_power(zeros, at, word):
        """The four bytes of a word, each added to 2**p, in both halves of a register."""
        zeros[at] = byte_0(word, uint32(above))
        zeros[at + 1] = byte_1(word, uint32(above))
        zeros[at + 2] = byte_2(word, uint32(above))
        zeros[at + 3] = byte_3(word, uint32(above))

    @lang.device
    def zeros_of_nibbles(zeros, address):
        """2**p + zero for low nibbles; for high ones, which count sixteenths, -(64 + zero)."""
        word = ptx.ld_shared_b32(address)
        add_power(zeros, 0, word & uint32(NIBBLE_OF_BYTES))
        add_power(zeros, 4, word >> uint32(4) & uint32(NIBBLE_OF_BYTES))
        if SPLIT:
            for i in range(8):
                zeros[8 + i] = ptx.sub_f16x2(uint32(from_high), zeros[i])

    @lang.device
    def zeros_of_bytes(zeros, address):
        """2**p + zero, or, where a byte is made of nibbles, the same of either nibble of the zero
        point."""
        q = ptx.ld_shared_v2_b32(address)
        for half in range(2):
            add_power(zeros, 4 * half, q[half] & uint32(NIBBLE_OF_BYTES) if SPLIT else q[half])
            if SPLIT:
                add_power(zeros, 8 + 4 * half, q[half] >> uint32(4) & uint32(NIBBLE_OF_BYTES))

    # From here: codes minus zero points, the registers that expand gives of a word; `first` and
    # `second`: the zero points of its columns.

    @lang.device
    def low_minus(word, zero):
        """Nibbles 0 and 4."""
        return ptx.sub_f16x2(and_or(word, uint32(LOW_NIBBLES), uint32(power)), zero)

    @lang.device
    def wide_minus(word, zero):
        return ptx.sub_bf16x2(and_or(word, uint32(LOW_NIBBLES), uint32(power)), zero)

    @lang.device
    def high_minus(word, zero):
        """Nibbles 1 and 5."""
        return ptx.fma_rn_f16x2(
            and_or(word, uint32(HIGH_NIBBLES), uint32(power)), uint32(sixteenth), zero
        )

    @lang.device
    def float16_nibbles(word, zeros, first, second):
        shifted = word >> uint32(8)
        return (
            low_minus(word, zeros[first]),
            high_minus(word, zeros[8 + first]),
            low_minus(shifted, zeros[second]),
            high_minus(shifted, zeros[8 + second]),
        )

    @lang.device
    def bfloat16_nibbles(word, zeros, first, second):
        return (
            wide_minus(word, zeros[first]),
            wide_minus(word >> uint32(4), zeros[first]),
            wide_minus(word >> uint32(8), zeros[second]),
            wide_minus(word >> uint32(12), zeros[second]),
        )

    @lang.device
    def float16_bytes(word, zeros, first):
        return ptx.sub_f16x2(even_bytes(word, uint32(above)), zeros[first]), ptx.sub_f16x2(
            odd_bytes(word, uint32(above)), zeros[first]
        )

    @lang.device
    def bfloat16_pair(word, zeros, first):
        """Bytes 0 and 2."""
        return ptx.fma_rn_bf16x2(
            wide_minus(word >> uint32(4), zeros[8 + first]),
            uint32(sixteen),
            wide_minus(word, zeros[first]),
        )

    @lang.device
    def bfloat16_bytes(word, zeros, first):
        return bfloat16_pair(word, zeros, first), bfloat16_pair(word >> uint32(8), zeros, first)

    minus_zeros = {
        ("float16", 4): float16_nibbles,
        ("bfloat16", 4): bfloat16_nibbles,
        ("float16", 8): float16_bytes,
        ("bfloat16", 8): bfloat16_bytes,
    }[DTYPE, BITS]

    @lang.device
    def nibble_fragment(words, at, j, zeros, upper_first, half, of_pair):
        """Column block j of a k16 row whose words begin at `at`, as the A fragment of the
        transposed product. half, of_pair: see ``decode_fp4``."""
        word = words[at + j]
        w = (
            minus_zeros(word, zeros, column(j, 0), column(j, 1))
            if integers
            else expand_symmetric(word)
        )
        return w[0], w[2], w[1], w[3]

    @lang.device
    def byte_fragment(words, at, j, zeros, upper_first, half, of_pair):
        """The same of two words, the second being that of the upper 8 columns."""
        one, other = at + 2 * j, at + (2 * j + 4) % 8
        low_word, high_word = (
            (words[other] if upper_first else words[one]),
            (words[other + 1] if upper_first else words[one + 1]),
        )
        low = minus_zeros(low_word, zeros, column(j, 0)) if integers else expand_symmetric(low_word)
        high = (
            minus_zeros(high_word, zeros, column(j, 1)) if integers else expand_symmetric(high_word)
        )
        return low[0], high[0], low[1], high[1]

    return SimpleNamespace(
        words=BITS,
        zero_registers=(16 if SPLIT else 8) if integers else 1,
        upper_first=upper_first,
        fetch_words=fetch_words,
        zeros_of_group=zeros_of_nibbles if BITS == 4 else zeros_of_bytes,
        fragment=nibble_fragment if BITS == 4 else byte_fragment,
    )

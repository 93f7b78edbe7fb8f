"""The block-scaled kernel's (``block_scaled``) own quantiser: rows of 32 fp32 numbers in the
registers of four lanes -> codes and scales of NVFP4, MXFP4 or MXFP8. A *block* is a scale block
here, columns of a row of D that share a scale: 16 (NVFP4) or 32 (MX).

Lane 4 g + t has columns 8 v + 2 t and the next one, v = 0 .. 3, of 32: of an NVFP4 block four
numbers, of an MX block eight; two shuffles give all four lanes of a row the largest magnitude.
How a scale and a code are made of numbers: ``result_codes``.

Codes of v = 0 .. 3 are then exchanged among the four lanes, so that lane t has all of v = t, 8
codes, 4 bytes (FP8: 8), and the four lanes write 16 (32) contiguous bytes of a row.
"""

from numba_marlin.kernels.language.tuples import numbered_each
from numba_marlin.kernels.nvfp4.result_codes import ELEMENTS, code_verbs


def quantize_verbs(lang, config):
    """-> namespace with ``put_rows(values, at)``: all of a thread's values of 16 rows, finished;
    and the records ``RowsAt`` and ``RowAt``."""
    ptx, uint16, uint64 = lang.ptx, lang.uint16, lang.uint64
    # other results make these functions too and do not call them: any format will do
    result = config.result if config.kind == "scaled" else "nvfp4"
    two_blocks = result == "nvfp4"  # in 32 columns
    pair_bytes = 1 if ELEMENTS[result] == "e2m1" else 2  # of two codes, a lane's of a v
    codes_of = code_verbs(lang, result, config.rounding)
    largest_of, word_of, words_of = codes_of.largest_of, codes_of.word_of, codes_of.words_of

    # addresses in D: of the tile's first code of a row, 0 for a row that D does not have; of the
    # row's first four scales
    RowAt = lang.record("RowAt", "codes scales")

    # rows g and g + 8; first_block: number of the tile's first block along D's columns; left: how
    # many columns D has from the tile's first on (not the lane's); ``finish``'s factors; t: lane
    # mod 4
    RowsAt = lang.record("RowsAt", "above below first_block left factors t")

    # prmt: digit d from the right says where byte d comes from, 0 .. 3 of the first operand, 4 .. 7
    # of the second. Both low halves, both high halves; bytes 0 and 2 of the first, each below the
    # same of the second; bytes 1 and 3 likewise.
    low_halves, high_halves = ptx.prmt_b32(selector=0x5410), ptx.prmt_b32(selector=0x7632)
    even_bytes, odd_bytes = ptx.prmt_b32(selector=0x6240), ptx.prmt_b32(selector=0x7351)

    # scales

    @lang.device
    def among_lanes(bits):
        """The largest of four lanes, those of a row."""
        bits = max(bits, ptx.shfl_sync_bfly(bits, 1))
        return max(bits, ptx.shfl_sync_bfly(bits, 2))

    @lang.device
    def e4m3_scales(x, inverse, sixth):
        """Two blocks of 16 -> (both codes, the second in the high byte; a factor each)"""
        # their largest magnitudes
        first, second = (
            ptx.f32_of_bits(among_lanes(largest_of(x[0], x[1], x[2], x[3]))),
            ptx.f32_of_bits(among_lanes(largest_of(x[4], x[5], x[6], x[7]))),
        )
        return codes_of.e4m3_scales(first, second, inverse, sixth)

    @lang.device
    def power_scales(x, inverse, sixth):
        """One block of 32 -> (its code, its factor twice)"""
        return codes_of.power_scale(
            among_lanes(max(largest_of(x[0], x[1], x[2], x[3]), largest_of(x[4], x[5], x[6], x[7])))
        )

    scales_of = e4m3_scales if two_blocks else power_scales

    # codes

    @lang.device
    def exchange_bytes(word, t):
        """Byte v of lane t -> byte t of lane v, a 4 x 4 transposition: first lanes 1 apart exchange
        two bytes each, then lanes 2 apart."""
        other = ptx.shfl_sync_bfly(word, 1)
        pairs = even_bytes(word, other) if t % 2 == 0 else odd_bytes(other, word)
        opposite = ptx.shfl_sync_bfly(pairs, 2)
        return low_halves(pairs, opposite) if t < 2 else high_halves(opposite, pairs)

    @lang.device
    def exchange_halves(words, t):
        """Half-word v of lane t -> half-word t of lane v."""
        even = t % 2 == 0
        # v = 0, 2 or 1, 3
        kept = low_halves(words[0], words[1]) if even else high_halves(words[0], words[1])
        given = ptx.shfl_sync_bfly(
            high_halves(words[0], words[1]) if even else low_halves(words[0], words[1]),
            1,
        )
        first = low_halves(kept, given) if even else low_halves(given, kept)
        second = high_halves(kept, given) if even else high_halves(given, kept)
        below = t < 2
        opposite = ptx.shfl_sync_bfly(second if below else first, 2)
        return (first, opposite) if below else (opposite, second)

    @lang.device
    def put_word(address, x, first, second, t):
        word = exchange_bytes(word_of(x, first, second), t)
        if address != 0:
            ptx.st_global_b32(address + 4 * t, word)

    @lang.device
    def put_words(address, x, first, second, t):
        words = exchange_halves(words_of(x, first, second), t)
        if address != 0:
            ptx.st_global_v2_b32(address + 8 * t, words)

    put_codes = put_word if pair_bytes == 1 else put_words

    # pieces

    def put_piece(piece):
        """32 columns of rows g and g + 8."""
        column, codes_before = 32 * piece, 16 * pair_bytes * piece
        blocks_before = (2 if two_blocks else 1) * piece

        @lang.device
        def put_row(x, row, at, storing_t):
            """x: the lane's 8 numbers of the row; storing_t: t of the lane that stores scales"""
            # scale codes; factors of v = 0, 1 and of v = 2, 3
            codes, first, second = scales_of(x, at.factors.inverse, at.factors.sixth)
            exists = row.codes != 0 and column + 8 * at.t < at.left
            put_codes(row.codes + codes_before if exists else uint64(0), x, first, second, at.t)
            if at.t == storing_t and row.codes != 0 and at.left > column:
                block = at.first_block + blocks_before
                address = row.scales + (uint64(block // 4) * 512 + block % 4)
                if two_blocks:
                    both = at.left > column + 16
                    ptx.st_global_b16(address, uint16(codes if both else codes & 0xFF))
                else:
                    ptx.st_global_b8(address, uint16(codes))

        @lang.device
        def put(v, at):
            above = (v[0], v[1], v[4], v[5], v[8], v[9], v[12], v[13])
            below = (v[2], v[3], v[6], v[7], v[10], v[11], v[14], v[15])
            put_row(above, at.above, at, 0)
            put_row(below, at.below, at, 1)

        return put

    # a lane's values of 16 rows, 16 of them in a piece: two rows of 8
    put_rows = numbered_each(lang, config.d_tile_n // 2, 16, put_piece)
    return lang.namespace("quantize", put_rows=put_rows, RowAt=RowAt, RowsAt=RowsAt)

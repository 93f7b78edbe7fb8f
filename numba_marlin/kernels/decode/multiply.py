"""What a consumer warp of the decode kernel (``decode``) does with a stage: its own columns and its
own part of k, times all rows of x.

``multiply_verbs(lang, config, ring)`` -> namespace of device functions, and how long the local
arrays are that they want. ``registers``: (sums, words, x, zeros, totals, upper_first): products
that are not added to ``acc`` yet (``acc`` itself where nothing is done to them before), words of
weights, fragments of x, zero points (``decode_weights``) or scales of blocks (``decode_fp4``),
minus the sums of x, and the lane's ``upper_first``.
"""

from types import SimpleNamespace

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode import fp4 as decode_fp4
from numba_marlin.kernels.decode import weights as decode_weights
from numba_marlin.kernels.dequantize.expand import pair


def multiply_verbs(lang, config, ring):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, float32 = lang.uint32, lang.float32
    release = ring.release
    block_scaled = config.block_scaled
    weights = (decode_fp4 if block_scaled else decode_weights).weight_verbs(lang, config)
    fetch_words, fragment, upper_first = weights.fetch_words, weights.fragment, weights.upper_first
    zeros_of_group = None if block_scaled else weights.zeros_of_group
    fetch_block_scales, turn_block_scales = (
        (weights.fetch_block_scales, weights.turn_block_scales) if block_scaled else (None, None)
    )
    multiply_accumulate = {
        "float16": ptx.mma_m16n8k16_f32_f16,
        "bfloat16": ptx.mma_m16n8k16_f32_bf16,
    }[config.dtype]
    low_scale, high_scale = {
        "float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
        "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high),
    }.get(config.scale_dtype, (None, None))
    low_zero, high_zero = ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high

    BATCH_BLOCKS, STAGE_ROWS, ROWS_PER_WARP, ROWS_PER_SCALE = (
        config.batch_blocks,
        config.stage_rows,
        config.rows_per_warp,
        config.rows_per_scale,
    )
    grouped, promoted, ragged, SCALE_BLOCKS = (
        config.grouped,
        config.promoted,
        config.ragged,
        config.scale_blocks,
    )
    SCALE_BYTES, WARP_SCALES = config.scale_bytes, config.scale_warp_bytes
    integer_zeros, float_zeros = config.zeros == "integer", config.zeros == "float16"
    WEIGHT_ROW, SCALE_ROW, SCALE_ROWS, X_PITCH = (
        config.weight_row_bytes,
        config.scale_row_bytes,
        config.scale_rows,
        config.x_pitch,
    )
    SCALES_AT, ZEROS_AT, X_AT, ROW_BYTES, ZERO_ROW, ZERO_BYTES = (
        config.scales_at,
        config.zeros_at,
        config.x_at,
        config.row_bytes,
        config.zero_row_bytes,
        config.zero_bytes,
    )
    PAIRS, PAIRS_PER_SCALE, TWO_PAIRS = (
        ROWS_PER_WARP // 2,
        max(1, ROWS_PER_SCALE // 2),
        config.two_pairs,
    )
    # registers of a k16 row, and of x for each n8 step
    ROW_WORDS, X_WORDS = weights.words, 8 if TWO_PAIRS else 2
    WEIGHTS, SCALES, X = 0, 1, 2  # a lane's offsets in a stage
    ZEROS = X + BATCH_BLOCKS
    SECOND_HALF = X + BATCH_BLOCKS + (config.zeros is not None) if ROW_WORDS == 8 else WEIGHTS
    POINTERS = X + BATCH_BLOCKS + (config.zeros is not None) + (ROW_WORDS == 8)
    ACCUMULATORS = 16 * BATCH_BLOCKS
    TOTALS = 4 * BATCH_BLOCKS if float_zeros else 1
    MINUS_ONE = pair(-1, config.dtype)

    @lang.device
    def stage_offsets(offsets, rows, place):
        """Where this lane reads in a stage: its weights, its scales and zero points, and its row of
        x for every n8 step. Rows of x below the matrix were never copied: the last one that was
        stands in for them, and the columns of the product that it spoils are never written.
        """
        warp_n, warp_k, lane, warp = place
        row_of_warp = warp_k * uint32(ROWS_PER_WARP)
        group = row_of_warp // uint32(SCALE_BLOCKS) if SCALE_ROWS > 1 else uint32(0)
        offsets[WEIGHTS] = (
            row_of_warp * uint32(WEIGHT_ROW)
            + warp_n * uint32(ROW_BYTES)
            + lane * uint32(ROW_BYTES // 32)
        )
        if ROW_WORDS == 8:
            half = uint32(16) if upper_first(lane) else uint32(0)
            offsets[SECOND_HALF] = offsets[WEIGHTS] + (uint32(16) - half)
            offsets[WEIGHTS] += half
        offsets[SCALES] = (
            uint32(SCALES_AT)
            + group * uint32(SCALE_ROW)
            + warp_n * uint32(WARP_SCALES)
            + lane // uint32(4) * uint32(SCALE_BYTES // 8)
        )
        if ZERO_BYTES > 0:
            offsets[ZEROS] = (
                uint32(ZEROS_AT)
                + group * uint32(ZERO_ROW)
                + warp_n * uint32(ZERO_BYTES)
                + lane // uint32(4) * uint32(ZERO_BYTES // 8)
            )
        for b in range(BATCH_BLOCKS):
            row = uint32(min(uint32(lane % uint32(8) + uint32(8 * b)), uint32(rows - uint32(1))))
            offsets[X + b] = (
                uint32(X_AT)
                + row * uint32(X_PITCH)
                + row_of_warp * uint32(32)
                + lane // uint32(8) * uint32(16)
            )

    @lang.device
    def fetch_pair(registers, half, pointers, number):
        """Weights and activations of two k16 rows: 32 of k, as deep as one ldmatrix reaches."""
        words, x = registers[1], registers[2]
        for row in range(2):
            at = uint32((2 * number + row) * WEIGHT_ROW)
            fetch_words(
                words,
                ROW_WORDS * (2 * half + row),
                pointers[WEIGHTS] + at,
                pointers[SECOND_HALF] + at,
            )
        for b in range(BATCH_BLOCKS):
            d = ptx.ldmatrix_x4(pointers[X + b] + uint32(64 * number))
            for r in range(4):
                x[X_WORDS * b + 4 * half + r] = d[r]
        if block_scaled:
            fetch_block_scales(registers[3], half, pointers[SCALES] + uint32(SCALE_ROW * number))

    @lang.device
    def fetch_row(registers, pointers, row):
        """The same of a single row."""
        words, x = registers[1], registers[2]
        fetch_words(
            words,
            0,
            pointers[WEIGHTS] + row * uint32(WEIGHT_ROW),
            pointers[SECOND_HALF] + row * uint32(WEIGHT_ROW),
        )
        for b in range(BATCH_BLOCKS):
            d = ptx.ldmatrix_x2(pointers[X + b] + row * uint32(32))
            x[X_WORDS * b], x[X_WORDS * b + 1] = d[0], d[1]

    def multiply_row(first):
        """Verb: one k16 row, four blocks of 16 columns each, times all rows of x. The first product
        of a sum has nothing to be added to. of_pair: which row of its pair it is; so is ``row``,
        where pairs are held."""

        @lang.device
        def multiply(registers, half, row, of_pair):
            sums, words, x, zeros, totals, upper_first = registers
            for j in range(4):
                w = fragment(
                    words, ROW_WORDS * (2 * half + row), j, zeros, upper_first, half, of_pair
                )
                for b in range(BATCH_BLOCKS):
                    o, at = 4 * (BATCH_BLOCKS * j + b), X_WORDS * b + 4 * half + 2 * row
                    addend = (
                        (float32(0), float32(0), float32(0), float32(0))
                        if first
                        else (sums[o], sums[o + 1], sums[o + 2], sums[o + 3])
                    )
                    d = multiply_accumulate(w, (x[at], x[at + 1]), addend)
                    for r in range(4):
                        sums[o + r] = d[r]
            if float_zeros:
                ones = uint32(MINUS_ONE)
                for b in range(BATCH_BLOCKS):
                    at = X_WORDS * b + 4 * half + 2 * row
                    addend = (
                        (float32(0), float32(0), float32(0), float32(0))
                        if first
                        else (
                            totals[4 * b],
                            totals[4 * b + 1],
                            totals[4 * b + 2],
                            totals[4 * b + 3],
                        )
                    )
                    d = multiply_accumulate((ones, ones, ones, ones), (x[at], x[at + 1]), addend)
                    for r in range(4):
                        totals[4 * b + r] = d[r]

        return multiply

    multiply_first, multiply_next = multiply_row(promoted), multiply_row(False)

    @lang.device
    def fetch_integer_zeros(registers, pointers, group):
        if integer_zeros:
            zeros_of_group(registers[3], pointers[ZEROS] + group * uint32(ZERO_ROW))

    @lang.device
    def fetch_scales(pointers, group):
        return (
            ptx.ld_shared_v4_b32(pointers[SCALES] + group * uint32(SCALE_ROW))
            if grouped
            else (uint32(0), uint32(0), uint32(0), uint32(0))
        )

    @lang.device
    def fetch_float_zeros(pointers, group):
        return (
            ptx.ld_shared_v4_b32(pointers[ZEROS] + group * uint32(ZERO_ROW))
            if float_zeros
            else (uint32(0), uint32(0), uint32(0), uint32(0))
        )

    @lang.device
    def without_zeros(registers, z):
        """Zero points, times the sums of x: from the sums of products, for the 8 columns of this
        lane, which Marlin's order puts side by side."""
        sums, totals = registers[0], registers[4]
        for j in range(4):
            low, high = low_zero(z[j]), high_zero(z[j])
            for b in range(BATCH_BLOCKS):
                o = 4 * (BATCH_BLOCKS * j + b)
                sums[o] = ptx.fma_rn_f32(totals[4 * b], low, sums[o])
                sums[o + 1] = ptx.fma_rn_f32(totals[4 * b + 1], low, sums[o + 1])
                sums[o + 2] = ptx.fma_rn_f32(totals[4 * b], high, sums[o + 2])
                sums[o + 3] = ptx.fma_rn_f32(totals[4 * b + 1], high, sums[o + 3])

    @lang.device
    def add_scaled(acc, sums, s):
        """A group's sums, times its scales: those of the same columns in the same order."""
        for j in range(4):
            low, high = low_scale(s[j]), high_scale(s[j])
            for b in range(BATCH_BLOCKS):
                o = 4 * (BATCH_BLOCKS * j + b)
                acc[o] = ptx.fma_rn_f32(sums[o], low, acc[o])
                acc[o + 1] = ptx.fma_rn_f32(sums[o + 1], low, acc[o + 1])
                acc[o + 2] = ptx.fma_rn_f32(sums[o + 2], high, acc[o + 2])
                acc[o + 3] = ptx.fma_rn_f32(sums[o + 3], high, acc[o + 3])

    @lang.device
    def promote(acc, registers, s, z):
        """The sums of a group, or of a warp's rows of a stage, to where they stay."""
        if float_zeros:
            without_zeros(registers, z)
        if grouped:
            add_scaled(acc, registers[0], s)
        else:
            for i in range(ACCUMULATORS):
                acc[i] += registers[0][i]

    @lang.device
    def done_with_stage(barriers, place, lane):
        """All lanes have read all they need, though not yet used it."""
        ptx.bar_warp_sync(uint32(ALL_LANES))
        if lane == uint32(0):
            release(barriers, place)

    @lang.device
    def no_more_pairs(acc, registers, pointers, barriers, place, lane):
        pass

    def pairs_from(number):
        """Verb for a stage's pairs of k16 rows from `number` on, unrolled: while one multiplies,
        the next is on its way to registers. There is no place for that above 16 rows of x: then row
        by row."""
        rest = pairs_from(number + 1) if number + 1 < PAIRS else no_more_pairs
        multiply_even = multiply_first if number % PAIRS_PER_SCALE == 0 else multiply_next
        group, group_begins, group_ends = (
            number // PAIRS_PER_SCALE,
            number % PAIRS_PER_SCALE == 0,
            promoted and (number + 1) % PAIRS_PER_SCALE == 0,
        )
        half, last = number % 2, number + 1 == PAIRS
        # no registers to keep scales and zero points in while a row multiplies
        late = float_zeros and not TWO_PAIRS

        @lang.device
        def multiply_pairs(acc, registers, pointers, barriers, place, lane):
            if group_begins:
                fetch_integer_zeros(registers, pointers, uint32(group))
            if group_ends and not late:
                s, z = (
                    fetch_scales(pointers, uint32(group)),
                    fetch_float_zeros(pointers, uint32(group)),
                )
            if TWO_PAIRS:
                if not last:
                    fetch_pair(registers, 1 - half, pointers, number + 1)
                else:
                    done_with_stage(barriers, place, lane)
                multiply_even(registers, half, 0, 0)
                multiply_next(registers, half, 1, 1)
            else:
                if block_scaled:
                    fetch_block_scales(
                        registers[3], 0, pointers[SCALES] + uint32(SCALE_ROW * number)
                    )
                fetch_row(registers, pointers, uint32(2 * number))
                multiply_even(registers, 0, 0, 0)
                fetch_row(registers, pointers, uint32(2 * number + 1))
                if last and not late:
                    done_with_stage(barriers, place, lane)
                multiply_next(registers, 0, 0, 1)
                if group_ends and late:
                    s, z = (
                        fetch_scales(pointers, uint32(group)),
                        fetch_float_zeros(pointers, uint32(group)),
                    )
                if last and late:
                    done_with_stage(barriers, place, lane)
            if group_ends:
                promote(acc, registers, s, z)
            rest(acc, registers, pointers, barriers, place, lane)

        return multiply_pairs

    multiply_pairs = pairs_from(0)

    @lang.device
    def multiply_tail(acc, registers, pointers, rows, barriers, place, lane):
        """The last stage of k, of fewer rows than a stage holds: one after the other, and nothing
        that was not copied."""
        row = uint32(0)
        while row < rows:
            group = row // uint32(ROWS_PER_SCALE)
            fetch_integer_zeros(registers, pointers, group)
            fetch_row(registers, pointers, row)
            if block_scaled:
                fetch_block_scales(
                    registers[3], 0, pointers[SCALES] + row // uint32(2) * uint32(SCALE_ROW)
                )
                turn_block_scales(registers[3], row)
            multiply_first(registers, 0, 0, 0)
            if promoted:
                promote(
                    acc,
                    registers,
                    fetch_scales(pointers, group),
                    fetch_float_zeros(pointers, group),
                )
            row = uint32(row + uint32(1))
        done_with_stage(barriers, place, lane)

    @lang.device
    def multiply_stage(acc, registers, stage, offsets, rows, warp_k, barriers, place, lane):
        pointers = cuda.local.array(POINTERS, uint32)
        for i in range(POINTERS):
            pointers[i] = stage + offsets[i]
        if not ragged or rows == uint32(STAGE_ROWS):
            if TWO_PAIRS:
                fetch_pair(registers, 0, pointers, 0)
            multiply_pairs(acc, registers, pointers, barriers, place, lane)
        else:
            before = uint32(warp_k * uint32(ROWS_PER_WARP))
            own_rows = (
                uint32(min(uint32(rows - before), uint32(ROWS_PER_WARP)))
                if rows > before
                else uint32(0)
            )
            multiply_tail(acc, registers, pointers, own_rows, barriers, place, lane)

    return SimpleNamespace(
        stage_offsets=stage_offsets,
        multiply_stage=multiply_stage,
        done_with_stage=done_with_stage,
        upper_first=upper_first,
        sums=ACCUMULATORS if promoted else 1,
        words=(4 if TWO_PAIRS else 1) * ROW_WORDS,
        x=X_WORDS * BATCH_BLOCKS,
        zeros=weights.zero_registers,
        totals=TOTALS,
        pointers=POINTERS,
    )

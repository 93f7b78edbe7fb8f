"""The decode kernel: small batches at the speed of the memory. ``C[m, n] = A[m, k] @ W[k, n]``, m from 1 to about 64.

Parameters: raw addresses a [m, k] of ``dtype`` (rows ``a_stride`` elements apart, each 16-byte aligned), b int32 [k/16, 2 n_packed] and scales
[groups, n_packed] of ``scale_dtype`` in Marlin's order, bias [n] and c [m, n] of ``dtype``, partials fp32 and locks int32 (``workspace_bytes``; locks
zero before, zero again after); m, n, k, a_stride as int32. k is a multiple of 16, n of 8, n_packed is n completed to 64; with ``ragged=False`` k
and n fill whole tiles.

The sizes are in ``decode_config``, the shares of the blocks in ``decode_schedule``, the ring of stages in ``pipeline``, the producer in ``decode_load``,
the way of the sums out of the registers in ``decode_output``. The ideas:
- *The transposed product.* A Marlin word, dequantised, is the A fragment of W^T: 16 columns of W become the rows of ``mma.m16n8k16`` and the
  batch its columns, so one row of x pays for 8, not 16, and no byte of the published layout has to move.
- *Warps with one job each.* A producer warp issues bulk copies (no register, no thread per byte) as far ahead as the ring is deep; consumer warps
  wait for nothing but full stages. Each has 64 columns and its own part of the stage's k.
- *Scales on the sums.* A group's products add up in fp32 before the scale multiplies them: exact weights, and fewer multiplies.
- *Equal shares.* The stages of all tiles, one tile after the other, are cut into one stripe a block, equal to within a stage; the copies of
  the next tile are under way while the sums of the last one leave.
- *Launches that overlap.* The copies of weights begin while the kernel before this one on the stream ends (``griddepcontrol``), in place kept free
  for them or on multiprocessors that it left: 8192 x 8192 at m = 1 takes 12.1 us that way and 15.3 without.
- *No sharing where tiles come out even.* What blocks share costs 2.5 us: partial sums to L2, a fence, a counter, and all of them back.
"""
from numba_marlin.kernels.decode_config import COLUMNS, ROW_BYTES, SCALE_BYTES, DecodeConfig
from numba_marlin.kernels.decode_load import load_verbs
from numba_marlin.kernels.decode_output import output_verbs
from numba_marlin.kernels.decode_schedule import schedule_verbs
from numba_marlin.kernels.definition import KernelDefinition, Takes
from numba_marlin.kernels.expand import expand_verbs
from numba_marlin.kernels.pipeline import barrier_bytes, pipeline_verbs


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, float32 = lang.uint32, lang.float32
    shared_base = lang.shared_base
    expand = expand_verbs(lang, config.dtype, bits=4, origin=8)
    multiply_accumulate = {"float16": ptx.mma_m16n8k16_f32_f16, "bfloat16": ptx.mma_m16n8k16_f32_bf16}[config.dtype]
    low_scale, high_scale = {"float16": (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high),
                             "bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)}[config.scale_dtype]
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=config.consumers)
    initialise, consumer_start, advance, wait_full, release = ring.initialise, ring.consumer_start, ring.advance, ring.wait_full, ring.release
    schedule = schedule_verbs(lang, config)
    problem_of, units_of, stripe_of, block_of, tile_at, rows_of = (schedule.problem_of, schedule.units_of, schedule.stripe_of, schedule.block_of,
                                                                   schedule.tile_at, schedule.rows_of)
    produce = load_verbs(lang, config, ring, schedule)
    output = output_verbs(lang, config)
    share_out, leave_partial, count_in, add_parts = output.share_out, output.leave_partial, output.count_in, output.add_parts
    scale_columns, add_bias, write_result = output.scale_columns, output.add_bias, output.write_result

    BATCH_BLOCKS, STAGE_ROWS, ROWS_PER_WARP, ROWS_PER_SCALE = config.batch_blocks, config.stage_rows, config.rows_per_warp, config.rows_per_scale
    WARPS_N, CONSUMERS, grouped, ragged, GROUP_BLOCKS = config.warps_n, config.consumers, config.grouped, config.ragged, config.group_blocks
    WEIGHT_ROW, SCALE_ROW, SCALE_ROWS, X_PITCH = config.weight_row_bytes, config.scale_row_bytes, config.scale_rows, config.x_pitch
    SCALES_AT, X_AT, STAGE_BYTES, OWNERS, WHOLE, biased = config.scales_at, config.x_at, config.stage_bytes, config.owners, config.whole, config.bias
    EXCHANGE_AT = config.stages * STAGE_BYTES
    BARRIERS_AT = config.shared_bytes - barrier_bytes(config.stages)
    PAIRS, PAIRS_PER_SCALE, TWO_PAIRS = ROWS_PER_WARP // 2, max(1, ROWS_PER_SCALE // 2), config.two_pairs
    ACCUMULATORS, OWN, X_WORDS = 16 * BATCH_BLOCKS, 4 * config.vectors, 8 if TWO_PAIRS else 2  # registers of x for each n8 step
    SUMS, WORDS, X_REGISTERS = ACCUMULATORS if grouped else 1, 16 if TWO_PAIRS else 4, X_WORDS * BATCH_BLOCKS
    WEIGHTS, SCALES, X, POINTERS = 0, 1, 2, 2 + BATCH_BLOCKS  # a lane's offsets in a stage
    FULL_MASK = 0xFFFFFFFF

    # ---- the consumers -----------------------------------------------------------------------------------------------------------

    @lang.device
    def stage_offsets(offsets, rows, place):
        """Where this lane reads in a stage: its vector of weights, its scales, and its row of x for every n8 step. Rows of x below the matrix
        were never copied: the last one that was stands in for them, and the columns of the product that it spoils are never written."""
        warp_n, warp_k, lane, warp = place
        row_of_warp = warp_k * uint32(ROWS_PER_WARP)
        group = row_of_warp // uint32(GROUP_BLOCKS) if SCALE_ROWS > 1 else uint32(0)
        offsets[WEIGHTS] = row_of_warp * uint32(WEIGHT_ROW) + warp_n * uint32(ROW_BYTES) + lane * uint32(16)
        offsets[SCALES] = uint32(SCALES_AT) + group * uint32(SCALE_ROW) + warp_n * uint32(SCALE_BYTES) + lane // uint32(4) * uint32(16)
        for b in range(BATCH_BLOCKS):
            row = uint32(min(uint32(lane % uint32(8) + uint32(8 * b)), uint32(rows - uint32(1))))
            offsets[X + b] = uint32(X_AT) + row * uint32(X_PITCH) + row_of_warp * uint32(32) + lane // uint32(8) * uint32(16)

    @lang.device
    def fetch_pair(registers, half, pointers, pair):
        """Weights and activations of two k16 rows: 32 of k, as deep as one ldmatrix reaches."""
        sums, words, x = registers
        for row in range(2):
            q = ptx.ld_shared_v4_b32(pointers[WEIGHTS] + uint32((2 * pair + row) * WEIGHT_ROW))
            for j in range(4):
                words[8 * half + 4 * row + j] = q[j]
        for b in range(BATCH_BLOCKS):
            d = ptx.ldmatrix_x4(pointers[X + b] + uint32(64 * pair))
            for r in range(4):
                x[X_WORDS * b + 4 * half + r] = d[r]

    @lang.device
    def fetch_row(registers, pointers, row):
        """The same of a single row."""
        sums, words, x = registers
        q = ptx.ld_shared_v4_b32(pointers[WEIGHTS] + row * uint32(WEIGHT_ROW))
        for j in range(4):
            words[j] = q[j]
        for b in range(BATCH_BLOCKS):
            d = ptx.ldmatrix_x2(pointers[X + b] + row * uint32(32))
            x[X_WORDS * b], x[X_WORDS * b + 1] = d[0], d[1]

    def multiply_row(first):
        """Verb: one k16 row, four words of 16 columns each, times all rows of x. The first product of a sum has nothing to be added to."""
        @lang.device
        def multiply(registers, half, row):
            sums, words, x = registers
            for j in range(4):
                word = words[8 * half + 4 * row + j]
                w = expand(word)
                for b in range(BATCH_BLOCKS):
                    o, at = 4 * (BATCH_BLOCKS * j + b), X_WORDS * b + 4 * half + 2 * row
                    addend = (float32(0), float32(0), float32(0), float32(0)) if first else (sums[o], sums[o + 1], sums[o + 2], sums[o + 3])
                    d = multiply_accumulate((w[0], w[2], w[1], w[3]), (x[at], x[at + 1]), addend)
                    for r in range(4):
                        sums[o + r] = d[r]
        return multiply

    multiply_first, multiply_next = multiply_row(grouped), multiply_row(False)

    @lang.device
    def add_scaled(acc, sums, s):
        """A group's sums, times its scales: those of 8 columns of this lane, which Marlin's order puts side by side."""
        for j in range(4):
            low, high = low_scale(s[j]), high_scale(s[j])
            for b in range(BATCH_BLOCKS):
                o = 4 * (BATCH_BLOCKS * j + b)
                acc[o] = ptx.fma_rn_f32(sums[o], low, acc[o])
                acc[o + 1] = ptx.fma_rn_f32(sums[o + 1], low, acc[o + 1])
                acc[o + 2] = ptx.fma_rn_f32(sums[o + 2], high, acc[o + 2])
                acc[o + 3] = ptx.fma_rn_f32(sums[o + 3], high, acc[o + 3])

    @lang.device
    def done_with_stage(barriers, place, lane):
        """All lanes have read all they need, though not yet used it."""
        ptx.bar_warp_sync(uint32(FULL_MASK))
        if lane == uint32(0):
            release(barriers, place)

    @lang.device
    def no_more_pairs(acc, registers, pointers, barriers, place, lane):
        pass

    def pairs_from(pair):
        """Verb for a stage's pairs of k16 rows from `pair` on, unrolled: while one multiplies, the next is on its way to registers. There is no place
        for that above 16 rows of x: then row by row."""
        rest = pairs_from(pair + 1) if pair + 1 < PAIRS else no_more_pairs
        multiply_even = multiply_first if pair % PAIRS_PER_SCALE == 0 else multiply_next
        scale_ends = grouped and (pair + 1) % PAIRS_PER_SCALE == 0
        half, last, scale_row = pair % 2, pair + 1 == PAIRS, pair // PAIRS_PER_SCALE * SCALE_ROW

        @lang.device
        def multiply_pairs(acc, registers, pointers, barriers, place, lane):
            if scale_ends:
                s = ptx.ld_shared_v4_b32(pointers[SCALES] + uint32(scale_row))
            if TWO_PAIRS:
                if not last:
                    fetch_pair(registers, 1 - half, pointers, pair + 1)
                else:
                    done_with_stage(barriers, place, lane)
                multiply_even(registers, half, 0)
                multiply_next(registers, half, 1)
            else:
                fetch_row(registers, pointers, uint32(2 * pair))
                multiply_even(registers, 0, 0)
                fetch_row(registers, pointers, uint32(2 * pair + 1))
                if last:
                    done_with_stage(barriers, place, lane)
                multiply_next(registers, 0, 0)
            if scale_ends:
                add_scaled(acc, registers[0], s)
            rest(acc, registers, pointers, barriers, place, lane)

        return multiply_pairs

    multiply_pairs = pairs_from(0)

    @lang.device
    def multiply_tail(acc, registers, pointers, rows, barriers, place, lane):
        """The last stage of k, of fewer rows than a stage holds: one after the other, and nothing that was not copied."""
        row = uint32(0)
        while row < rows:
            fetch_row(registers, pointers, row)
            multiply_first(registers, 0, 0)
            if grouped:
                add_scaled(acc, registers[0], ptx.ld_shared_v4_b32(pointers[SCALES] + row // uint32(ROWS_PER_SCALE) * uint32(SCALE_ROW)))
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
            own_rows = uint32(min(uint32(rows - before), uint32(ROWS_PER_WARP))) if rows > before else uint32(0)
            multiply_tail(acc, registers, pointers, own_rows, barriers, place, lane)

    @lang.device
    def finish_tile(acc, c, scales, bias, partials, locks, exchange, tile, top, bottom, warps, problem):
        """Sums to where they belong: into C, or, from a tile that blocks share, into the workspace until the last of them has come."""
        block = uint32(cuda.blockIdx.x)
        own = cuda.local.array(OWN, float32)
        share_out(acc, own, exchange, warps)
        if warps[1] < uint32(OWNERS):
            complete = WHOLE or top == bottom
            if not complete:
                leave_partial(own, partials, block, top, tile[2], warps)
                parts = uint32(bottom - top + uint32(1))
                complete = count_in(locks, top, parts, warps)
                if complete:
                    add_parts(own, partials, top, parts, tile[2], warps)
            if complete:
                if not grouped:
                    scale_columns(own, scales, tile[0], problem[1], warps)
                if biased:
                    add_bias(own, bias, tile[0], problem[6], warps)
                write_result(c, own, tile[0], tile[1], tile[2], problem[6], warps)

    @lang.device
    def consume(c, scales, bias, partials, locks, shared, barriers, position, end, units, warps, problem):
        warp_n, warp_k, lane, warp = warps
        acc = cuda.local.array(ACCUMULATORS, float32)
        sums = cuda.local.array(SUMS, float32)
        registers = (sums if grouped else acc, cuda.local.array(WORDS, uint32), cuda.local.array(X_REGISTERS, uint32))
        offsets = cuda.local.array(POINTERS, uint32)
        place = consumer_start()
        ptx.griddepcontrol_wait()  # c and the workspace may still be those of the kernel before
        while position < end:
            tile = tile_at(position, end, problem)
            stage_offsets(offsets, tile[2], warps)
            for i in range(ACCUMULATORS):
                acc[i] = float32(0)
            columns_exist = not ragged or uint32((tile[0] * uint32(WARPS_N) + warp_n) * uint32(COLUMNS)) < problem[1]
            k_unit = tile[3]
            k_end = uint32(k_unit + tile[4])
            while k_unit < k_end:
                wait_full(barriers, place)
                if columns_exist:
                    multiply_stage(acc, registers, shared + place[0] * uint32(STAGE_BYTES), offsets, rows_of(k_unit, problem[2]), warp_k, barriers, place, lane)
                else:
                    done_with_stage(barriers, place, lane)
                place = advance(place)
                k_unit = uint32(k_unit + uint32(1))
            first = uint32(position - tile[3])
            top, bottom = block_of(first, units), block_of(uint32(first + problem[4] - uint32(1)), units)
            finish_tile(acc, c, scales, bias, partials, locks, shared + uint32(EXCHANGE_AT), tile, top, bottom, warps, problem)
            position = uint32(position + tile[4])

    # ---- the kernel --------------------------------------------------------------------------------------------------------------

    def decode(a, b, c, scales, zeros, bias, partials, locks, m, n, k, a_stride):
        shared = shared_base()
        barriers = shared + uint32(BARRIERS_AT)
        thread = ptx.tid_x()
        # A shuffle tells the compiler that all lanes agree on the warp's number.
        warp, lane = ptx.shfl_sync_idx(thread // uint32(32), uint32(0)), uint32(thread % uint32(32))
        if thread == uint32(0):
            initialise(barriers)
        problem = problem_of(uint32(m), uint32(n), uint32(k), uint32(a_stride))
        units = units_of(problem)
        position, end = stripe_of(uint32(cuda.blockIdx.x), units, problem)
        cuda.syncthreads()
        ptx.griddepcontrol_launch_dependents()
        if warp == uint32(CONSUMERS):
            if ptx.elect_sync() != uint32(0):
                produce(a, b, scales, shared, barriers, position, end, problem)
        else:
            warps = (uint32(warp % uint32(WARPS_N)), uint32(warp // uint32(WARPS_N)), lane, warp)
            consume(c, scales, bias, partials, locks, shared, barriers, position, end, units, warps, problem)

    return decode


KERNEL = KernelDefinition(
    name="decode",
    summary="small batches: bulk copies by a producer warp, the transposed mma.sync, equal shares of k, sums in the workspace",
    config_type=DecodeConfig,
    parameters=(("a", "u64"), ("b", "u64"), ("c", "u64"), ("scales", "u64"), ("zeros", "u64"), ("bias", "u64"), ("partials", "u64"), ("locks", "u64"),
                ("m", "i32"), ("n", "i32"), ("k", "i32"), ("a_stride", "i32")),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    blocks_per_sm=lambda config: config.resident,
    dependent=lambda config: True,
    takes=Takes(dtypes=tuple((dtype, scales) for dtype in ("float16", "bfloat16") for scales in ("float16", "bfloat16")), bias=True, column_step=8,
                group_sizes=(-1, 32, 64, 128, 256)),
    method=lambda config: "sums",
    order_of_sums=lambda config: config.order_of_sums,
    waits=False,
    min_arch="sm_90",
)

"""The decode kernel: small batches at the speed of the memory. ``C[m, n] = A[m, k] @ W[k, n]``, m
from 1 to about 64.

Parameters: raw addresses a [m, k] of ``dtype`` (rows ``a_stride`` elements apart, each 16-byte
aligned), b int32 [k/16, n_packed * bits/2], scales [groups, n_packed] of ``scale_dtype`` (of FP4:
``formats.fp4_marlin``, with factors) and zeros (int32 [groups, n_packed * bits/32] or fp16 [groups,
n_packed]) in Marlin's order, 16-byte aligned, bias [n] and c [m, n] of ``dtype``, partials fp32 and
locks int32 (``workspace_bytes``; locks zero before, zero again after); m, n, k, a_stride as int32.
k is a multiple of 16, n of 8, n_packed is n completed to 64; with ``ragged=False`` k and n fill
whole tiles.

The sizes are in ``decode_config``, the shares of the blocks in ``decode_schedule``, the ring of
stages in ``pipeline``, the producer in ``decode_load``, what a warp does with a stage in
``decode_multiply``, and with the types of weights in ``decode_weights``, the way of the sums out of
the registers in ``decode_output``. The ideas:
- *The transposed product.* A Marlin word, dequantised, is the A fragment of W^T: 16 columns of W
  become the rows of ``mma.m16n8k16`` and the batch its columns, so one row of x pays for 8, not 16,
  and no byte of the published layout has to move.
- *Warps with one job each.* A producer warp issues bulk copies (no register, no thread per byte) as
  far ahead as the ring is deep; consumer warps wait for nothing but full stages. Each has 64
  columns and its own part of the stage's k.
- *Scales on the sums.* A group's products add up in fp32 before the scale multiplies them: exact
  weights, and fewer multiplies.
- *Equal shares.* The stages of all tiles, one tile after the other, are cut into one stripe a
  block, equal to within a stage; the copies of the next tile are under way while the sums of the
  last one leave.
- *Launches that overlap.* The copies of weights begin while the kernel before this one on the
  stream ends (``griddepcontrol``), in place kept free for them or on multiprocessors that it left:
  8192 x 8192 at m = 1 takes 12.1 us that way and 15.3 without.
- *No sharing where tiles come out even.* What blocks share costs 2.5 us: partial sums to L2, a
  fence, a counter, and all of them back.
"""

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.decode.load import load_verbs
from numba_marlin.kernels.decode.multiply import multiply_verbs
from numba_marlin.kernels.decode.output import output_verbs
from numba_marlin.kernels.decode.schedule import schedule_verbs
from numba_marlin.kernels.language.pipeline import barrier_bytes, pipeline_verbs


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, float32 = lang.uint32, lang.float32
    shared_base = lang.shared_base
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=config.consumers)
    initialise, consumer_start, advance, wait_full = (
        ring.initialise,
        ring.consumer_start,
        ring.advance,
        ring.wait_full,
    )
    schedule = schedule_verbs(lang, config)
    problem_of, units_of, stripe_of, block_of, tile_at, rows_of = (
        schedule.problem_of,
        schedule.units_of,
        schedule.stripe_of,
        schedule.block_of,
        schedule.tile_at,
        schedule.rows_of,
    )
    produce = load_verbs(lang, config, ring, schedule)
    multiply = multiply_verbs(lang, config, ring)
    stage_offsets, multiply_stage, done_with_stage, upper_first = (
        multiply.stage_offsets,
        multiply.multiply_stage,
        multiply.done_with_stage,
        multiply.upper_first,
    )
    output = output_verbs(lang, config)
    share_out, leave_partial, count_in, add_parts = (
        output.share_out,
        output.leave_partial,
        output.count_in,
        output.add_parts,
    )
    scale_columns, add_bias, write_result = (
        output.scale_columns,
        output.add_bias,
        output.write_result,
    )

    WARPS_N, CONSUMERS, promoted, ragged = (
        config.warps_n,
        config.consumers,
        config.promoted,
        config.ragged,
    )
    COLUMN_FACTORS, block_scaled = config.column_factors, config.block_scaled
    STAGE_BYTES, OWNERS, WHOLE, biased = (
        config.stage_bytes,
        config.owners,
        config.whole,
        config.bias,
    )
    EXCHANGE_AT = config.stages * STAGE_BYTES
    BARRIERS_AT = config.shared_bytes - barrier_bytes(config.stages)
    ACCUMULATORS, OWN = 16 * config.batch_blocks, 4 * config.vectors
    SUMS, WORDS, X_REGISTERS, ZEROS, TOTALS, POINTERS = (
        multiply.sums,
        multiply.words,
        multiply.x,
        multiply.zeros,
        multiply.totals,
        multiply.pointers,
    )

    @lang.device
    def finish_tile(
        acc, c, scales, bias, partials, locks, exchange, tile, top, bottom, warps, problem
    ):
        """Sums to where they belong: into C, or, from a tile that blocks share, into the workspace
        until the last of them has come."""
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
                if COLUMN_FACTORS:
                    scale_columns(own, scales, tile[0], problem[1], warps)
                if biased:
                    add_bias(own, bias, tile[0], problem[6], warps)
                write_result(c, own, tile[0], tile[1], tile[2], problem[6], warps)

    @lang.device
    def consume(
        c, scales, bias, partials, locks, shared, barriers, position, end, units, warps, problem
    ):
        warp_n, warp_k, lane, warp = warps
        acc = cuda.local.array(ACCUMULATORS, float32)
        sums = cuda.local.array(SUMS, float32)
        registers = (
            sums if promoted else acc,
            cuda.local.array(WORDS, uint32),
            cuda.local.array(X_REGISTERS, uint32),
            cuda.local.array(ZEROS, uint32),
            cuda.local.array(TOTALS, float32),
            upper_first(lane),
        )
        offsets = cuda.local.array(POINTERS, uint32)
        place = consumer_start()
        ptx.griddepcontrol_wait()  # c and the workspace may still be those of the kernel before
        while position < end:
            tile = tile_at(position, end, problem)
            stage_offsets(offsets, tile[2], warps)
            for i in range(ACCUMULATORS):
                acc[i] = float32(0)
            columns_exist = (
                not ragged
                or uint32((tile[0] * uint32(WARPS_N) + warp_n) * uint32(COLUMNS)) < problem[1]
            )
            k_unit = tile[3]
            k_end = uint32(k_unit + tile[4])
            while k_unit < k_end:
                wait_full(barriers, place)
                if columns_exist:
                    multiply_stage(
                        acc,
                        registers,
                        shared + place[0] * uint32(STAGE_BYTES),
                        offsets,
                        rows_of(k_unit, problem[2]),
                        warp_k,
                        barriers,
                        place,
                        lane,
                    )
                else:
                    done_with_stage(barriers, place, lane)
                place = advance(place)
                k_unit = uint32(k_unit + uint32(1))
            first = uint32(position - tile[3])
            top, bottom = (
                block_of(first, units),
                block_of(uint32(first + problem[4] - uint32(1)), units),
            )
            finish_tile(
                acc,
                c,
                scales,
                bias,
                partials,
                locks,
                shared + uint32(EXCHANGE_AT),
                tile,
                top,
                bottom,
                warps,
                problem,
            )
            position = uint32(position + tile[4])

    def decode(a, b, c, scales, zeros, bias, partials, locks, m, n, k, a_stride, factors):
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
                produce(a, b, scales, zeros, shared, barriers, position, end, problem)
        else:
            warps = (uint32(warp % uint32(WARPS_N)), uint32(warp // uint32(WARPS_N)), lane, warp)
            consume(
                c,
                factors if block_scaled else scales,
                bias,
                partials,
                locks,
                shared,
                barriers,
                position,
                end,
                units,
                warps,
                problem,
            )

    return decode

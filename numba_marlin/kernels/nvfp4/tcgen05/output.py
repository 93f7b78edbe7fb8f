"""How sums leave the Blackwell kernel (``tcgen05``): from tensor memory to registers, where they
are finished, and to D.

A warp has 32 rows of a tile, a row per lane, and takes a *part* at a time, 32 columns: it loads
them from tensor memory, finishes them, and

- a D of 16 bits or float32: writes them to its 4 KiB of shared memory, a *box*, 128 bytes of each
  row of D, two parts of 16 bits or one of float32; when the box is full lane 0 starts a tensor copy
  from there to D, which leaves out what lies outside of it;
- a block-scaled D: makes codes and scales of them and stores both (``quantize``).

Finished, in fp32: activation(alpha * sum + beta * C + bias), each product and sum rounded once, as
``block_scaled.finish`` has it. At ``factors`` stand alpha (with the global scales of A and B),
beta, and the inverse and sixth of ``result_codes``. A part of C is a stage of a ring that the
epilogue load fills (``load``); it is given back when all of the warp's lanes have read their rows.
Of the bias a lane reads eight numbers at a time from global memory, all lanes the same; a column
that D does not have reads none.

Banks: lane r reads row r of C and writes row r of the box, 16 bytes at a time, where the swizzle
has them: of rows of 128 bytes chunk c at c ^ (r % 8), of rows of 64 at c ^ (r / 2 % 4). So eight
lanes, which shared memory serves at once, touch all 32 banks. The copies' maps name the same
swizzles.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each, numbered, together
from numba_marlin.kernels.nvfp4.block_scaled.finish import activation_verb
from numba_marlin.kernels.nvfp4.result_codes import codes_per_byte, scale_columns, scales_at_verb
from numba_marlin.kernels.nvfp4.tcgen05.config import BOX_BYTES, PART, STAGE_ROW
from numba_marlin.kernels.nvfp4.tcgen05.quantize import quantize_verbs


def output_verbs(lang, config, source_ring):
    """-> namespace of device functions. ``store_tile(shared, outputs, accumulator, tile, place,
    sizes, thread)`` -> place in the ring of C: a warp's 32 rows of a tile from tile.row,
    tile.column of D on; outputs, thread: ``kernel``'s; accumulator: the tensor memory address of
    its first sum (lane << 16 | column: adding counts columns); place: in ``source_ring``, used
    where C is added. ``drain(lane)``: until this thread's copies to D have read shared memory."""
    ptx, int32, uint64, float32 = lang.ptx, lang.int32, lang.uint64, lang.float32
    cfg = lang.constants(config)
    sourced, biased, scaled = config.source, config.bias, config.scaled
    halves = config.result in ("float16", "bfloat16")
    boxes = config.tile_n // config.box_columns
    parts = config.box_columns // PART  # that make a box: 2 of 16 bits, else 1
    part_bytes = PART * config.result_bytes  # of a row of the box
    read_columns = ptx.tcgen05_ld_32x32b_f32(n=PART)
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)
    quantize = quantize_verbs(lang, config)
    scales_at = scales_at_verb(lang, config.result)
    columns_of_scale, codes_in_byte = scale_columns(config.result), codes_per_byte(config.result)
    # (left, right) -> a register of two 16-bit numbers, left in the low half (PTX names it last)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32
    widen_low, widen_high = {"bfloat16": (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)}.get(
        config.source_dtype, (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high)
    )
    wide_source = config.source_bytes == 4
    activate = activation_verb(lang, config.activation)

    # the numbers at ``factors``
    Factors = lang.record("Factors", "alpha beta inverse sixth")

    # of a part of a lane's row: factors; address of its row of C in a stage, and what the byte
    # offset of a chunk in it is xored with; address of the first number of the bias; how many
    # columns D has from the first on
    FinishAt = lang.record("FinishAt", "factors c flip bias left")

    # finishing

    @lang.device
    def source_at(at, column):
        """Eight neighbours of C as float32."""
        if wide_source:
            return ptx.ld_shared_v4_f32(at.c + (at.flip ^ (4 * column))) + ptx.ld_shared_v4_f32(
                at.c + (at.flip ^ (4 * column + 16))
            )
        pairs = ptx.ld_shared_v4_b32(at.c + (at.flip ^ (2 * column)))
        return (
            widen_low(pairs[0]),
            widen_high(pairs[0]),
            widen_low(pairs[1]),
            widen_high(pairs[1]),
            widen_low(pairs[2]),
            widen_high(pairs[2]),
            widen_low(pairs[3]),
            widen_high(pairs[3]),
        )

    @lang.device
    def scale_one(sum_, alpha):
        return (alpha * sum_[0],)

    @lang.device
    def add_one(value, other, factor):
        """With factor 1 a sum that no assembler can fuse with a product before it."""
        return (ptx.fma_rn_f32(factor, other[0], value[0]),)

    @lang.device
    def activate_one(value, where):
        return (activate(value[0]),)

    scale_eight = map_each(lang, 8, 1, scale_one)
    add_eight = together(lang, 8, 1, add_one)
    activate_eight = map_each(lang, 8, 1, activate_one)

    def finish_eight(piece):
        """Eight columns, which are all inside of D or all outside: n is a multiple of 8."""
        column = 8 * piece

        @lang.device
        def finish(sums, at):
            v = scale_eight(sums, at.factors.alpha)
            if sourced:
                v = add_eight(v, source_at(at, column), at.factors.beta)
            if biased and at.left > column:
                bias = at.bias + 4 * column
                v = add_eight(
                    v,
                    ptx.ld_global_v4_f32(bias) + ptx.ld_global_v4_f32(bias + 16),
                    float32(1),
                )
            return activate_eight(v, 0)

        return finish

    finish = numbered(lang, PART, 8, finish_eight)  # (32 sums, at) -> 32 values

    # storing

    @lang.device
    def store_chunk(values, address):
        """8 numbers as halves, or 4 floats, to 16 bytes of a row, where the 128-byte swizzle has
        them: address bits 4 to 6 xor bits 7 to 9, the row % 8."""
        target = address ^ ((address >> 7 & 7) << 4)
        if halves:
            ptx.st_shared_v4_b32(
                target,
                (
                    pair_of(values[0], values[1]),
                    pair_of(values[2], values[3]),
                    pair_of(values[4], values[5]),
                    pair_of(values[6], values[7]),
                ),
            )
        else:
            ptx.st_shared_v4_f32(target, values)

    # (32 values, address): store_chunk of 8 or 4 at a time, each 16 bytes behind the last
    store_columns = for_each(lang, PART, 8 if halves else 4, store_chunk, 16)

    @lang.device
    def store_codes(values, outputs, factors, row, column, sizes):
        pitch = uint64(sizes.n // codes_in_byte)
        codes = outputs.d + (uint64(row) * pitch + column // codes_in_byte)
        quantize.put_part(
            values,
            quantize.PartAt(
                codes if row < sizes.m else uint64(0),
                scales_at(outputs.sfd, row, sizes.n),
                column // columns_of_scale,
                sizes.n - column if column < sizes.n else 0,
                factors.inverse,
                factors.sixth,
            ),
        )

    @lang.device
    def finish_part(sums, shared, outputs, factors, column, place, sizes, row):
        """32 columns from ``column`` on; row: the lane's, in the tile."""
        stage = shared + cfg.source_shared + place.stage * cfg.source_stage_bytes
        c = stage + row * cfg.source_row
        flip = (row % 8 if wide_source else row // 2 % 4) << 4
        left = sizes.n - column if column < sizes.n else 0
        return finish(sums, FinishAt(factors, c, flip, outputs.bias + uint64(column) * 4, left))

    @lang.device
    def store_tile(shared, outputs, accumulator, tile, place, sizes, thread):
        """The warp's 32 rows of a tile. When it returns, all of them have been loaded from tensor
        memory, which may be written again; the last copy to D may still be running."""
        lane, barriers = thread.lane, shared + cfg.source_barriers
        results = shared + cfg.results_shared + thread.warp * BOX_BYTES
        row = thread.warp * 32 + lane
        alpha, beta = ptx.ld_global_v2_f32(outputs.factors)
        inverse, sixth = ptx.ld_global_v2_f32(outputs.factors + 8)
        factors = Factors(alpha, beta, inverse, sixth)
        for box in range(boxes):
            if not scaled:
                # Before the box is written again; the copies are lane 0's.
                if lane == 0:
                    wait_for_store()
                ptx.bar_warp_sync(ALL_LANES)
            for part in range(parts):
                first = box * cfg.box_columns + part * PART
                sums = read_columns(accumulator + first)
                ptx.tcgen05_wait_ld()
                column = tile.column + first
                if sourced:
                    source_ring.wait_full(barriers, place)
                values = finish_part(sums, shared, outputs, factors, column, place, sizes, row)
                if sourced:
                    ptx.bar_warp_sync(ALL_LANES)  # all lanes have read C
                    if lane == 0:
                        source_ring.release(barriers, place)
                    place = source_ring.advance(place)
                if scaled:
                    store_codes(values, outputs, factors, tile.row + lane, column, sizes)
                else:
                    store_columns(values, results + lane * STAGE_ROW + part * part_bytes)
            if not scaled:
                ptx.fence_proxy_async_shared()
                ptx.bar_warp_sync(ALL_LANES)
                if lane == 0:
                    x, y = int32(tile.column + box * cfg.box_columns), int32(tile.row)
                    ptx.cp_async_bulk_tensor_2d_s2g(outputs.d_map, x, y, results)
                    ptx.cp_async_bulk_commit_group()
        return place

    @lang.device
    def drain(lane):
        """Shared memory must outlive the copies out of it; D is complete when the grid is."""
        if not scaled and lane == 0:
            wait_for_store()

    return lang.namespace("output", store_tile=store_tile, drain=drain)

"""The epilogue role of the block-scaled kernel (``block_scaled``), for the warps that hold the
sums: finished (``block_scaled_epilogue``), in the type of D, and out.

- 16 bits: ``stmatrix`` puts a warp's 16 rows into the tile in shared memory, over C if there is
  one, and tensor stores carry them off while the next tile begins.
- float32: straight from registers, 8 bytes a lane, 32 in a row.
- blocks: ``block_scaled_quantize``.

A warp goes its own way: nowhere here does it wait for another.
"""

from types import SimpleNamespace

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import numbered_each
from numba_marlin.kernels.nvfp4.block_scaled.epilogue import finish_verbs
from numba_marlin.kernels.nvfp4.block_scaled.load import BOX_COLUMNS
from numba_marlin.kernels.nvfp4.block_scaled.quantize import ELEMENTS, quantize_verbs


def store_verbs(lang, config, schedule, source):
    """-> namespace with ``epilogue(shared, sums, outputs, tile, place, sizes, lane_place) -> place
    in the ring of C`` and ``drain(lane_place)``; outputs: (d_map, d, sfd, bias, factors)."""
    ptx, uint32, uint64, int32 = lang.ptx, lang.uint32, lang.uint64, lang.int32
    WORDS, GATED, SOURCED, HALVES, FLOATS = (
        config.words,
        config.gated,
        config.source,
        config.kind == "halves",
        config.kind == "floats",
    )
    OUTPUT, BOX, SOURCE_BARRIERS, D_TILE_N = (
        config.output_shared,
        config.tile_m * 2 * BOX_COLUMNS,
        config.source_barriers,
        config.d_tile_n,
    )
    corner = schedule.corner
    finish = finish_verbs(lang, config).finish
    wait_source, release_source, advance_source = source.wait_full, source.release, source.advance
    pair_of = {"bfloat16": ptx.cvt_rn_bf16x2_f32}.get(config.result, ptx.cvt_rn_f16x2_f32)
    BLOCK, CODES_A_BYTE = (
        16 if config.result == "nvfp4" else 32,
        (2 if ELEMENTS.get(config.result) == "e2m1" else 1),
    )
    put_quantized = quantize_verbs(lang, config).put_blocks
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)

    # ---- one block of 16 rows ----

    def store_halves(piece):
        """16 columns: four matrices of 8 x 8."""
        box, chunk = piece // 4 * BOX, 32 * (piece % 4)

        @lang.device
        def store(v, where):
            row, flip = where
            ptx.stmatrix_x4(
                row + uint32(box) + (uint32(chunk) ^ flip),
                (
                    pair_of(v[0], v[1]),
                    pair_of(v[2], v[3]),
                    pair_of(v[4], v[5]),
                    pair_of(v[6], v[7]),
                ),
            )

        return store

    def store_floats(piece):
        """8 columns of rows g and g + 8, whose addresses ``where`` has, with 0 for a row that does
        not exist, and the columns left from the lane's on."""
        column = 8 * piece

        @lang.device
        def store(v, where):
            above, below, left = where
            if uint32(column) < left:
                if above != uint64(0):
                    ptx.st_global_v2_f32(above + uint64(4 * column), (v[0], v[1]))
                if below != uint64(0):
                    ptx.st_global_v2_f32(below + uint64(4 * column), (v[2], v[3]))

        return store

    put_halves = numbered_each(lang, D_TILE_N // 2, 8, store_halves)
    put_floats = numbered_each(lang, D_TILE_N // 2, 4, store_floats)

    @lang.device
    def row_of_scales(sfd, row, n):
        """Address of the first four scales of a row, in 128x4 order."""
        across = (n // BLOCK + 3) // 4
        return sfd + (
            uint64(row // 128 * across) * 512 + uint64(row % 32 * 16 + row % 128 // 32 * 4)
        )

    @lang.device
    def put_block(shared, values, outputs, numbers, place, lane):
        """place: (the warp's first row in the tile, its first row in D, its first column, rows of
        D, columns of D)"""
        inside, row, column, m, n = place
        g, t = lane // 4, lane % 4
        if HALVES:
            own = inside + lane % 8 + lane // 8 % 2 * 8
            put_halves(values, (shared + OUTPUT + own * 128, flip_of(lane)))
            ptx.fence_proxy_async_shared()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                for box in range((D_TILE_N + BOX_COLUMNS - 1) // BOX_COLUMNS):
                    ptx.cp_async_bulk_tensor_2d_s2g(
                        outputs[0],
                        int32(column + (box * BOX_COLUMNS)),
                        int32(row),
                        shared + (OUTPUT + box * BOX) + inside * 128,
                    )
                ptx.cp_async_bulk_commit_group()
        elif not FLOATS:
            row_bytes = uint64(n // CODES_A_BYTE)
            above = outputs[1] + (uint64(row + g) * row_bytes + uint64(column // CODES_A_BYTE))
            put_quantized(
                values,
                (
                    above if (row + g) < m else uint64(0),
                    above + row_bytes * 8 if (row + g + 8) < m else uint64(0),
                    row_of_scales(outputs[2], row + g, n),
                    row_of_scales(outputs[2], row + g + 8, n),
                    column // BLOCK,
                    (n - column) if column < n else 0,
                    numbers[2],
                    numbers[3],
                    t,
                ),
            )
        else:
            first = column + 2 * t
            left = (n - first) if first < n else 0
            above = outputs[1] + (uint64(row + g) * uint64(n) + uint64(first)) * 4
            below = above + uint64(n) * 32
            put_floats(
                values,
                (
                    above if (row + g) < m else uint64(0),
                    below if (row + g + 8) < m else uint64(0),
                    left,
                ),
            )

    # ---- a tile ----

    @lang.device
    def flip_of(lane):
        """What a lane's chunks of 16 bytes are xored with, in bytes: its row's share of the
        swizzle, and 16 for lanes of the right-hand matrices."""
        return ((lane % 8) << 4) ^ (lane // 16 << 4)

    def put_blocks_from(block):
        """-> device function that finishes and stores m64 block ``block`` of a warpgroup and those
        after it"""

        @lang.device
        def put(shared, sums, outputs, numbers, place, lane_place):
            warpgroup, warp, lane = lane_place
            tile_row, column, m, n = place
            inside = (warpgroup * WORDS + uint32(block)) * 64 + warp * 16
            own = inside + lane % 8 + lane // 8 % 2 * 8
            first = column + 2 * (lane % 4)
            left = (n - first) if first < n else 0
            values = finish(
                sums[block],
                (
                    numbers,
                    outputs[3] + uint64(first) * 4,
                    left,
                    shared + OUTPUT + own * 128,
                    flip_of(lane),
                ),
            )
            d_column, d_n = (column // 2, n // 2) if GATED else (column, n)
            put_block(
                shared,
                values,
                outputs,
                numbers,
                (inside, tile_row + inside, d_column, m, d_n),
                lane,
            )

        if block == WORDS - 1:
            return put
        rest = put_blocks_from(block + 1)

        @lang.device
        def put_more(shared, sums, outputs, numbers, place, lane_place):
            put(shared, sums, outputs, numbers, place, lane_place)
            rest(shared, sums, outputs, numbers, place, lane_place)

        return put_more

    put_blocks = put_blocks_from(0)

    @lang.device
    def free_output(place, shared, lane):
        """The warp's rows of the tile in shared memory may be written again: C's, when D's have
        been read."""
        if HALVES:
            if lane == 0:
                wait_for_store()
            ptx.bar_warp_sync(ALL_LANES)

    @lang.device
    def epilogue(shared, sums, outputs, tile, place, sizes, lane_place):
        row, column = corner(tile, sizes)
        lane = lane_place[2]
        first, second = (
            ptx.ld_global_v2_f32(outputs[4]),
            ptx.ld_global_v2_f32(outputs[4] + 8),
        )
        if SOURCED:
            wait_source(shared + SOURCE_BARRIERS, place)
        else:
            free_output(place, shared, lane)
        put_blocks(
            shared,
            sums,
            outputs,
            (first[0], first[1], second[0], second[1]),
            (row, column, sizes[0], sizes[1]),
            lane_place,
        )
        if SOURCED:
            free_output(place, shared, lane)
            if lane == 0:
                release_source(shared + SOURCE_BARRIERS, place)
            place = advance_source(place)
        return place

    @lang.device
    def drain(lane_place):
        """Shared memory must outlive the copies out of it."""
        if HALVES and lane_place[2] == 0:
            wait_for_store()

    return SimpleNamespace(epilogue=epilogue, drain=drain)

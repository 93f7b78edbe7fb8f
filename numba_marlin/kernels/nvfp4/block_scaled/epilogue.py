"""The epilogue role of the block-scaled kernel (``block_scaled``), run by the warps that hold the
accumulators: they finish them (``finish``: alpha, C, bias, activation, in fp32), convert them to
the type of D and store them.

- 16 bits: ``stmatrix`` puts a warp's 16 rows into the tile in shared memory, over C if there is
  one; lane 0 copies them out by tensor stores, 16 rows of a panel (64 columns) each, which clip
  what lies outside D. Without C they go on while the main loop of the next tile begins; with C they
  are waited for at once, since the next C comes to the same place.
  A C of another type than D's does not pass through shared memory: lanes load two columns of rows
  g and g + 8 at a time from global memory, where they need them (``finish``).
- float32: straight from registers, 8 bytes per lane, 32 contiguous in a row; lanes leave out rows
  from m and columns from n on.
- block-scaled: ``quantize``, which leaves out the same.

A warp reads and writes its own 16 rows of the tile of C and D only, all of an m64 block's C before
its D: no warp waits for another here.

Of a warp's 16 rows lane 4 g + t has accumulator 4 v + 2 h + e for row g + 8 h and column
8 v + 2 t + e (``finish``), which is also how ``stmatrix`` takes four 8 x 8 matrices. Where D is
gated, the same formula holds for its values and columns: of 16 columns of A @ B^T, v = 2 p and
2 p + 1, four values are left, 4 p + 2 h + e, in D's columns 8 p + 2 t + e. So what stores a D that
is not gated stores a gated one too, with half as many columns.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import numbered_each
from numba_marlin.kernels.nvfp4.block_scaled.config import PANEL_COLUMNS
from numba_marlin.kernels.nvfp4.block_scaled.finish import finish_verbs
from numba_marlin.kernels.nvfp4.block_scaled.quantize import quantize_verbs
from numba_marlin.kernels.nvfp4.result_codes import codes_per_byte, scale_columns, scales_at_verb


def epilogue_verbs(lang, config, source_ring):
    """-> namespace with ``epilogue(shared, sums, outputs, corner, place, sizes, thread) -> place
    in the ring of C`` and ``drain(thread)``; the records are those of ``kernel`` and ``schedule``.
    ``flip`` is what the byte offset of a 16-byte chunk in a row is xored with, the swizzle.
    source_ring: the pipeline of C's tiles; ``cfg.source_tiles``: whether there are such."""
    ptx, uint64, int32 = lang.ptx, lang.uint64, lang.int32
    cfg = lang.constants(config)
    halves, floats = config.kind == "halves", config.kind == "floats"
    finish = finish_verbs(lang, config)
    quantize = quantize_verbs(lang, config)
    pair_of = {"bfloat16": ptx.cvt_rn_bf16x2_f32}.get(config.result, ptx.cvt_rn_f16x2_f32)
    columns_of_scale, codes_in_byte = scale_columns(config.result), codes_per_byte(config.result)
    scales_at = scales_at_verb(lang, config.result)
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)

    # 16 rows of a tile of D, a warp's of an m64 block: the first of them in the tile (inside) and
    # in D (row), their first column in D; rows and columns of D
    WarpRows = lang.record("WarpRows", "inside row column m n")

    # where a lane puts 16-bit numbers: address of its row of the tile in shared memory; flip
    HalvesAt = lang.record("HalvesAt", "row flip")

    # where a lane puts floats: addresses of rows g and g + 8, 0 for one that D does not have; left:
    # how many columns D has from the lane's first on
    FloatsAt = lang.record("FloatsAt", "above below left")

    # a warp's 16 rows

    def store_halves(piece):
        """16 columns, four matrices of 8 x 8: upper left, lower left, upper right, lower right,
        whose rows lanes 0 .. 7, 8 .. 15, 16 .. 23, 24 .. 31 address."""
        # bytes: a panel has four pieces of two 16-byte chunks in a row
        panel, chunk = piece // 4 * config.panel_bytes, 32 * (piece % 4)

        @lang.device
        def store(v, where):
            ptx.stmatrix_x4(
                where.row + panel + (where.flip ^ chunk),
                (
                    pair_of(v[0], v[1]),
                    pair_of(v[2], v[3]),
                    pair_of(v[4], v[5]),
                    pair_of(v[6], v[7]),
                ),
            )

        return store

    def store_floats(piece):
        """8 columns of rows g and g + 8."""
        column = 8 * piece

        @lang.device
        def store(v, where):
            if where.left > column:
                if where.above != 0:
                    ptx.st_global_v2_f32(where.above + 4 * column, (v[0], v[1]))
                if where.below != 0:
                    ptx.st_global_v2_f32(where.below + 4 * column, (v[2], v[3]))

        return store

    put_halves = numbered_each(lang, config.d_tile_n // 2, 8, store_halves)
    put_floats = numbered_each(lang, config.d_tile_n // 2, 4, store_floats)

    @lang.device
    def flip_of(lane):
        """What offsets of a lane's 16-byte chunks are xored with: 16 times its row mod 8, the
        128-byte swizzle, and 16, the next chunk, for lanes of the right-hand matrices."""
        return (lane % 8 << 4) ^ (lane // 16 << 4)

    @lang.device
    def row_address(shared, inside, lane):
        """Address of the row that the lane names to ldmatrix and stmatrix, in the first panel of
        the tile in shared memory; inside: the warp's first row in the tile."""
        return shared + cfg.output_at + (inside + lane % 8 + lane // 8 % 2 * 8) * 128

    @lang.device
    def left_from(column, n):
        """How many of n columns are from ``column`` on; n - column would wrap around."""
        return n - column if column < n else 0

    @lang.device
    def put_warp_rows(shared, values, outputs, factors, rows, lane):
        """values: of ``finish``; rows: ``WarpRows``"""
        g, t = lane // 4, lane % 4
        above, below = rows.row + g, rows.row + g + 8
        if halves:
            put_halves(values, HalvesAt(row_address(shared, rows.inside, lane), flip_of(lane)))
            ptx.fence_proxy_async_shared()
            ptx.bar_warp_sync(ALL_LANES)
            if lane == 0:
                for panel in range(cfg.d_panels):
                    ptx.cp_async_bulk_tensor_2d_s2g(
                        outputs.d_map,
                        int32(rows.column + panel * PANEL_COLUMNS),
                        int32(rows.row),
                        shared + (cfg.output_at + panel * cfg.panel_bytes) + rows.inside * 128,
                    )
                ptx.cp_async_bulk_commit_group()
        elif not floats:
            pitch = uint64(rows.n // codes_in_byte)
            codes = outputs.d + (uint64(above) * pitch + rows.column // codes_in_byte)
            quantize.put_rows(
                values,
                quantize.RowsAt(
                    quantize.RowAt(
                        codes if above < rows.m else uint64(0),
                        scales_at(outputs.sfd, above, rows.n),
                    ),
                    quantize.RowAt(
                        codes + pitch * 8 if below < rows.m else uint64(0),
                        scales_at(outputs.sfd, below, rows.n),
                    ),
                    rows.column // columns_of_scale,
                    left_from(rows.column, rows.n),
                    factors,
                    t,
                ),
            )
        else:
            column = rows.column + 2 * t
            first = outputs.d + (uint64(above) * rows.n + column) * 4
            put_floats(
                values,
                FloatsAt(
                    first if above < rows.m else uint64(0),
                    # 8 rows of 4 bytes per number
                    first + uint64(rows.n) * 32 if below < rows.m else uint64(0),
                    left_from(column, rows.n),
                ),
            )

    # a tile

    def put_m64_blocks_from(m64):
        """-> device function that finishes and stores m64 block ``m64`` of a warpgroup and those
        after it"""

        @lang.device
        def put(shared, sums, outputs, factors, corner, sizes, thread):
            lane, column, n = thread.lane, corner.column, sizes.n
            inside = (thread.warpgroup * cfg.m64_blocks + m64) * 64 + thread.warp * 16
            first = column + 2 * (lane % 4)
            above, below = uint64(0), uint64(0)
            if cfg.source_bytes > 0:
                row = corner.row + inside + lane // 4
                pitch = uint64(n) * cfg.source_bytes
                place = outputs.c + (uint64(row) * pitch + uint64(first) * cfg.source_bytes)
                above = place if row < sizes.m else uint64(0)
                below = place + 8 * pitch if row + 8 < sizes.m else uint64(0)
            values = finish.finish(
                sums[m64],
                finish.FinishAt(
                    factors,
                    outputs.bias + uint64(first) * 4,
                    left_from(first, n),
                    row_address(shared, inside, lane),
                    flip_of(lane),
                    above,
                    below,
                ),
            )
            if cfg.gated:
                column, n = column // 2, n // 2
            rows = WarpRows(inside, corner.row + inside, column, sizes.m, n)
            put_warp_rows(shared, values, outputs, factors, rows, lane)

        if m64 == config.m64_blocks - 1:
            return put
        rest = put_m64_blocks_from(m64 + 1)

        @lang.device
        def put_more(shared, sums, outputs, factors, corner, sizes, thread):
            put(shared, sums, outputs, factors, corner, sizes, thread)
            rest(shared, sums, outputs, factors, corner, sizes, thread)

        return put_more

    put_m64_blocks = put_m64_blocks_from(0)

    @lang.device
    def free_output(lane):
        """Wait until the warp's tensor stores have read its rows of the tile in shared memory,
        which may then be written again; D itself may still be on its way."""
        if halves:
            if lane == 0:
                wait_for_store()
            ptx.bar_warp_sync(ALL_LANES)

    @lang.device
    def epilogue(shared, sums, outputs, corner, place, sizes, thread):
        barriers, lane = shared + cfg.source_barriers, thread.lane
        alpha, beta = ptx.ld_global_v2_f32(outputs.factors)
        inverse, sixth = ptx.ld_global_v2_f32(outputs.factors + 8)
        # Without C a tile's stores are waited for here, in the next epilogue, and had a main loop's
        # time. With C they were waited for below, before the place was given back to its loader.
        if cfg.source_tiles:
            source_ring.wait_full(barriers, place)
        else:
            free_output(lane)
        factors = finish.Factors(alpha, beta, inverse, sixth)
        put_m64_blocks(shared, sums, outputs, factors, corner, sizes, thread)
        if cfg.source_tiles:
            free_output(lane)
            if lane == 0:
                source_ring.release(barriers, place)
            place = source_ring.advance(place)
        return place

    @lang.device
    def drain(thread):
        """Shared memory must outlive the copies out of it."""
        if halves and thread.lane == 0:
            wait_for_store()

    return lang.namespace("write", epilogue=epilogue, drain=drain)

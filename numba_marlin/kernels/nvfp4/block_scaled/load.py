"""The roles of the block-scaled kernel (``block_scaled``) that copy tiles into shared memory, a
thread each.

*Main-loop load*: a packed stage is 128 of k: rows of A (64 bytes each), rows of B (the same, in the
64-byte swizzle), and the scales of both, which are 1024 bytes for every 128 rows in the order of
block-scaled tensor cores: four tensor copies. What lies outside a matrix arrives as zeros, scales
too.

*Epilogue load*: C's tile of 16-bit numbers, while the products of the tile are on their way. It
lands where D's tile will stand: every element of D is written over the element of C that it was
made of. Boxes of 64 columns, rows of 128 bytes in the 128-byte swizzle.
"""

from types import SimpleNamespace

from numba_marlin.kernels.nvfp4.block_scaled.config import ROW_BYTES, SCALE_BYTES, SCALE_ROWS
from numba_marlin.kernels.nvfp4.block_scaled.schedule import NO_TILE

BOX_COLUMNS = 64  # of C and D: a row of the 128-byte swizzle


def load_verbs(lang, config, schedule, packed, source):
    """packed, source: pipelines of packed stages and of C. -> namespace of device functions"""
    ptx, uint32, int32 = lang.ptx, lang.uint32, lang.int32
    counts, corner, fetch_alone, start = (
        schedule.counts,
        schedule.corner,
        schedule.fetch_alone,
        schedule.start,
    )
    STAGE, B_SHARED, SFA_SHARED, SFB_SHARED = (
        config.stage_bytes,
        config.b_shared,
        config.sfa_shared,
        config.sfb_shared,
    )
    BARRIERS, SOURCE_BARRIERS, OUTPUT, BOX, BOXES, OUTPUT_BYTES = (
        config.barriers_shared,
        config.source_barriers,
        config.output_shared,
        config.tile_m * 2 * BOX_COLUMNS,
        config.tile_n // BOX_COLUMNS,
        config.output_bytes,
    )
    producer_start, wait_empty, expect, full, advance = (
        packed.producer_start,
        packed.wait_empty,
        packed.expect,
        packed.full,
        packed.advance,
    )
    wait_source_empty, expect_source, source_full, advance_source = (
        source.wait_empty,
        source.expect,
        source.full,
        source.advance,
    )

    @lang.device
    def load_operands(shared, maps, sizes):
        a_map, b_map, sfa_map, sfb_map = maps
        steps = counts(sizes)[2]
        place = producer_start()
        tile, next_tile = fetch_alone(shared, start())
        while tile != NO_TILE:
            row, column = corner(tile, sizes)
            step = 0
            while step < steps:
                wait_empty(shared + BARRIERS, place)
                expect(shared + BARRIERS, place, STAGE)
                target, barrier = (
                    shared + place[0] * STAGE,
                    full(shared + BARRIERS, place),
                )
                x, scale_x = int32(step * ROW_BYTES), int32(step * (SCALE_BYTES // 8))
                ptx.cp_async_bulk_tensor_2d_g2s(target, a_map, x, int32(row), barrier)
                ptx.cp_async_bulk_tensor_2d_g2s(target + B_SHARED, b_map, x, int32(column), barrier)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    target + SFA_SHARED,
                    sfa_map,
                    scale_x,
                    int32(row // SCALE_ROWS),
                    barrier,
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    target + SFB_SHARED,
                    sfb_map,
                    scale_x,
                    int32(column // SCALE_ROWS),
                    barrier,
                )
                place = advance(place)
                step = step + 1
            tile, next_tile = fetch_alone(shared, next_tile)

    @lang.device
    def load_source(shared, c_map, sizes):
        place = producer_start()
        tile, next_tile = fetch_alone(shared, start())
        while tile != NO_TILE:
            row, column = corner(tile, sizes)
            wait_source_empty(shared + SOURCE_BARRIERS, place)
            expect_source(shared + SOURCE_BARRIERS, place, OUTPUT_BYTES)
            barrier = source_full(shared + SOURCE_BARRIERS, place)
            for box in range(BOXES):
                ptx.cp_async_bulk_tensor_2d_g2s(
                    shared + (OUTPUT + box * BOX),
                    c_map,
                    int32(column + (box * BOX_COLUMNS)),
                    int32(row),
                    barrier,
                )
            place = advance_source(place)
            tile, next_tile = fetch_alone(shared, next_tile)

    return SimpleNamespace(load_operands=load_operands, load_source=load_source)

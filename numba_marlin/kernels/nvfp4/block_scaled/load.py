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

from numba_marlin.kernels.nvfp4.block_scaled.config import (
    BOX_COLUMNS,
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_ROWS,
)
from numba_marlin.kernels.nvfp4.block_scaled.schedule import NO_TILE


def load_verbs(lang, config, schedule, packed, source):
    """packed, source: pipelines of packed stages and of C. -> namespace of device functions"""
    ptx, int32 = lang.ptx, lang.int32
    cfg = lang.constants(config)

    @lang.device
    def load_operands(shared, maps, sizes):
        barriers, steps = shared + cfg.barriers_shared, schedule.counts(sizes).steps
        place = packed.producer_start()
        number, following = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            corner, step = schedule.corner(number, sizes), 0
            while step < steps:
                packed.wait_empty(barriers, place)
                packed.expect(barriers, place, cfg.stage_bytes)
                stage, full = shared + place.stage * cfg.stage_bytes, packed.full(barriers, place)
                x, scale_x = int32(step * ROW_BYTES), int32(step * (SCALE_BYTES // 8))
                ptx.cp_async_bulk_tensor_2d_g2s(stage, maps.a, x, int32(corner.row), full)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.b_shared, maps.b, x, int32(corner.column), full
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.sfa_shared,
                    maps.sfa,
                    scale_x,
                    int32(corner.row // SCALE_ROWS),
                    full,
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.sfb_shared,
                    maps.sfb,
                    scale_x,
                    int32(corner.column // SCALE_ROWS),
                    full,
                )
                place = packed.advance(place)
                step += 1
            number, following = schedule.fetch_alone(shared, following)

    @lang.device
    def load_source(shared, c_map, sizes):
        barriers, place = shared + cfg.source_barriers, source.producer_start()
        number, following = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            corner = schedule.corner(number, sizes)
            source.wait_empty(barriers, place)
            source.expect(barriers, place, cfg.output_bytes)
            full = source.full(barriers, place)
            for box in range(cfg.boxes):
                ptx.cp_async_bulk_tensor_2d_g2s(
                    shared + (cfg.output_shared + box * cfg.box_bytes),
                    c_map,
                    int32(corner.column + box * BOX_COLUMNS),
                    int32(corner.row),
                    full,
                )
            place = source.advance(place)
            number, following = schedule.fetch_alone(shared, following)

    return lang.namespace("load", load_operands=load_operands, load_source=load_source)

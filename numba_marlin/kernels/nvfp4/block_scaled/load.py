"""The roles of the block-scaled kernel (``block_scaled``) that copy tiles into shared memory, one
thread each.

*Main-loop load.* A packed stage is 128 of k, four tensor copies: rows of A (64 bytes each), rows of
B (the same, in the 64-byte swizzle), and the scales of both, 1024 bytes for every 128 rows. What
lies outside a matrix arrives as zeros, scales too, and counts among the bytes that arrive.

*The order of scales*, 128x4: tiles of 128 rows by 4 scale blocks (64 of k), 512 bytes each, those
of the same rows one after the other along k. So the scale of row r and scale block b = 0 .. 7 of
a packed step is, within the 1024 bytes of its 128 rows (r counts from their first), at byte

    512 (b div 4) + 16 (r mod 32) + 4 (r div 32) + b mod 4

*Epilogue load.* It fetches C's tile of 16-bit numbers while the main loop multiplies the tile. C
lands where D's tile will stand: every element of D is written over the element of C that it was
made of, by the warp that has read it (``epilogue``). A copy brings a panel: 64 columns of the tile,
rows of 128 bytes in the 128-byte swizzle.
"""

from numba_marlin.kernels.nvfp4.block_scaled.config import (
    PANEL_COLUMNS,
    ROW_BYTES,
    SCALE_MAP_WIDTH,
    SCALE_ROWS,
)
from numba_marlin.kernels.nvfp4.block_scaled.schedule import NO_TILE


def load_verbs(lang, config, schedule, packed, source_ring):
    """packed, source_ring: pipelines of packed stages and of C. -> namespace of device functions.

    Operands of a tensor copy: destination; map; x and y of the box's corner, as the instruction
    takes them (x, the contiguous one, first; a ``TensorMap`` says shapes the other way round);
    barrier. Codes: x counts bytes, y rows. Scales: x counts 8 bytes, y 128 rows. C: x counts
    columns, y rows.

    State: place: in the ring that is filled; tile_place: in the ring of tile numbers; number: the
    tile; step: packed steps of the tile that have been issued."""
    ptx, int32 = lang.ptx, lang.int32
    cfg = lang.constants(config)

    @lang.device
    def load_operands(shared, maps, sizes):
        barriers, steps = shared + cfg.packed_barriers, schedule.counts(sizes).steps
        place = packed.producer_start()
        number, tile_place = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            corner, step = schedule.corner(number, sizes), 0
            while step < steps:
                packed.wait_empty(barriers, place)
                packed.expect(barriers, place, cfg.stage_bytes)
                stage, full = shared + place.stage * cfg.stage_bytes, packed.full(barriers, place)
                x, scale_x = int32(step * ROW_BYTES), int32(step * SCALE_MAP_WIDTH)
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
            number, tile_place = schedule.fetch_alone(shared, tile_place)

    @lang.device
    def load_source(shared, c_map, sizes):
        barriers, place = shared + cfg.source_barriers, source_ring.producer_start()
        number, tile_place = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            corner = schedule.corner(number, sizes)
            source_ring.wait_empty(barriers, place)
            source_ring.expect(barriers, place, cfg.output_bytes)
            full = source_ring.full(barriers, place)
            for panel in range(cfg.panels):
                ptx.cp_async_bulk_tensor_2d_g2s(
                    shared + (cfg.output_at + panel * cfg.panel_bytes),
                    c_map,
                    int32(corner.column + panel * PANEL_COLUMNS),
                    int32(corner.row),
                    full,
                )
            place = source_ring.advance(place)
            number, tile_place = schedule.fetch_alone(shared, tile_place)

    return lang.namespace("load", load_operands=load_operands, load_source=load_source)

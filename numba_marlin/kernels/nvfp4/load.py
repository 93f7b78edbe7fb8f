"""The main-loop load of the kernels of two block-scaled operands: one thread, which copies A, B and
the scales of both into a ring of stages, four tensor copies a stage.

What lies outside a matrix arrives as zeros, scales too, and counts among the bytes that arrive.

*The order of scales*, 128x4: tiles of 128 rows by 4 scale blocks, 512 bytes each, those of the same
rows one after the other along k. So the scale of row r and scale block b is, within the tiles of
its 128 rows (r counts from their first), at byte

    512 (b div 4) + 16 (r mod 32) + 4 (r div 32) + b mod 4

Operands of a tensor copy: destination; map; x and y of the box's corner, as the instruction takes
them (x, the contiguous one, first; a ``TensorMap`` says shapes the other way round); barrier.
Codes: x counts bytes, y rows. Scales: x counts 8 bytes, so 64 to a tile, y 128 rows.

What a configuration has for it: stage_bytes, from one stage to the next, and copied_bytes of them
that are filled; b_shared, sfa_shared, sfb_shared, where in a stage the parts behind A begin;
row_bytes, of a row of A or B in a stage; scale_tiles, of 128 rows in a stage, along k.
"""

from numba_marlin.kernels.nvfp4.schedule import NO_TILE
from numba_marlin.layout.block_scales import TILE_MAP_WIDTH, TILE_ROWS


def load_operands_verb(lang, config, schedule, ring, barriers_at):
    """schedule: ``schedule_verbs``; ring: the pipeline of stages, whose barriers begin at
    ``barriers_at`` in shared memory. -> device function (shared, maps, sizes) -> place in the ring
    behind the last stage.

    State: place: in the ring that is filled; tile_place: in the ring of tile numbers; number: the
    tile; step: steps of the tile that have been issued."""
    ptx, int32 = lang.ptx, lang.int32
    cfg = lang.constants(config)

    @lang.device
    def load_operands(shared, maps, sizes):
        barriers, steps = shared + barriers_at, schedule.counts(sizes).steps
        place = ring.producer_start()
        number, tile_place = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            corner, step = schedule.corner(number, sizes), 0
            while step < steps:
                ring.wait_empty(barriers, place)
                ring.expect(barriers, place, cfg.copied_bytes)
                stage, full = shared + place.stage * cfg.stage_bytes, ring.full(barriers, place)
                x, scale_x = (
                    int32(step * cfg.row_bytes),
                    int32(step * (cfg.scale_tiles * TILE_MAP_WIDTH)),
                )
                ptx.cp_async_bulk_tensor_2d_g2s(stage, maps.a, x, int32(corner.row), full)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.b_shared, maps.b, x, int32(corner.column), full
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.sfa_shared, maps.sfa, scale_x, int32(corner.row // TILE_ROWS), full
                )
                ptx.cp_async_bulk_tensor_2d_g2s(
                    stage + cfg.sfb_shared,
                    maps.sfb,
                    scale_x,
                    int32(corner.column // TILE_ROWS),
                    full,
                )
                place = ring.advance(place)
                step += 1
            number, tile_place = schedule.fetch_alone(shared, tile_place)
        return place

    return load_operands

"""The roles of the block-scaled kernel (``block_scaled``) that copy tiles into shared memory, one
thread each.

*Main-loop load.* A packed stage is 128 of k, four tensor copies: rows of A (64 bytes each), rows of
B (the same, in the 64-byte swizzle), and the scales of both, 1024 bytes for every 128 rows, in the
order that ``nvfp4.load`` says, which has this role for all kernels of two such operands.

*Epilogue load.* It fetches C's tile of 16-bit numbers while the main loop multiplies the tile. C
lands where D's tile will stand: every element of D is written over the element of C that it was
made of, by the warp that has read it (``epilogue``). A copy brings a panel: 64 columns of the tile,
rows of 128 bytes in the 128-byte swizzle.
"""

from numba_marlin.kernels.nvfp4.block_scaled.config import PANEL_COLUMNS
from numba_marlin.kernels.nvfp4.load import load_operands_verb
from numba_marlin.kernels.nvfp4.schedule import NO_TILE


def load_verbs(lang, config, schedule, packed, source_ring):
    """packed, source_ring: pipelines of packed stages and of C. -> namespace of device functions.

    State: place: in the ring that is filled; tile_place: in the ring of tile numbers; number: the
    tile. Of C's copies x counts columns, y rows."""
    ptx, int32 = lang.ptx, lang.int32
    cfg = lang.constants(config)

    load_operands = load_operands_verb(lang, config, schedule, packed, config.packed_barriers)

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

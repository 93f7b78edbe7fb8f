"""The roles of the Blackwell kernel (``tcgen05``) that copy tiles into shared memory, one elected
thread each.

*Main-loop load*: ``nvfp4.load``, and a wait at the end.

*Epilogue load.* It fetches C while the main loop multiplies the tile: 32 columns a stage, the
tile's 128 rows of them, 64 bytes of 16-bit numbers or 128 of float32 in the swizzle of that width.
Outside of C zeros come, which are added and not stored.
"""

from numba_marlin.kernels.nvfp4.load import load_operands_verb
from numba_marlin.kernels.nvfp4.schedule import NO_TILE
from numba_marlin.kernels.nvfp4.tcgen05.config import PART


def load_verbs(lang, config, schedule, stage_ring, source_ring):
    """stage_ring, source_ring: pipelines of stages and of C. -> namespace of device functions.

    State of ``load_source``: place: in the ring of C; tile_place: in the ring of tile numbers;
    number: the tile."""
    ptx, int32 = lang.ptx, lang.int32
    cfg = lang.constants(config)
    load_operands = load_operands_verb(lang, config, schedule, stage_ring, config.load_barriers)
    parts = config.tile_n // PART

    @lang.device
    def load_tiles(shared, maps, sizes):
        place = load_operands(shared, maps, sizes)
        # Shared memory must outlive the commits that say its stages are empty: their arrivals come
        # whenever products are done. So wait once more for each stage, from the one that would be
        # filled next on; one that was never filled passes, as in the first lap.
        for _ in range(cfg.stages):
            stage_ring.wait_empty(shared + cfg.load_barriers, place)
            place = stage_ring.advance(place)

    @lang.device
    def load_source(shared, c_map, sizes):
        barriers, place = shared + cfg.source_barriers, source_ring.producer_start()
        number, tile_place = schedule.fetch_alone(shared, schedule.start())
        while number != NO_TILE:
            corner = schedule.corner(number, sizes)
            for part in range(parts):
                source_ring.wait_empty(barriers, place)
                source_ring.expect(barriers, place, cfg.source_stage_bytes)
                ptx.cp_async_bulk_tensor_2d_g2s(
                    shared + cfg.source_shared + place.stage * cfg.source_stage_bytes,
                    c_map,
                    int32(corner.column + part * PART),
                    int32(corner.row),
                    source_ring.full(barriers, place),
                )
                place = source_ring.advance(place)
            number, tile_place = schedule.fetch_alone(shared, tile_place)

    return lang.namespace("load", load_tiles=load_tiles, load_source=load_source)

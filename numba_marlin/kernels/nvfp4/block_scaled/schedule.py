"""Who multiplies which tile in the block-scaled kernel (``block_scaled``): whoever is ready takes
the next one.

A block's first tile is its own number; every further one comes from a counter in global memory, so
that a block that was slowed down takes fewer. One thread, the scheduler, asks for it while the tile
before is still multiplied, and hands it to all other roles through a ring of words in shared
memory. NO_TILE is the last word. Every block asks until it gets a number that is no tile: blocks
and tiles know how often that is in all, so the last one to ask leaves the counter at zero, as it
was found.

Tiles are numbered so that neighbours share rows and columns: ``tile_order``.
"""

from types import SimpleNamespace

from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.language.tile_order import NO_TILE, tile_order_verb
from numba_marlin.kernels.nvfp4.block_scaled.config import STEP_K, TILE_STAGES


def schedule_verbs(lang, config, listeners):
    """listeners: arrivals that give a tile's word back: warps and lone threads that fetch it. ->
    namespace of device functions."""
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    TILE_M, TILE_N, BARRIERS, TILES = (
        config.tile_m,
        config.tile_n,
        config.tile_barriers,
        config.tiles_shared,
    )
    ring = pipeline_verbs(lang, TILE_STAGES, producers=1, consumers=listeners)
    wait_empty, wait_full, full, release, advance = (
        ring.wait_empty,
        ring.wait_full,
        ring.full,
        ring.release,
        ring.advance,
    )
    producer_start = ring.producer_start
    corner_of = tile_order_verb(lang, config.group_m, config.tile_m, config.tile_n)

    @lang.device
    def counts(sizes):
        """(row tiles, column tiles, packed steps of k)"""
        m, n, k = sizes
        return (
            (m + (TILE_M - 1)) // TILE_M,
            (n + (TILE_N - 1)) // TILE_N,
            (k + (STEP_K - 1)) // STEP_K,
        )

    @lang.device
    def corner(tile, sizes):
        """-> (first row of A, first row of B) of a tile"""
        m_tiles, n_tiles, steps = counts(sizes)
        return corner_of(tile, m_tiles, n_tiles)

    @lang.device
    def hand_out_tiles(shared, counter, sizes):
        """The scheduler."""
        m_tiles, n_tiles, steps = counts(sizes)
        tiles, blocks = m_tiles * n_tiles, uint32(cuda.gridDim.x)
        place = producer_start()
        tile = uint32(cuda.blockIdx.x)
        while tile != NO_TILE:
            wait_empty(shared + BARRIERS, place)
            ptx.st_shared_b32(shared + TILES + place[0] * 4, tile)
            ptx.mbarrier_arrive(full(shared + BARRIERS, place))
            place = advance(place)
            asked = ptx.atom_add_acq_rel_gpu(counter, 1)
            # tiles - blocks found a tile, and every block was told once that there is none
            if (asked + 1) == tiles:
                ptx.st_release_gpu(counter, 0)
            tile = (asked + blocks) if (asked + blocks) < tiles else NO_TILE
        wait_empty(shared + BARRIERS, place)
        ptx.st_shared_b32(shared + TILES + place[0] * 4, NO_TILE)
        ptx.mbarrier_arrive(full(shared + BARRIERS, place))

    @lang.device
    def fetch_alone(shared, place):
        """For a role that is one thread -> (tile, place)"""
        wait_full(shared + BARRIERS, place)
        tile = ptx.ld_shared_b32(shared + TILES + place[0] * 4)
        release(shared + BARRIERS, place)
        return tile, advance(place)

    @lang.device
    def fetch_together(shared, place, lane):
        """For a whole warp, one lane of which reads the word and gives it back: no other has a read
        that could come late -> (tile, place)"""
        wait_full(shared + BARRIERS, place)
        tile = NO_TILE
        if lane == 0:
            tile = ptx.ld_shared_b32(shared + TILES + place[0] * 4)
            release(shared + BARRIERS, place)
        return ptx.shfl_sync_idx(tile, 0), advance(place)

    return SimpleNamespace(
        counts=counts,
        corner=corner,
        hand_out_tiles=hand_out_tiles,
        fetch_alone=fetch_alone,
        fetch_together=fetch_together,
        initialise=ring.initialise,
        start=ring.consumer_start,
    )

"""The persistent tile scheduler of the block-scaled kernel (``block_scaled``): the block that is
ready first takes the next tile.

A block's first tile is its own number (the grid has no more blocks than there are tiles,
``config.grid``). Every further one comes from a counter in global memory, so that a block that was
slowed down takes fewer. One thread, the scheduler, asks for the next number as soon as it has
published one, so that the answer comes while that tile is multiplied, and publishes it through a
ring of words in shared memory once all other roles have read the word before. NO_TILE is the last
word. Every block asks until it gets a number that is no tile: tiles - blocks requests find one,
``blocks`` requests find none, so requests = tiles in all, and the block that asks last leaves the
counter at zero, as it was found.

Tiles are numbered so that neighbours share rows and columns: ``tile_order``.
"""

from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.language.tile_order import NO_TILE, tile_order_verb
from numba_marlin.kernels.nvfp4.block_scaled.config import STEP_K, TILE_STAGES


def schedule_verbs(lang, config, listeners):
    """listeners: how many warps and lone threads fetch a tile's word; each arrives once it has.
    -> namespace of device functions. ``number``: of a tile; ``place``: in the ring of words."""
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, TILE_STAGES, producers=1, consumers=listeners)
    corner_of = tile_order_verb(lang, config.group_m, config.tile_m, config.tile_n)

    # of the whole product: row tiles, column tiles, packed steps along k of each
    Counts = lang.record("Counts", "m_tiles n_tiles steps")

    # of a tile, in elements: its first row of A and D; its first column of A @ B^T, which is its
    # first row of B and, unless it is gated, its first column of D
    Corner = lang.record("Corner", "row column")

    @lang.device
    def counts(sizes):
        return Counts(
            (sizes.m + (cfg.tile_m - 1)) // cfg.tile_m,
            (sizes.n + (cfg.tile_n - 1)) // cfg.tile_n,
            (sizes.k + (STEP_K - 1)) // STEP_K,
        )

    @lang.device
    def corner(number, sizes):
        all_tiles = counts(sizes)
        row, column = corner_of(number, all_tiles.m_tiles, all_tiles.n_tiles)
        return Corner(row, column)

    @lang.device
    def word_at(shared, place):
        return shared + cfg.tiles_shared + place.stage * 4

    @lang.device
    def hand_out_tiles(shared, counter, sizes):
        """The scheduler."""
        all_tiles, barriers = counts(sizes), shared + cfg.tile_barriers
        tiles, blocks = all_tiles.m_tiles * all_tiles.n_tiles, uint32(cuda.gridDim.x)
        place = ring.producer_start()
        number = uint32(cuda.blockIdx.x)
        while number != NO_TILE:
            ring.wait_empty(barriers, place)
            ptx.st_shared_b32(word_at(shared, place), number)
            ptx.mbarrier_arrive(ring.full(barriers, place))
            place = ring.advance(place)
            # Blocks exchange nothing but this number: weaker orders than acq_rel and release would
            # do. The end of the launch makes the zero visible to the next.
            asked = ptx.atom_add_acq_rel_gpu(counter, 1)
            # this was request ``tiles``, the last of all
            if asked + 1 == tiles:
                ptx.st_release_gpu(counter, 0)
            number = asked + blocks if asked + blocks < tiles else NO_TILE
        ring.wait_empty(barriers, place)
        ptx.st_shared_b32(word_at(shared, place), NO_TILE)
        ptx.mbarrier_arrive(ring.full(barriers, place))

    @lang.device
    def fetch_alone(shared, place):
        """For a role that is one thread -> (number, place)"""
        barriers = shared + cfg.tile_barriers
        ring.wait_full(barriers, place)
        number = ptx.ld_shared_b32(word_at(shared, place))
        ring.release(barriers, place)
        return number, ring.advance(place)

    @lang.device
    def fetch_together(shared, place, lane):
        """For a whole warp -> (number, place). All lanes poll, lane 0 reads the word. It gives the
        word back behind the shuffle, which no lane passes before all have seen the phase complete:
        with all words given back the scheduler may complete the next phase at once, and to a lane
        that still polled the parity of this one would then say "not complete". (Polling by lane 0
        alone would do as well, but the assembler then spills registers.)"""
        barriers = shared + cfg.tile_barriers
        ring.wait_full(barriers, place)
        number = NO_TILE
        if lane == 0:
            number = ptx.ld_shared_b32(word_at(shared, place))
        number = ptx.shfl_sync_idx(number, 0)
        if lane == 0:
            ring.release(barriers, place)
        return number, ring.advance(place)

    return lang.namespace(
        "schedule",
        counts=counts,
        corner=corner,
        hand_out_tiles=hand_out_tiles,
        fetch_alone=fetch_alone,
        fetch_together=fetch_together,
        initialise=ring.initialise,
        start=ring.consumer_start,
    )

"""The persistent tile scheduler of the kernels of two block-scaled operands: the thread block that
is ready first takes the next tile.

A thread block's first tile is its own number (the grid has no more thread blocks than there are
tiles, ``config.grid``). Every further one comes from a counter in global memory, so that a thread
block that was slowed down takes fewer. One thread, the scheduler, asks for the next number as soon
as it has published one, so that the answer comes while that tile is multiplied. It publishes the
number in shared memory, in a ring of ``tile_stages`` stages, once all other roles have read the
number that stood there. NO_TILE is the last.

*The counter ends at zero*, as it was found. Of T tiles, G thread blocks get one each without asking
and T - G by asking; then each of the G asks once more, in vain. So there are T requests in all, and
who makes the last one stores zero.

Tiles are numbered so that neighbours share rows and columns: ``tile_order``.

What a configuration has for it: tile_m, tile_n, group_m (``tile_order``); step_k, of k in a step of
the main loop; tile_stages; tile_barriers and tiles_at, where the ring's barriers and its numbers, 4
bytes each, begin in shared memory.
"""

from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.language.tile_order import NO_TILE, tile_order_verb


def schedule_verbs(lang, config, listeners):
    """listeners: how many warps and lone threads fetch every number; each arrives once it has.
    -> namespace of device functions. ``number``: a tile's; ``place``: in the ring of numbers."""
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.tile_stages, producers=1, consumers=listeners)
    corner_of = tile_order_verb(lang, config.group_m, config.tile_m, config.tile_n)

    # of the whole product: tiles of D along m and along n; and steps of a tile, k / step_k rounded
    # up
    Counts = lang.record("Counts", "m_tiles n_tiles steps")

    # of a tile, in elements. row: its first of A and D. column: its first of A @ B^T, which is its
    # first row of B (so those who load B use it as one) and, unless D is gated, its first column
    # of D.
    Corner = lang.record("Corner", "row column")

    @lang.device
    def counts(sizes):
        return Counts(
            (sizes.m + (cfg.tile_m - 1)) // cfg.tile_m,
            (sizes.n + (cfg.tile_n - 1)) // cfg.tile_n,
            (sizes.k + (cfg.step_k - 1)) // cfg.step_k,
        )

    @lang.device
    def corner(number, sizes):
        counted = counts(sizes)
        row, column = corner_of(number, counted.m_tiles, counted.n_tiles)
        return Corner(row, column)

    @lang.device
    def number_at(shared, place):
        return shared + cfg.tiles_at + place.stage * 4

    @lang.device
    def hand_out_tiles(shared, counter, sizes):
        """The scheduler. State: number: the tile to publish next; place: in the ring of tile
        numbers. (asked: the counter before this request, 0 for the first of all.)"""
        counted, barriers = counts(sizes), shared + cfg.tile_barriers
        tiles, blocks = counted.m_tiles * counted.n_tiles, uint32(cuda.gridDim.x)
        place = ring.producer_start()
        number = uint32(cuda.blockIdx.x)
        while number != NO_TILE:
            ring.wait_empty(barriers, place)
            ptx.st_shared_b32(number_at(shared, place), number)
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
        ptx.st_shared_b32(number_at(shared, place), NO_TILE)
        ptx.mbarrier_arrive(ring.full(barriers, place))

    @lang.device
    def fetch_alone(shared, place):
        """For a role that is one thread -> (number, place)"""
        barriers = shared + cfg.tile_barriers
        ring.wait_full(barriers, place)
        number = ptx.ld_shared_b32(number_at(shared, place))
        ring.release(barriers, place)
        return number, ring.advance(place)

    @lang.device
    def fetch_together(shared, place, lane):
        """For a whole warp -> (number, place). All lanes wait, lane 0 reads the number, and arrives
        on the empty barrier only behind the shuffle, which no lane passes before all have left
        their wait. If it arrived before, the scheduler might publish the next number, and so
        complete the full barrier's next phase, while another lane still polls: a barrier knows one
        completed phase, so that lane would be told "not complete" until the phase after that, which
        needs an arrival of its own warp, and hang. (Polling by lane 0 alone would do as well, but
        the assembler then spills registers.)"""
        barriers = shared + cfg.tile_barriers
        ring.wait_full(barriers, place)
        number = NO_TILE
        if lane == 0:
            number = ptx.ld_shared_b32(number_at(shared, place))
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

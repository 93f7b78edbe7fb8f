"""How consumers of ``wgmma`` that share a tile along k add up in shared memory: k groups of a
block, blocks of a cluster (DSMEM).

The exchange buffer of a block holds the fp32 accumulators of a tile, [warpgroups][strips][tile_m /
8 quads][128 threads] of 16 bytes. First the second k group puts its accumulators there and the
first adds them to its own. In a cluster every block then puts its accumulators there, and each
block adds up its share of all blocks', in the order of their ranks from 0 on, and writes it to C. A
share is ``pieces_per_block`` of the pieces that each warp has of the tile; a piece is two quads,
and they are numbered as they lie, strip after strip: block ``rank`` has number rank *
pieces_per_block and on. (``choose`` proposes no cluster, so all about one here is for
configurations by hand.)

Two mbarriers of every block of the cluster guard the buffer, each with an arrival of every warp of
every block's first k group: *ready*, all have put theirs; *free*, all have read what they need.
``items_done`` is the number of items that this block has done before, the same in all of a cluster:
that item's phase of ready and free has parity items_done % 2. Before it writes, a thread waits for
the phase of *free* of the item before, parity (items_done + 1) % 2, which at the first counts as
complete. Waits and arrivals of mbarriers order memory for the block only, so a fence for the
cluster stands beside them.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.hopper.columns import column_verbs
from numba_marlin.kernels.hopper.output import FIRST_BARRIER
from numba_marlin.kernels.hopper.schedule import schedule_verbs
from numba_marlin.kernels.hopper.shared import RESULT_PIECE_BYTES, WARPGROUP, WARPGROUP_QUAD_BYTES
from numba_marlin.kernels.language.pipeline import BARRIER_BYTES
from numba_marlin.kernels.language.tuples import for_each, map_each, together

# Named barriers of warpgroup 0 (of both k groups), and these + 1 of warpgroup 1. Behind those of
# ``output``, which has one for each of two warpgroups.
PUT_BARRIER = FIRST_BARRIER + 2
READ_BARRIER = PUT_BARRIER + 2


def exchange_verbs(lang, config):
    """-> namespace of device functions: open_exchange, add_k_groups, add_blocks, close_exchange."""
    cuda, ptx, uint64 = lang.cuda, lang.ptx, lang.uint64
    cfg = lang.constants(config)
    schedule, columns = schedule_verbs(lang, config), column_verbs(lang, config)
    finish_piece, pair_of = columns.finish_quads(8), columns.pair_of
    arrivals = 4 * config.warpgroups * config.cluster  # warps of the first k groups of all blocks
    zero_piece = ptx.zero_f32(width=8)

    @lang.device
    def put_quad(acc, address):
        ptx.st_shared_v4_f32(address, acc)

    @lang.device
    def add_quad(acc, address):
        other = ptx.ld_shared_v4_f32(address)
        return acc[0] + other[0], acc[1] + other[1], acc[2] + other[2], acc[3] + other[3]

    put_accumulators = for_each(lang, config.accumulators, 4, put_quad, WARPGROUP_QUAD_BYTES)
    add_accumulators = map_each(lang, config.accumulators, 4, add_quad, WARPGROUP_QUAD_BYTES)

    @lang.device
    def put_strip(acc, address):
        put_accumulators(acc[0], address)

    @lang.device
    def add_strip(acc, address):
        return (add_accumulators(acc[0], address),)

    put = for_each(lang, config.strips, 1, put_strip, config.partial_strip_bytes)
    add = map_each(lang, config.strips, 1, add_strip, config.partial_strip_bytes)

    @lang.device
    def own_accumulators(shared, thread):
        """Where a thread's accumulators begin in the exchange buffer, at the same offset in every
        block."""
        start = thread.warpgroup * cfg.partial_warpgroup_bytes + thread.number * 16
        return shared.base + cfg.exchange_at + start

    @lang.device
    def ready(shared):
        return shared.base + cfg.cluster_barriers_at

    @lang.device
    def free(shared):
        return shared.base + (cfg.cluster_barriers_at + BARRIER_BYTES)

    @lang.device
    def wait_for(barrier, parity):
        while not ptx.mbarrier_try_wait_parity(barrier, parity):
            pass
        ptx.fence_acq_rel_cluster()

    @lang.device
    def tell_all(barrier, thread):
        """This warp's arrival at the barrier of every block of the cluster."""
        ptx.bar_warp_sync(ALL_LANES)
        if thread.lane < cfg.cluster:
            ptx.fence_acq_rel_cluster()
            ptx.mbarrier_arrive_cluster(ptx.mapa_shared(barrier, thread.lane))

    @lang.device
    def open_exchange(shared):
        """Every thread of the block, after the ring's barriers were initialised: lets all of the
        block, and of the cluster, see all barriers."""
        if cfg.cluster > 1:
            if ptx.tid_x() == 0:
                ptx.mbarrier_init(ready(shared), arrivals)
                ptx.mbarrier_init(free(shared), arrivals)
                ptx.fence_mbarrier_init()
            ptx.cluster_arrive()
            ptx.cluster_wait()
        cuda.syncthreads()

    @lang.device
    def wait_for_buffer(shared, items_done):
        """Until all blocks have read what they need of the item before."""
        if cfg.cluster > 1:
            wait_for(free(shared), (items_done + 1) % 2)

    @lang.device
    def add_k_groups(acc, shared, items_done, first_stage, steps, thread):
        """The first k group gets the sums of both, of ``steps`` steps from stage ``first_stage`` of
        the ring on. Nothing is to be added if the only step was in an even stage, the first k
        group's own.

        The first barrier: the second k group has put its own. The second: the first has read them,
        and they may be overwritten. In a cluster both k groups always go through this, and the
        second waits for *free* before it puts, for both of them: the first puts in ``add_blocks``,
        which comes after the first barrier.

        Both k groups execute the same two ``bar.sync``, not one of each k group's own, since
        compute-sanitizer takes one barrier at two places in the code for two barriers. There are
        two numbers, since with one it takes a warp that is already at the next item's barrier for
        one that is still at this item's."""
        if cfg.k_groups == 2 and (cfg.cluster > 1 or steps > 1 or first_stage % 2 != 0):
            own = own_accumulators(shared, thread)
            if thread.k_group == 1:
                wait_for_buffer(shared, items_done)
                put(acc, own)
            ptx.bar_sync(thread.warpgroup + PUT_BARRIER, 2 * WARPGROUP)
            if thread.k_group == 0:
                acc = add(acc, own)
            ptx.bar_sync(thread.warpgroup + READ_BARRIER, 2 * WARPGROUP)
        return acc

    @lang.device
    def piece_of(address, rank):
        """A thread's eight accumulators of a piece, from the block of that rank."""
        remote = ptx.mapa_shared(address, rank)
        first = ptx.ld_shared_cluster_v4_f32(remote)
        return first + ptx.ld_shared_cluster_v4_f32(remote + WARPGROUP_QUAD_BYTES)

    @lang.device
    def add_one(left, right, where):
        return (left[0] + right[0],)

    add_eight = together(lang, 8, 1, add_one)

    @lang.device
    def sum_piece(address):
        piece = zero_piece()
        for rank in range(cfg.cluster):
            piece = add_eight(piece, piece_of(address, rank), 0)
        return piece

    @lang.device
    def add_blocks(acc, shared, items_done, result, item, plan, thread, sizes):
        """All blocks' sums of this block's share of the tile, to C."""
        if cfg.k_groups == 1:  # (with 2, the second k group has waited, in ``add_k_groups``)
            wait_for_buffer(shared, items_done)
        own = own_accumulators(shared, thread)
        put(acc, own)
        tell_all(ready(shared), thread)
        tile, lane = schedule.tile_of(item, plan), thread.lane
        warp = thread.warpgroup * 4 + thread.number // 32
        scratch = shared.base + cfg.result_at + warp * RESULT_PIECE_BYTES
        # of a lane's address for stmatrix, as in ``output.write_result``; 32 bytes a row
        scratch_row, scratch_half = lane // 16 * 8 + lane % 8, lane // 8 % 2
        wait_for(ready(shared), items_done % 2)
        for i in range(cfg.pieces_per_block):
            # the rank is ``schedule.rank_in_team`` too: clusters are blocks in a row
            number = ptx.cluster_ctarank() * cfg.pieces_per_block + i
            strip, sixteen_rows = number // cfg.pieces_per_strip, number % cfg.pieces_per_strip
            piece = sum_piece(own + number * (2 * WARPGROUP_QUAD_BYTES))
            column = tile.column_first + thread.panel * 64 + (thread.first_strip + strip) * 16
            if cfg.finishes_columns:
                factors = columns.factors_of(result, column, lane // 4, sizes.n)
                piece = finish_piece(piece, factors)
            ptx.bar_warp_sync(ALL_LANES)
            ptx.stmatrix_x4_trans(
                scratch + scratch_row * 32 + scratch_half * 16,
                (
                    pair_of(piece[0], piece[1]),
                    pair_of(piece[2], piece[3]),
                    pair_of(piece[4], piece[5]),
                    pair_of(piece[6], piece[7]),
                ),
            )
            ptx.bar_warp_sync(ALL_LANES)
            # two lanes store a row of the piece, 16 bytes each
            row = tile.row_first + sixteen_rows * 16 + lane // 2
            own_column = column + lane % 2 * 8
            if row < sizes.m and own_column < sizes.n:
                ptx.st_global_v4_b32(
                    result.c + (uint64(row) * sizes.n + own_column) * 2,
                    ptx.ld_shared_v4_b32(scratch + lane * 16),
                )
        tell_all(free(shared), thread)

    @lang.device
    def close_exchange(shared, items_done):
        """A block may end when all others have read its accumulators: its memory goes with it.
        items_done: all items, so this waits for the readers of the last."""
        if cfg.cluster > 1:
            wait_for_buffer(shared, items_done)

    return lang.namespace(
        "exchange",
        open_exchange=open_exchange,
        add_k_groups=add_k_groups,
        add_blocks=add_blocks,
        close_exchange=close_exchange,
    )

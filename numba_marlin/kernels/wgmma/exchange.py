"""How consumers of ``wgmma`` that share a tile along k add up in shared memory: rows of consumers
of a block, blocks of a cluster (DSMEM).

The exchange buffer of a block holds the fp32 accumulators of a tile, quad after quad, each quad's
16 bytes of all threads of a warpgroup side by side. First the second row of consumers puts its
accumulators there and the first row adds them to its own. In a cluster every block then puts its
accumulators there, and each block adds up its share of all blocks', in the order of their ranks,
and writes it to C: a share is some of the pieces of 16 rows of x by 16 columns that each warp has
of the tile. Two cluster barriers guard the buffer: *ready*, all blocks have put theirs; *free*, all
have read what they need.

``turn``: tiles before this one.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.pipeline import BARRIER_BYTES
from numba_marlin.kernels.language.tuples import for_each, map_each, together
from numba_marlin.kernels.wgmma.columns import column_verbs
from numba_marlin.kernels.wgmma.schedule import schedule_verbs
from numba_marlin.kernels.wgmma.shared import PIECE_BYTES, QUAD_BYTES, WARPGROUP

PUT_BARRIER, READ_BARRIER = 3, 5  # named barriers 3 to 6: the warpgroups of one column of consumers


def exchange_verbs(lang, config):
    """-> namespace of device functions: open_exchange, add_groups, add_blocks, close_exchange."""
    cuda, ptx, uint64 = lang.cuda, lang.ptx, lang.uint64
    cfg = lang.constants(config)
    schedule, columns = schedule_verbs(lang, config), column_verbs(lang, config)
    finish_piece, pair_of = columns.finish_quads(8), columns.pair_of
    arrivals = 4 * config.warpgroups * config.cluster  # warps of the first rows of all blocks
    zero_piece = ptx.zero_f32(width=8)

    @lang.device
    def put_quad(acc, address):
        ptx.st_shared_v4_f32(address, acc)

    @lang.device
    def add_quad(acc, address):
        other = ptx.ld_shared_v4_f32(address)
        return acc[0] + other[0], acc[1] + other[1], acc[2] + other[2], acc[3] + other[3]

    put_accumulators = for_each(lang, config.accumulators, 4, put_quad, QUAD_BYTES)
    add_accumulators = map_each(lang, config.accumulators, 4, add_quad, QUAD_BYTES)

    @lang.device
    def put_word(acc, address):
        put_accumulators(acc[0], address)

    @lang.device
    def add_word(acc, address):
        return (add_accumulators(acc[0], address),)

    put = for_each(lang, config.words, 1, put_word, config.partial_word_bytes)
    add = map_each(lang, config.words, 1, add_word, config.partial_word_bytes)

    @lang.device
    def own_accumulators(shared, thread):
        """Where a thread's begin in the exchange buffer, of any block."""
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
    def wait_for_buffer(shared, turn):
        if cfg.cluster > 1:
            wait_for(free(shared), (turn + 1) % 2)

    @lang.device
    def add_groups(acc, shared, turn, slot, steps, thread):
        """The first row of consumers gets the accumulators of both, of so many steps from that slot
        of the ring on; nothing is to be added where it had the only one. (Both come to the same
        barriers, and there are two: compute-sanitizer takes two places in the code for two
        barriers, and a warp that is early at the next tile's for one that has not left this
        one's.)"""
        if cfg.k_groups == 2 and (cfg.cluster > 1 or steps > 1 or slot % 2 != 0):
            own = own_accumulators(shared, thread)
            if thread.k_group == 1:
                wait_for_buffer(shared, turn)
                put(acc, own)
            ptx.bar_sync(thread.warpgroup + PUT_BARRIER, 2 * WARPGROUP)
            if thread.k_group == 0:
                acc = add(acc, own)
            ptx.bar_sync(thread.warpgroup + READ_BARRIER, 2 * WARPGROUP)
        return acc

    @lang.device
    def piece_of(address, rank):
        """The eight accumulators of a piece, from the block of that rank."""
        remote = ptx.mapa_shared(address, rank)
        first = ptx.ld_shared_cluster_v4_f32(remote)
        return first + ptx.ld_shared_cluster_v4_f32(remote + QUAD_BYTES)

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
    def add_blocks(acc, shared, turn, result, item, plan, thread, sizes):
        """This block's share of the tile, of all blocks of the cluster, to C."""
        if cfg.k_groups == 1:
            wait_for_buffer(shared, turn)
        own = own_accumulators(shared, thread)
        put(acc, own)
        tell_all(ready(shared), thread)
        tile, lane = schedule.tile_of(item, plan), thread.lane
        warp = thread.warpgroup * 4 + thread.number // 32
        scratch = shared.base + cfg.result_at + warp * PIECE_BYTES
        scratch_row, scratch_half = lane // 16 * 8 + lane % 8, lane // 8 % 2
        wait_for(ready(shared), turn % 2)
        for i in range(cfg.block_pieces):
            number = ptx.cluster_ctarank() * cfg.block_pieces + i
            word, rows = number // cfg.pieces_per_word, number % cfg.pieces_per_word
            piece = sum_piece(own + number * (2 * QUAD_BYTES))
            column = tile.column_first + thread.block * 64 + (thread.first_word + word) * 16
            if cfg.column_factors:
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
            row, column = tile.row_first + rows * 16 + lane // 2, column + lane % 2 * 8
            if row < sizes.m and column < sizes.n:
                ptx.st_global_v4_b32(
                    result.c + (uint64(row) * sizes.n + column) * 2,
                    ptx.ld_shared_v4_b32(scratch + lane * 16),
                )
        tell_all(free(shared), thread)

    @lang.device
    def close_exchange(shared, turn):
        """A block may go when all others have read its accumulators."""
        if cfg.cluster > 1:
            wait_for_buffer(shared, turn)

    return lang.namespace(
        "exchange",
        open_exchange=open_exchange,
        add_groups=add_groups,
        add_blocks=add_blocks,
        close_exchange=close_exchange,
    )

"""How consumers of the Hopper kernel (``wgmma``) that share a tile along k add up in shared memory:
rows of consumers of a block, blocks of a cluster.

The exchange buffer of a block holds the fp32 sums of a tile, quad after quad, each quad's 16 bytes
of all threads of a warpgroup side by side. First the second row of consumers puts its sums there
and the first row adds them to its own. In a cluster every block then puts its sums there, and each
block adds up its share of all blocks' sums, in the order of their ranks, and writes it to C: a
share is some of the pieces of 16 rows of x by 16 columns that each warp has of the tile. Two
cluster barriers guard the buffer: *ready*, all blocks have put theirs; *free*, all have read what
they need.

``turn``: tiles before this one; ``lane_place``, ``item``, ``work``: see ``wgmma_output``.
"""

from types import SimpleNamespace

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each
from numba_marlin.kernels.wgmma.columns import column_verbs
from numba_marlin.kernels.wgmma.config import PIECE_BYTES, WARPGROUP
from numba_marlin.kernels.wgmma.schedule import schedule_verbs

PUT_BARRIER, READ_BARRIER = 3, 5  # named barriers 3 to 6: the warpgroups of one column of consumers


def exchange_verbs(lang, config):
    """-> namespace of device functions: open_exchange, add_groups, add_blocks, close_exchange."""
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64 = lang.uint32, lang.uint64
    corner = schedule_verbs(lang, config).corner
    ACCUMULATORS, WORDS, WARPGROUPS, K_GROUPS, CLUSTER = (
        config.tile_m // 2,
        config.words,
        config.warpgroups,
        config.k_groups,
        config.cluster,
    )
    columns = column_verbs(lang, config)
    factors, pair_of, finish_piece = columns.factors, columns.pair_of, columns.finish_quads(8)
    COLUMN_FACTORS, PIECES, PIECES_PER_WORD = (
        config.column_factors,
        config.pieces,
        config.tile_m // 16,
    )
    EXCHANGE, READY, FREE, C_SHARED = (
        config.exchange_shared,
        config.cluster_barriers_shared,
        config.cluster_barriers_shared + 8,
        config.c_shared,
    )
    QUAD = WARPGROUP * 16
    WORD = ACCUMULATORS // 4 * QUAD
    zero_piece = ptx.zero_f32(width=8)

    @lang.device
    def add_quad(values, address):
        other = ptx.ld_shared_v4_f32(address)
        return (
            values[0] + other[0],
            values[1] + other[1],
            values[2] + other[2],
            values[3] + other[3],
        )

    put_word = for_each(
        lang,
        ACCUMULATORS,
        4,
        lang.device(lambda values, address: ptx.st_shared_v4_f32(address, values)),
        QUAD,
        uint32,
    )
    add_word = map_each(lang, ACCUMULATORS, 4, add_quad, QUAD, uint32)
    put = for_each(
        lang, WORDS, 1, lang.device(lambda one, address: put_word(one[0], address)), WORD, uint32
    )
    add = map_each(
        lang, WORDS, 1, lang.device(lambda one, address: (add_word(one[0], address),)), WORD, uint32
    )

    @lang.device
    def own_sums(shared, lane_place):
        return uint32(
            shared
            + uint32(EXCHANGE)
            + lane_place[0] * uint32(WORDS * WORD)
            + lane_place[1] * uint32(16)
        )

    @lang.device
    def wait_for(barrier, parity):
        while ptx.mbarrier_try_wait_parity(barrier, parity) == uint32(0):
            pass
        ptx.fence_acq_rel_cluster()

    @lang.device
    def tell_all(barrier, lane_place):
        """This warp's arrival at the barrier of every block of the cluster."""
        ptx.bar_warp_sync(uint32(ALL_LANES))
        if lane_place[4] < uint32(CLUSTER):
            ptx.fence_acq_rel_cluster()
            ptx.mbarrier_arrive_cluster(ptx.mapa_shared(barrier, lane_place[4]))

    @lang.device
    def open_exchange(shared):
        """Every thread of the block, after the ring's barriers were initialised: lets all of the
        block, and of the cluster, see all barriers."""
        if CLUSTER > 1:
            if ptx.tid_x() == uint32(0):
                ptx.mbarrier_init(shared + uint32(READY), uint32(4 * WARPGROUPS * CLUSTER))
                ptx.mbarrier_init(shared + uint32(FREE), uint32(4 * WARPGROUPS * CLUSTER))
                ptx.fence_mbarrier_init()
            ptx.cluster_arrive()
            ptx.cluster_wait()
        cuda.syncthreads()

    @lang.device
    def wait_for_buffer(shared, turn):
        if CLUSTER > 1:
            wait_for(shared + uint32(FREE), uint32(uint32(turn + uint32(1)) % uint32(2)))

    @lang.device
    def add_groups(sums, shared, turn, slot, steps, lane_place):
        """The first row of consumers gets the sums of both, of so many steps from that slot of the
        ring on; nothing is to be added where it had the only one. (Both come to the same barriers,
        and there are two: compute-sanitizer takes two places in the code for two barriers, and a
        warp that is early at the next tile's for one that has not left this one's.)"""
        if K_GROUPS == 2 and (CLUSTER > 1 or steps > uint32(1) or slot % uint32(2) != uint32(0)):
            own = own_sums(shared, lane_place)
            if lane_place[5] == uint32(1):
                wait_for_buffer(shared, turn)
                put(sums, own)
            ptx.bar_sync(lane_place[0] + uint32(PUT_BARRIER), uint32(2 * WARPGROUP))
            if lane_place[5] == uint32(0):
                sums = add(sums, own)
            ptx.bar_sync(lane_place[0] + uint32(READ_BARRIER), uint32(2 * WARPGROUP))
        return sums

    @lang.device
    def add_piece(address, rank):
        """The eight sums of a piece, from the block of that rank."""
        remote = ptx.mapa_shared(address, rank)
        return ptx.ld_shared_cluster_v4_f32(remote) + ptx.ld_shared_cluster_v4_f32(
            remote + uint32(QUAD)
        )

    @lang.device
    def sum_piece(address):
        s = zero_piece()
        for rank in range(CLUSTER):
            p = add_piece(address, uint32(rank))
            s = (
                s[0] + p[0],
                s[1] + p[1],
                s[2] + p[2],
                s[3] + p[3],
                s[4] + p[4],
                s[5] + p[5],
                s[6] + p[6],
                s[7] + p[7],
            )
        return s

    @lang.device
    def add_blocks(sums, shared, turn, c, scales, bias, item, work, lane_place, sizes):
        warpgroup, own, first_word, block, lane, k_group = lane_place
        m, n, k = sizes
        if K_GROUPS == 1:
            wait_for_buffer(shared, turn)
        put(sums, own_sums(shared, lane_place))
        tell_all(shared + uint32(READY), lane_place)
        tile_row, tile_column = corner(work, item[0])
        scratch = uint32(
            shared
            + uint32(C_SHARED)
            + (warpgroup * uint32(4) + own // uint32(32)) * uint32(PIECE_BYTES)
        )
        wait_for(shared + uint32(READY), uint32(turn % uint32(2)))
        for i in range(PIECES // CLUSTER):
            piece = uint32(ptx.cluster_ctarank() * uint32(PIECES // CLUSTER) + uint32(i))
            word, part = (
                uint32(piece // uint32(PIECES_PER_WORD)),
                uint32(piece % uint32(PIECES_PER_WORD)),
            )
            s = sum_piece(uint32(own_sums(shared, lane_place) + piece * uint32(2 * QUAD)))
            column = uint32(tile_column + block * uint32(64) + (first_word + word) * uint32(16))
            if COLUMN_FACTORS:
                s = finish_piece(s, factors(scales, bias, column, n, uint32(lane // uint32(4))))
            ptx.bar_warp_sync(uint32(ALL_LANES))
            ptx.stmatrix_x4_trans(
                scratch
                + (lane // uint32(16) * uint32(8) + lane % uint32(8)) * uint32(32)
                + lane // uint32(8) % uint32(2) * uint32(16),
                (
                    pair_of(s[0], s[1]),
                    pair_of(s[2], s[3]),
                    pair_of(s[4], s[5]),
                    pair_of(s[6], s[7]),
                ),
            )
            ptx.bar_warp_sync(uint32(ALL_LANES))
            row, column = (
                uint32(tile_row + part * uint32(16) + lane // uint32(2)),
                uint32(column + lane % uint32(2) * uint32(8)),
            )
            if row < m and column < n:
                ptx.st_global_v4_b32(
                    c + (uint64(row) * uint64(n) + uint64(column)) * uint64(2),
                    ptx.ld_shared_v4_b32(scratch + lane * uint32(16)),
                )
        tell_all(shared + uint32(FREE), lane_place)

    @lang.device
    def close_exchange(shared, turn):
        """A block may go when all others have read its sums."""
        if CLUSTER > 1:
            wait_for_buffer(shared, turn)

    return SimpleNamespace(
        open_exchange=open_exchange,
        add_groups=add_groups,
        add_blocks=add_blocks,
        close_exchange=close_exchange,
    )

"""How the sums of the Hopper kernel (``wgmma``) leave its registers: added up across blocks,
scaled, transposed, stored.

``sums``: a tuple with, for each word that a warp takes, the accumulators of one m64 block.
Accumulator 4 v + 2 h + e of lane 4 g + t is the product of column g + 8 h of the word's 16 and row
8 v + 2 t + e of x. ``lane_place``: (consumer warpgroup among those side by side, thread in it, its
first word, its 64-column block, lane, its row of consumers); ``item``, ``work``: see
``wgmma_schedule``. A warpgroup goes its own way: nowhere here does it wait for the other.
"""

from types import SimpleNamespace

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each
from numba_marlin.kernels.wgmma.columns import column_verbs
from numba_marlin.kernels.wgmma.config import WARPGROUP
from numba_marlin.kernels.wgmma.schedule import schedule_verbs

# the named barriers of one warpgroup each; 0 is syncthreads, 3 to 6 are those of wgmma_exchange
FIRST_BARRIER = 1


def output_verbs(lang, config):
    """-> namespace of device functions: combine, finish_columns, write_result, drain."""
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, int32 = lang.uint32, lang.uint64, lang.int32
    schedule = schedule_verbs(lang, config)
    corner, sharers, rank_in_team = schedule.corner, schedule.sharers, schedule.rank_in_team
    ACCUMULATORS, WORDS, CONSUMERS = config.tile_m // 2, config.words, config.warpgroups
    AT_ONCE = config.parts_at_once
    PARTIAL, COLUMN_FACTORS, SPLIT, PARTS = (
        config.partial_bytes,
        config.column_factors,
        config.split,
        config.parts,
    )
    columns = column_verbs(lang, config)
    factors, pair_of, finish = columns.factors, columns.pair_of, columns.finish_quads(ACCUMULATORS)
    QUAD = WARPGROUP * 16  # bytes of one accumulator quad of all threads of a warpgroup
    WORD = ACCUMULATORS // 4 * QUAD
    C_WARP, C_ROW = config.c_warp_bytes, 32 * config.words
    SWIZZLE = {1: 4, 2: 2, 4: 1}[config.words]  # rows that share a value to xor: those of 128 bytes
    zeros = ptx.zero_f32(width=ACCUMULATORS)
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)

    @lang.device
    def add_quad(values, address):
        other = ptx.ld_global_v4_f32(address)
        return (
            values[0] + other[0],
            values[1] + other[1],
            values[2] + other[2],
            values[3] + other[3],
        )

    @lang.device
    def store_sixteen_rows(values, address):
        ptx.stmatrix_x4_trans(
            address,
            (
                pair_of(values[0], values[1]),
                pair_of(values[2], values[3]),
                pair_of(values[4], values[5]),
                pair_of(values[6], values[7]),
            ),
        )

    put_word = for_each(
        lang,
        ACCUMULATORS,
        4,
        lang.device(lambda values, address: ptx.st_global_v4_f32(address, values)),
        QUAD,
        uint64,
    )
    add_word = map_each(lang, ACCUMULATORS, 4, add_quad, QUAD, uint64)
    store_word = for_each(lang, ACCUMULATORS, 8, store_sixteen_rows, 16 * C_ROW, uint32)

    @lang.device
    def put_one(one, address):
        put_word(one[0], address)

    @lang.device
    def zero_one(one, where):
        return (zeros(),)

    @lang.device
    def add_one(one, address):
        return (add_word(one[0], address),)

    @lang.device
    def store_one(one, place):
        """place: (start of the lane's row, chunk before the xor, what to xor it with)"""
        store_word(one[0], uint32(place[0] + uint32(place[1] ^ place[2]) * uint32(16)))

    put = for_each(lang, WORDS, 1, put_one, WORD, uint64)
    add = map_each(lang, WORDS, 1, add_one, WORD, uint64)
    clear = map_each(lang, WORDS, 1, zero_one)

    def finish_from(words):
        """-> device function (sums, first column of a word, ...): word after word, 16 columns on
        each time"""

        @lang.device
        def finish_one(sums, column, scales, bias, n, g):
            return (finish(sums[0], factors(scales, bias, column, n, g)),)

        if words == 1:
            return finish_one
        rest = finish_from(words - 1)

        @lang.device
        def finish_more(sums, column, scales, bias, n, g):
            return finish_one(sums[:1], column, scales, bias, n, g) + rest(
                sums[1:], uint32(column + uint32(16)), scales, bias, n, g
            )

        return finish_more

    finish_words = finish_from(WORDS)

    @lang.device
    def next_chunks(place):
        return place[0], uint32(place[1] + uint32(2)), place[2]

    def store_from(words):
        if words == 1:
            return store_one
        rest = store_from(words - 1)

        @lang.device
        def store(sums, place):
            store_one(sums[:1], place)
            rest(sums[1:], next_chunks(place))

        return store

    store_words = store_from(WORDS)

    @lang.device
    def last_of(lock, flags, warpgroup, own, others):
        """Whether this block is the last of those that share a tile, ``others`` of them having come
        before: how many they are together, or 0. The lock is zero again then."""
        ptx.bar_sync(warpgroup + uint32(FIRST_BARRIER), uint32(WARPGROUP))
        if own == uint32(0):
            came_last = ptx.atom_add_acq_rel_gpu(lock, uint32(1)) == others
            ptx.st_shared_b32(flags + warpgroup * 4, others + 1 if came_last else 0)
            if came_last:
                ptx.st_global_b32(lock, uint32(0))
        ptx.bar_sync(warpgroup + uint32(FIRST_BARRIER), uint32(WARPGROUP))
        return ptx.ld_shared_b32(flags + warpgroup * 4)

    @lang.device
    def combine_parts(sums, flags, partials, locks, item, work, lane_place):
        """Of a tile that a team shares: a place for each part of each tile."""
        tile, warpgroup, own = item[0], lane_place[0], lane_place[1]
        first_part = (
            partials
            + uint64(warpgroup) * uint64(WORDS * WORD)
            + uint64(own) * uint64(16)
            + uint64(tile) * uint64(PARTS * PARTIAL)
        )
        put(sums, first_part + uint64(rank_in_team()) * uint64(PARTIAL))
        lock = locks + uint64(tile * CONSUMERS + warpgroup) * 4
        parts = last_of(lock, flags, warpgroup, own, uint32(PARTS - 1))
        if parts == 0:
            return False, sums
        sums = clear(sums, uint32(0))
        if AT_ONCE:
            for part in range(PARTS):
                sums = add(sums, first_part + part * PARTIAL)
        else:
            # One part after the other, as many times as shared memory says. Of a number that the
            # assembler knows it makes straight code, and then has the loads of all parts in flight:
            # 128 accumulators and two parts made it spill 232 bytes (ptxas 13.0).
            while parts != 0:
                sums = add(sums, first_part)
                first_part += PARTIAL
                parts -= 1
        return True, sums

    @lang.device
    def combine_stripes(sums, flags, partials, locks, item, work, lane_place):
        """Of a tile that stripes cut: a block has a place for the end of one that others began, and
        one for the beginning of one."""
        tile, steps = item[0], item[2]
        if steps == work[0]:
            return True, sums
        warpgroup, own = lane_place[0], lane_place[1]
        block = uint32(cuda.blockIdx.x)
        first_block, last_block = sharers(work, tile)
        own_part = partials + uint64(warpgroup) * uint64(WORDS * WORD) + uint64(own) * uint64(16)
        put(
            sums,
            own_part
            + uint64(uint32(2) * block + (uint32(1) if block == first_block else uint32(0)))
            * uint64(PARTIAL),
        )
        lock = locks + uint64(
            (tile - work[3] * uint32(cuda.gridDim.x)) * uint32(CONSUMERS) + warpgroup
        ) * uint64(4)
        if last_of(lock, flags, warpgroup, own, uint32(last_block - first_block)) == 0:
            return False, sums
        address, others = (
            own_part + uint64(uint32(2) * first_block + uint32(1)) * uint64(PARTIAL),
            uint32(last_block - first_block),
        )
        sums = add(clear(sums, uint32(0)), address)
        address += uint64(PARTIAL)
        while others != uint32(0):
            sums = add(sums, address)
            address += uint64(2 * PARTIAL)
            others = uint32(others - uint32(1))
        return True, sums

    @lang.device
    def combine_nothing(sums, flags, partials, locks, item, work, lane_place):
        return True, sums

    # -> (whether this block has a tile's whole sums, sums). A part of a tile goes to the workspace;
    # the last block to come takes all parts of the tile out again and adds them in the order of the
    # blocks.
    combine = combine_parts if PARTS > 1 else combine_stripes if SPLIT else combine_nothing

    @lang.device
    def finish_columns(sums, scales, bias, item, work, lane_place, sizes):
        """Per-column scales and a bias, in fp32, before the cast."""
        if not COLUMN_FACTORS:
            return sums
        row, column = corner(work, item[0])
        first = uint32(column + lane_place[3] * uint32(64) + lane_place[2] * uint32(16))
        return finish_words(sums, first, scales, bias, sizes[1], uint32(lane_place[4] // uint32(4)))

    @lang.device
    def write_result(sums, c_shared, c_map, item, work, lane_place):
        """The warp's columns of the tile: transposed into its own part of shared memory, from there
        to C, clipped at the matrix's edges."""
        warpgroup, own, first_word, block, lane, k_group = lane_place
        row, column = corner(work, item[0])
        box = uint32(c_shared + (warpgroup * uint32(4) + own // uint32(32)) * uint32(C_WARP))
        if lane == uint32(0):
            wait_for_store()
        ptx.bar_warp_sync(uint32(ALL_LANES))
        own_row = uint32(lane // uint32(16) * uint32(8) + lane % uint32(8))
        place = (
            uint32(box + own_row * uint32(C_ROW)),
            uint32(lane // uint32(8) % uint32(2)),
            uint32(own_row // uint32(SWIZZLE) % uint32(2 * WORDS)),
        )
        store_words(sums, place)
        ptx.fence_proxy_async_shared()
        ptx.bar_warp_sync(uint32(ALL_LANES))
        if lane == uint32(0):
            ptx.cp_async_bulk_tensor_2d_s2g(
                c_map, int32(column + block * uint32(64) + first_word * uint32(16)), int32(row), box
            )
            ptx.cp_async_bulk_commit_group()

    @lang.device
    def drain(lane_place):
        """Shared memory must outlive the copies out of it."""
        if lane_place[4] == uint32(0):
            wait_for_store()

    return SimpleNamespace(
        combine=combine, finish_columns=finish_columns, write_result=write_result, drain=drain
    )

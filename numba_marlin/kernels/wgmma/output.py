"""The epilogue of ``wgmma``: accumulators are added up across blocks, scaled, transposed, stored.

The accumulators are a tuple with, for each word that a warp takes, those of one m64 block.
Accumulator 4 v + 2 h + e of lane 4 g + t is the product of column g + 8 h of the word's 16 and row
8 v + 2 t + e of x. A warpgroup goes its own way: nowhere here does it wait for the other.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.tuples import for_each, map_each
from numba_marlin.kernels.wgmma.columns import column_verbs
from numba_marlin.kernels.wgmma.schedule import schedule_verbs
from numba_marlin.kernels.wgmma.shared import QUAD_BYTES, WARPGROUP

# the named barriers of one warpgroup each; 0 is syncthreads, 3 to 6 are those of ``exchange``
FIRST_BARRIER = 1


def output_verbs(lang, config):
    """-> namespace of device functions: combine, finish_columns, write_result, drain."""
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64 = lang.uint32, lang.uint64
    cfg = lang.constants(config)
    schedule, columns = schedule_verbs(lang, config), column_verbs(lang, config)
    pair_of, finish = columns.pair_of, columns.finish_quads(config.accumulators)
    column_factors = config.column_factors
    zeros = ptx.zero_f32(width=config.accumulators)
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)

    # Where a lane's part of stmatrix writes in shared memory: its row's address, its chunk of 16
    # bytes in the row, and what that is swizzled with (xor)
    Target = lang.record("Target", "row chunk swizzle")

    # ---- quads, words, all words of a thread's accumulators ----

    @lang.device
    def put_quad(acc, address):
        ptx.st_global_v4_f32(address, acc)

    @lang.device
    def add_quad(acc, address):
        other = ptx.ld_global_v4_f32(address)
        return acc[0] + other[0], acc[1] + other[1], acc[2] + other[2], acc[3] + other[3]

    @lang.device
    def store_sixteen_rows(acc, address):
        ptx.stmatrix_x4_trans(
            address,
            (
                pair_of(acc[0], acc[1]),
                pair_of(acc[2], acc[3]),
                pair_of(acc[4], acc[5]),
                pair_of(acc[6], acc[7]),
            ),
        )

    put_accumulators = for_each(lang, config.accumulators, 4, put_quad, QUAD_BYTES)
    add_accumulators = map_each(lang, config.accumulators, 4, add_quad, QUAD_BYTES)
    store_accumulators = for_each(
        lang, config.accumulators, 8, store_sixteen_rows, 16 * config.result_row_bytes
    )

    @lang.device
    def put_word(acc, address):
        put_accumulators(acc[0], address)

    @lang.device
    def clear_word(acc, where):
        return (zeros(),)

    @lang.device
    def add_word(acc, address):
        return (add_accumulators(acc[0], address),)

    @lang.device
    def store_word(acc, target):
        store_accumulators(acc[0], target.row + (target.chunk ^ target.swizzle) * 16)

    put = for_each(lang, config.words, 1, put_word, config.partial_word_bytes)
    add = map_each(lang, config.words, 1, add_word, config.partial_word_bytes)
    clear = map_each(lang, config.words, 1, clear_word)

    def finish_from(words):
        """-> device function (accumulators, first column of a word, ...): word after word, 16
        columns on each time"""

        @lang.device
        def finish_one(acc, result, column, g, n):
            return (finish(acc[0], columns.factors_of(result, column, g, n)),)

        if words == 1:
            return finish_one
        rest = finish_from(words - 1)

        @lang.device
        def finish_more(acc, result, column, g, n):
            return finish_one(acc[:1], result, column, g, n) + rest(
                acc[1:], result, column + 16, g, n
            )

        return finish_more

    finish_words = finish_from(config.words)

    def store_from(words):
        if words == 1:
            return store_word
        rest = store_from(words - 1)

        @lang.device
        def store(acc, target):
            store_word(acc[:1], target)
            rest(acc[1:], Target(target.row, target.chunk + 2, target.swizzle))

        return store

    store_words = store_from(config.words)

    # ---- blocks that share a tile ----

    @lang.device
    def own_partial(result, thread):
        """Where a thread's accumulators begin in the workspace's first tile."""
        return (
            result.partials
            + uint64(thread.warpgroup) * cfg.partial_warpgroup_bytes
            + uint64(thread.number) * 16
        )

    @lang.device
    def count_in(lock, others, shared, thread):
        """How many blocks share a tile, if this is the last of them, ``others`` having come before;
        else 0. The lock is zero again then."""
        flag = shared.base + cfg.flags_at + thread.warpgroup * 4
        ptx.bar_sync(thread.warpgroup + FIRST_BARRIER, WARPGROUP)
        if thread.number == 0:
            came_last = ptx.atom_add_acq_rel_gpu(lock, 1) == others
            ptx.st_shared_b32(flag, others + 1 if came_last else 0)
            if came_last:
                ptx.st_global_b32(lock, 0)
        ptx.bar_sync(thread.warpgroup + FIRST_BARRIER, WARPGROUP)
        return ptx.ld_shared_b32(flag)

    @lang.device
    def combine_parts(acc, shared, result, item, plan, thread):
        """Of a tile that a team shares: a place for each part of each tile."""
        partial = own_partial(result, thread) + uint64(item.tile) * (cfg.parts * cfg.partial_bytes)
        put(acc, partial + uint64(schedule.rank_in_team()) * cfg.partial_bytes)
        lock = result.locks + uint64(item.tile * cfg.warpgroups + thread.warpgroup) * 4
        parts = count_in(lock, cfg.parts - 1, shared, thread)
        if parts == 0:
            return False, acc
        if cfg.parts == 2:  # a + b is b + a: the other's to its own
            return True, add(acc, partial + uint64(1 - schedule.rank_in_team()) * cfg.partial_bytes)
        acc = clear(acc, 0)
        if cfg.parts_at_once:
            for part in range(cfg.parts):
                acc = add(acc, partial + part * cfg.partial_bytes)
        else:
            # One part after the other, as many times as shared memory says. Of a number that the
            # assembler knows it makes straight code, and then has the loads of all parts in flight:
            # 128 accumulators and two parts made it spill 232 bytes (ptxas 13.0 and 13.5).
            while parts != 0:
                acc = add(acc, partial)
                partial += cfg.partial_bytes
                parts -= 1
        return True, acc

    @lang.device
    def combine_stripes(acc, shared, result, item, plan, thread):
        """Of a tile that stripes cut: a block has a place for the end of one that others began, and
        one for the beginning of one."""
        if item.steps == plan.steps:
            return True, acc
        block = uint32(cuda.blockIdx.x)
        sharers = schedule.sharers_of(item, plan)
        own = own_partial(result, thread)
        place = 2 * block + (1 if block == sharers.top else 0)
        put(acc, own + uint64(place) * cfg.partial_bytes)
        shared_tile = schedule.shared_number(item, plan)
        lock = result.locks + uint64(shared_tile * cfg.warpgroups + thread.warpgroup) * 4
        others = sharers.bottom - sharers.top
        if count_in(lock, others, shared, thread) == 0:
            return False, acc
        partial = own + uint64(2 * sharers.top + 1) * cfg.partial_bytes
        acc = add(clear(acc, 0), partial)
        partial += cfg.partial_bytes
        while others != 0:
            acc = add(acc, partial)
            partial += 2 * cfg.partial_bytes
            others -= 1
        return True, acc

    @lang.device
    def combine_nothing(acc, shared, result, item, plan, thread):
        return True, acc

    # -> (whether this block has all of a tile, accumulators). A part of a tile goes to the
    # workspace; the last block to come takes all parts of the tile out again and adds them in the
    # order of the blocks.
    combine = (
        combine_parts if config.parts > 1 else combine_stripes if config.split else combine_nothing
    )

    # ---- to C ----

    @lang.device
    def finish_columns(acc, result, item, plan, thread, sizes):
        """Per-column scales and a bias, in fp32, before the cast."""
        if not column_factors:
            return acc
        tile = schedule.tile_of(item, plan)
        first = tile.column_first + thread.block * 64 + thread.first_word * 16
        return finish_words(acc, result, first, thread.lane // 4, sizes.n)

    @lang.device
    def write_result(acc, shared, result, item, plan, thread):
        """The warp's columns of the tile: transposed into its own part of shared memory, from there
        to C, clipped at the matrix's edges."""
        tile, lane = schedule.tile_of(item, plan), thread.lane
        warp = thread.warpgroup * 4 + thread.number // 32
        box = shared.base + cfg.result_at + warp * cfg.result_warp_bytes
        if lane == 0:
            wait_for_store()
        ptx.bar_warp_sync(ALL_LANES)
        row = lane // 16 * 8 + lane % 8
        swizzle = row // cfg.swizzle_rows % (2 * cfg.words)
        store_words(acc, Target(box + row * cfg.result_row_bytes, lane // 8 % 2, swizzle))
        ptx.fence_proxy_async_shared()
        ptx.bar_warp_sync(ALL_LANES)
        if lane == 0:
            column = tile.column_first + thread.block * 64 + thread.first_word * 16
            ptx.cp_async_bulk_tensor_2d_s2g(result.c_map, column, tile.row_first, box)
            ptx.cp_async_bulk_commit_group()

    @lang.device
    def drain(thread):
        """Shared memory must outlive the copies out of it."""
        if thread.lane == 0:
            wait_for_store()

    return lang.namespace(
        "output",
        combine=combine,
        finish_columns=finish_columns,
        write_result=write_result,
        drain=drain,
    )

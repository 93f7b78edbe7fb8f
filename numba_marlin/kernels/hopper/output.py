"""The epilogue of ``wgmma``: accumulators are added up across blocks, scaled, transposed, stored.

The accumulators are a tuple with an element per strip of the warp. Accumulator 4v + 2h + e of lane
4g + t is the result of row 8v + 2t + e and of column g + 8h of the strip's 16. ``pair_of(a, b)``
rounds two of them to 16 bits, e = 0 in the low half of a register, e = 1 in the high: two rows of a
column. That is what a lane passes to ``stmatrix.trans`` of an 8 x 8 matrix whose rows are rows of
C: eight accumulators are four matrices, a piece, 16 rows by 16 columns. A warpgroup goes its own
way: nowhere here does it wait for the other.

Blocks that share a tile. Each puts its accumulators into a slot of the workspace, which is
[slots][warpgroups][strips][tile_m / 8 quads][128 threads] of 16 bytes, and adds 1 to the lock of
that tile and warpgroup, with acquire and release semantics. Who finds that all others have been
there sets the lock to 0 again and adds all of them, from slot to slot in the order of the blocks,
which is that of k. The slots of a tile: with ``parts``, tile * parts + part. With stripes a block b
has two, 2b for the tile that others began, 2b + 1 for the one that it begins and does not end; a
tile that blocks first to last share has

    block   first        first + 1        first + 2      ...   last
    slot    2 first + 1  2 (first + 1)    2 (first + 2)        2 last
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.hopper.columns import column_verbs
from numba_marlin.kernels.hopper.schedule import schedule_verbs
from numba_marlin.kernels.hopper.shared import WARPGROUP, WARPGROUP_QUAD_BYTES
from numba_marlin.kernels.language.tuples import for_each, map_each

# Named barriers 1 and 2, of warpgroup 0 and 1; 0 is syncthreads, 3 to 6 are those of ``exchange``.
FIRST_BARRIER = 1


def output_verbs(lang, config, schedule=None, first_barrier=FIRST_BARRIER, integers=False):
    """-> namespace of device functions: combine, finish_columns, write_result, drain, and
    ``lay_down`` for those who store otherwise. schedule: other verbs than those of ``schedule``.
    first_barrier: the named barrier of warpgroup 0; the next is that of 1. integers: what
    ``combine`` adds up are int32."""
    cuda, ptx = lang.cuda, lang.ptx
    int32, uint32, uint64 = lang.int32, lang.uint32, lang.uint64
    cfg = lang.constants(config)
    schedule = schedule or schedule_verbs(lang, config)
    columns = column_verbs(lang, config)
    pair_of, finish = columns.pair_of, columns.finish_quads(config.accumulators)
    zeros = (ptx.zero_i32 if integers else ptx.zero_f32)(width=config.accumulators)
    wait_for_store = ptx.cp_async_bulk_wait_group_read(n=0)

    # Of the 16 bytes in shared memory whose address a lane gives stmatrix: the address of their row
    # of C, their chunk in that row, and what the chunk is swizzled with (xor)
    Target = lang.record("Target", "row chunk swizzle")

    # ---- quads, strips, all strips of a thread's accumulators ----

    if integers:

        @lang.device
        def put_quad(acc, address):
            ptx.st_global_v4_b32(
                address, (uint32(acc[0]), uint32(acc[1]), uint32(acc[2]), uint32(acc[3]))
            )

        @lang.device
        def add_quad(acc, address):
            other = ptx.ld_global_v4_b32(address)
            return (
                int32(acc[0] + int32(other[0])),
                int32(acc[1] + int32(other[1])),
                int32(acc[2] + int32(other[2])),
                int32(acc[3] + int32(other[3])),
            )
    else:

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

    put_accumulators = for_each(lang, config.accumulators, 4, put_quad, WARPGROUP_QUAD_BYTES)
    add_accumulators = map_each(lang, config.accumulators, 4, add_quad, WARPGROUP_QUAD_BYTES)
    store_accumulators = for_each(
        lang, config.accumulators, 8, store_sixteen_rows, 16 * config.result_row_bytes
    )

    @lang.device
    def put_strip(acc, address):
        put_accumulators(acc[0], address)

    @lang.device
    def clear_strip(acc, where):
        return (zeros(),)

    @lang.device
    def add_strip(acc, address):
        return (add_accumulators(acc[0], address),)

    @lang.device
    def store_strip(acc, target):
        store_accumulators(acc[0], target.row + (target.chunk ^ target.swizzle) * 16)

    put = for_each(lang, config.strips, 1, put_strip, config.partial_strip_bytes)
    add = map_each(lang, config.strips, 1, add_strip, config.partial_strip_bytes)
    clear = map_each(lang, config.strips, 1, clear_strip)

    def finish_from(strips):
        """-> device function (accumulators, result, first column of a strip, g, n): strip after
        strip, 16 columns on each time. (Not ``map_each``: its only argument that moves on is a
        single number, and others would have to come in a record with it. ``store_from``: the
        same.)"""

        @lang.device
        def finish_one(acc, result, column, g, n):
            return (finish(acc[0], columns.factors_of(result, column, g, n)),)

        if strips == 1:
            return finish_one
        rest = finish_from(strips - 1)

        @lang.device
        def finish_more(acc, result, column, g, n):
            return finish_one(acc[:1], result, column, g, n) + rest(
                acc[1:], result, column + 16, g, n
            )

        return finish_more

    finish_strips = finish_from(config.strips)

    def store_from(strips):
        """-> device function (accumulators, target): strip after strip, two chunks on each time,
        before they are swizzled"""
        if strips == 1:
            return store_strip
        rest = store_from(strips - 1)

        @lang.device
        def store(acc, target):
            store_strip(acc[:1], target)
            rest(acc[1:], Target(target.row, target.chunk + 2, target.swizzle))

        return store

    store_strips = store_from(config.strips)

    # ---- blocks that share a tile ----

    @lang.device
    def own_partial(result, thread):
        """Where a thread's accumulators begin in the workspace's slot 0."""
        return (
            result.partials
            + uint64(thread.warpgroup) * cfg.partial_warpgroup_bytes
            + uint64(thread.number) * 16
        )

    @lang.device
    def count_in(lock, others, shared, thread):
        """How many blocks share a tile, if this is the last of them to come, after all ``others``;
        else 0. The warpgroup's first barrier: all its threads have put theirs, which thread 0's
        atomic then publishes; its second: the answer is in shared memory, for all threads."""
        flag = shared.base + cfg.flags_at + thread.warpgroup * 4
        ptx.bar_sync(thread.warpgroup + first_barrier, WARPGROUP)
        if thread.number == 0:
            came_last = ptx.atom_add_acq_rel_gpu(lock, 1) == others
            ptx.st_shared_b32(flag, others + 1 if came_last else 0)
            if came_last:
                ptx.st_global_b32(lock, 0)
        ptx.bar_sync(thread.warpgroup + first_barrier, WARPGROUP)
        return ptx.ld_shared_b32(flag)

    @lang.device
    def combine_parts(acc, shared, result, item, plan, thread):
        """Of a tile that a team shares."""
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
            # One part after the other. The number of rounds is cfg.parts, but as ``count_in`` has
            # put it into shared memory: of one that ptxas knows it makes straight code, with the
            # loads of all parts in flight, which spilled 232 bytes with 128 accumulators and two
            # parts (ptxas 13.0 and 13.5).
            while parts != 0:
                acc = add(acc, partial)
                partial += cfg.partial_bytes
                parts -= 1
        return True, acc

    @lang.device
    def combine_stripes(acc, shared, result, item, plan, thread):
        """Of a tile that stripes cut, if they do cut this one."""
        if item.steps == plan.steps:
            return True, acc
        block = uint32(cuda.blockIdx.x)
        sharers = schedule.sharers_of(item, plan)
        own = own_partial(result, thread)
        slot = 2 * block + (1 if block == sharers.first else 0)
        put(acc, own + uint64(slot) * cfg.partial_bytes)
        shared_tile = schedule.shared_number(item, plan)
        lock = result.locks + uint64(shared_tile * cfg.warpgroups + thread.warpgroup) * 4
        others = sharers.last - sharers.first
        if count_in(lock, others, shared, thread) == 0:
            return False, acc
        partial = own + uint64(2 * sharers.first + 1) * cfg.partial_bytes
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

    # -> (whether this block has all of a tile now, accumulators)
    combine = (
        combine_parts if config.parts > 1 else combine_stripes if config.split else combine_nothing
    )

    # ---- to C ----

    @lang.device
    def finish_columns(acc, result, item, plan, thread, sizes):
        """Per-column scales or FP4's factors, and a bias, in fp32, before the cast."""
        if not cfg.finishes_columns:
            return acc
        tile = schedule.tile_of(item, plan)
        first = schedule.panel_column(tile, thread.panel) + thread.first_strip * 16
        return finish_strips(acc, result, first, thread.lane // 4, sizes.n)

    @lang.device
    def box_of(shared, thread):
        """Where a warp's columns of the tile of C are laid down in shared memory."""
        warp = thread.warpgroup * 4 + thread.number // 32
        return shared.base + cfg.result_at + warp * cfg.result_warp_bytes

    @lang.device
    def lay_down(acc, box, lane):
        """The warp's columns of the tile, transposed, rounded, and swizzled."""
        # Lane i has the address of row i % 8 of matrix i // 8: matrices 0 and 1 are rows 0 to 7,
        # chunks 0 and 1; 2 and 3 are rows 8 to 15. The next 16 rows have the same swizzle. (TMA
        # swizzles by address. It agrees, as boxes begin at multiples of its pattern: ``shared``.)
        row = lane // 16 * 8 + lane % 8
        swizzle = row // cfg.line_rows % (2 * cfg.strips)
        store_strips(acc, Target(box + row * cfg.result_row_bytes, lane // 8 % 2, swizzle))

    @lang.device
    def write_result(acc, shared, result, item, plan, thread):
        """The warp's columns of the tile: transposed into its own part of shared memory, from there
        to C, clipped at the matrix's edges. Before: lane 0, which issued the warp's last tensor
        store, waits until that has read the same memory, and tells the others."""
        tile, lane = schedule.tile_of(item, plan), thread.lane
        box = box_of(shared, thread)
        if lane == 0:
            wait_for_store()
        ptx.bar_warp_sync(ALL_LANES)
        lay_down(acc, box, lane)
        ptx.fence_proxy_async_shared()
        ptx.bar_warp_sync(ALL_LANES)
        if lane == 0:
            column = tile.column_first + thread.panel * 64 + thread.first_strip * 16
            # coordinates: the innermost dimension's first
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
        box_of=box_of,
        lay_down=lay_down,
        write_result=write_result,
        drain=drain,
    )

"""The epilogue of ``decode``: accumulators are shared out among warps, reduced across blocks,
scaled, and written out.

``output_verbs(lang, config)`` -> namespace of device functions. ``acc``: the accumulators of a
warp, 4 of each n8 block n8 (8 rows of C) of each of its four 16-column blocks j, at 4 *
(n8_blocks * j + n8): those of (column, row of C) = (16j + g, 8 n8 + 2t), (16j + g, 8 n8 + 2t + 1)
and the same at column + 8, for lane 4g + t. Such four are a *vector*. ``half``, 0 or 1: which 8 of
the 16 columns. ``thread``: Thread(warp_n, warp_k, lane, warp).

**Within a block** (``share_out``): warps of the same columns have different parts of k. The first
``owners`` of them, min(4, warps_k), own ``own_column_blocks`` 16-column blocks each: warp_k = 0 the
first ones, and so on. Every warp writes what others own to shared memory; each owner then adds up
the accumulators of all warps, its own in their place, in the order of warp_k: a column has the same
bits wherever in a tile it stands, so that a part of a weight's columns gives those of the whole. It
keeps the result in ``own``, in the order of ``acc``. Warps that own nothing are done. From here on
everything happens warp by warp: no barrier of the block, no warp waits for another.

**Between blocks** (stream-K's fix-up), for each owner warp apart: each block that shares a tile
leaves its partial result in the workspace, then counts itself in at a lock of the tile and owner,
an atomic counter. The last one to come, which may be another block for another owner, starts from 0
and adds all of them up, from the top block (smallest k) to the bottom one, whichever it is itself.
So the order does not depend on who comes last, and the same input on the same grid gives the same
bits. Nobody waits.

**To C.** In fp32, ``own`` is multiplied by factors of columns (per-column scales, or FP4's), and
the bias is added. A lane's accumulators 2 half and 2 half + 1 are two neighbouring rows, 2t and 2t
+ 1, of one column. One conversion puts them in a register, the first in its low half, and two
stores of 2 bytes write them: the 8 lanes of equal t write 8 neighbouring columns, 16 bytes. Results
are neither staged nor shuffled, and stores are no vectors: at small batches C is a small part of
the bytes.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.decode.shared import WARP_VECTOR_BYTES

# vectors, of blocks' partial results, that a lane asks for at a time: 48 registers. If a
# single partial result has more (16, with warps_k = 1 and batch = 32), that one: 64 registers
LOADS_IN_FLIGHT = 12
FIRST_BARRIER = 1  # of the named ones, one for each warp_n; 0 is syncthreads


def output_verbs(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint16, uint64, float32 = lang.uint16, lang.uint64, lang.float32
    cfg = lang.constants(config)
    scale_of_low, bias_of_low = (
        {"float16": ptx.cvt_f32_f16_low, "bfloat16": ptx.cvt_f32_bf16_low}.get(dtype)
        for dtype in (config.scale_dtype, config.dtype)
    )
    # blocks' partial results that a lane has on their way at a time, and their floats
    partials_at_once = max(1, LOADS_IN_FLIGHT // config.vectors)
    held_floats = partials_at_once * config.own_floats
    both_halves = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]

    @lang.device
    def keep_all(acc, own, exchange, thread):
        """``share_out`` with warps_k = 1: a warp has its columns to itself."""
        for i in range(cfg.own_floats):
            own[i] = acc[i]

    def add_senders_from(sender):
        """-> device function (total, own, address of the first sender's, warp_k of the owner): adds
        to total what senders number ``sender`` and on have left, before it the owner's own if that
        is next in the order of warp_k. (A loop over senders would not be unrolled, and each load
        would wait for the sums before.)"""
        owner_may_be_next, last = sender < config.owners, sender == config.warps_k - 2
        owner_may_be_last = last and config.owners == config.warps_k

        @lang.device
        def one(total, own, first, warp_k):
            for v in range(cfg.vectors):
                d = ptx.ld_shared_v4_f32(first + (sender * cfg.own_bytes + WARP_VECTOR_BYTES * v))
                for r in range(4):
                    i = 4 * v + r
                    if sender == 0:
                        total[i] = own[i] + d[r] if warp_k == 0 else d[r]
                    elif owner_may_be_next:
                        with_own = total[i] + own[i]
                        total[i] = (with_own if warp_k == sender else total[i]) + d[r]
                    else:
                        total[i] += d[r]
                    if owner_may_be_last:
                        with_own = total[i] + own[i]
                        total[i] = with_own if warp_k == sender + 1 else total[i]

        if last:
            return one
        rest = add_senders_from(sender + 1)

        @lang.device
        def more(total, own, first, warp_k):
            one(total, own, first, warp_k)
            rest(total, own, first, warp_k)

        return more

    add_senders = add_senders_from(0) if config.warps_k > 1 else None

    @lang.device
    def share_out(acc, own, exchange, thread):
        """Of the warps of the same columns each owner gets its 16-column blocks of all the others,
        and adds up all, its own in their place. exchange: address in shared memory of
        [warp_n][owner][sender, without the owner][vector][lane]; a part of it belongs to one
        warp_n, and so does the barrier."""
        lane_address = (
            exchange
            + thread.warp_n * (cfg.owners * (cfg.warps_k - 1) * cfg.own_bytes)
            + thread.lane * 16
        )
        for owner in range(cfg.owners):
            if thread.warp_k != owner:
                sender = thread.warp_k - 1 if thread.warp_k > owner else thread.warp_k
                address = lane_address + (owner * (cfg.warps_k - 1) + sender) * cfg.own_bytes
                for v in range(cfg.vectors):
                    o = 4 * (owner * cfg.vectors + v)
                    ptx.st_shared_v4_f32(
                        address + WARP_VECTOR_BYTES * v,
                        (acc[o], acc[o + 1], acc[o + 2], acc[o + 3]),
                    )
            else:
                for i in range(cfg.own_floats):
                    own[i] = acc[owner * cfg.own_floats + i]
        ptx.bar_sync(thread.warp_n + FIRST_BARRIER, 32 * cfg.warps_k)
        if thread.warp_k < cfg.owners:
            total = cuda.local.array(cfg.own_floats, float32)
            first = lane_address + thread.warp_k * (cfg.warps_k - 1) * cfg.own_bytes
            add_senders(total, own, first, thread.warp_k)
            for i in range(cfg.own_floats):
                own[i] = total[i]
        # Before anybody sends the next tile's accumulators over these
        ptx.bar_sync(thread.warp_n + FIRST_BARRIER, 32 * cfg.warps_k)

    # ---- between blocks ----

    @lang.device
    def partial_address(partials, block, is_top, thread):
        """[block][is_top: 0 or 1][owner warp][vector][lane][4] floats. A block shares two tiles at
        most, and has a place for either: 1 if it is the tile's top block (has its first step, so
        shares it with later blocks only), otherwise 0. It is the top block of one shared tile at
        most, so locks, numbered by the top block, never serve two tiles of a launch. Only owners
        come here: warps 0 to warps_n * owners - 1."""
        number = block * 2 + (1 if is_top else 0)
        return (
            partials
            + uint64(number) * cfg.partial_bytes
            + (thread.warp * cfg.own_bytes + thread.lane * 16)
        )

    @lang.device
    def row_in_n8_block(thread):
        """The row of an n8 block that own[0] belongs to, 2t; that of own[1] is the next."""
        return thread.lane % 4 * 2

    @lang.device
    def leave_partial(own, partials, block, top, x_rows, thread):
        """Only lanes that hold rows of the matrix: at m = 1 one in four. x_rows: of the tile."""
        address = partial_address(partials, block, block == top, thread)
        for v in range(cfg.vectors):
            if row_in_n8_block(thread) + 8 * (v % cfg.n8_blocks) < x_rows:
                ptx.st_global_v4_f32(
                    address + WARP_VECTOR_BYTES * v,
                    (own[4 * v], own[4 * v + 1], own[4 * v + 2], own[4 * v + 3]),
                )

    @lang.device
    def count_in(locks, top, sharing_blocks, thread):
        """True for the last of the blocks that share a tile. Every warp counts for
        itself, [top block][warp]: the same warp of the other blocks left what it will read. The
        last one puts the lock back to zero, with a plain store: in this launch nobody looks at it
        again, and the next one waits for the end of this."""
        lock = locks + uint64(top * cfg.consumers + thread.warp) * 4
        # Orders all lanes' partial results before lane 0's atomic, whose release publishes them.
        ptx.bar_warp_sync(ALL_LANES)
        before = 0
        if thread.lane == 0:
            before = ptx.atom_add_acq_rel_gpu(lock, 1)
        before = ptx.shfl_sync_idx(before, 0)
        # Orders lane 0's acquire before all lanes' reads of what other blocks have left.
        ptx.bar_warp_sync(ALL_LANES)
        last = before + 1 == sharing_blocks
        if last and thread.lane == 0:
            ptx.st_global_b32(lock, 0)
        return last

    @lang.device
    def add_partials(own, partials, top, sharing_blocks, x_rows, thread):
        """All blocks' partial results, top to bottom, loaded ``partials_at_once`` at a time: one
        after the other each would cost a round trip to L2. done: how many are added up."""
        held = cuda.local.array(held_floats, float32)
        for i in range(cfg.own_floats):
            own[i] = float32(0)
        done = 0
        while done < sharing_blocks:
            for ahead in range(partials_at_once):
                block = top + min(done + ahead, sharing_blocks - 1)
                address = partial_address(partials, block, block == top, thread)
                for v in range(cfg.vectors):
                    o = ahead * cfg.own_floats + 4 * v
                    for r in range(4):
                        held[o + r] = float32(0)
                    if row_in_n8_block(thread) + 8 * (v % cfg.n8_blocks) < x_rows:
                        d = ptx.ld_global_v4_f32(address + WARP_VECTOR_BYTES * v)
                        for r in range(4):
                            held[o + r] = d[r]
            for ahead in range(partials_at_once):
                if done + ahead < sharing_blocks:
                    for i in range(cfg.own_floats):
                        own[i] += held[ahead * cfg.own_floats + i]
            done += partials_at_once

    # ---- to C ----

    @lang.device
    def lane_column(tile, thread):
        """The column of C that the lane's own[0] belongs to; the 16-column blocks of a warp follow
        each other."""
        return (
            tile.n_tile * cfg.columns
            + thread.warp_n * COLUMNS
            + thread.warp_k * (16 * cfg.own_column_blocks)
            + thread.lane // 4
        )

    @lang.device
    def scale_columns(own, scales, tile, thread, sizes):
        """Per-column scales. In every 32 columns Marlin puts 2i + {0, 1, 8, 9, 16, 17, 24, 25} side
        by side, i = 0 to 3: column n stands at 8 (n % 8 // 2) + 2 (n // 8) + n % 2. Those of this
        lane have n % 8 = g, so i = g // 2, and are one half of a word each, the low one if g is
        even."""
        own_column = lane_column(tile, thread)
        odd = thread.lane // 4 % 2
        i = thread.lane // 8
        for j in range(cfg.own_column_blocks):
            for half in range(2):
                column = own_column + (16 * j + 8 * half)
                if column < sizes.n_packed:
                    word = ptx.ld_global_b32(
                        scales + uint64(column // 32 * 16 + i * 4 + column % 32 // 8) * 4
                    )
                    scale = scale_of_low(word >> odd * 16)
                    for n8 in range(cfg.n8_blocks):
                        o = 4 * (cfg.n8_blocks * j + n8) + 2 * half
                        own[o] *= scale
                        own[o + 1] *= scale

    @lang.device
    def multiply_columns(own, factors, tile, thread, sizes):
        """Factors of columns (FP4), float32: those of columns g and g + 8 of 16 side by side, at 2g
        and 2g + 1."""
        own_column = lane_column(tile, thread)
        for j in range(cfg.own_column_blocks):
            column = own_column + 16 * j
            if column < sizes.n_packed:
                factor = ptx.ld_global_v2_f32(
                    factors + uint64(column // 16 * 16 + column % 16 * 2) * 4
                )
                for n8 in range(cfg.n8_blocks):
                    o = 4 * (cfg.n8_blocks * j + n8)
                    own[o] *= factor[0]
                    own[o + 1] *= factor[0]
                    own[o + 2] *= factor[1]
                    own[o + 3] *= factor[1]

    @lang.device
    def add_bias(own, bias, tile, thread, sizes):
        own_column = lane_column(tile, thread)
        for j in range(cfg.own_column_blocks):
            for half in range(2):
                column = own_column + (16 * j + 8 * half)
                if column < sizes.n:
                    addend = bias_of_low(ptx.ld_global_b16(bias + uint64(column) * 2))
                    for n8 in range(cfg.n8_blocks):
                        o = 4 * (cfg.n8_blocks * j + n8) + 2 * half
                        own[o] += addend
                        own[o + 1] += addend

    @lang.device
    def write_result(c, own, tile, thread, sizes):
        """Two neighbouring rows of C per register, half of it each. Columns from n on and rows
        from x_rows on are not stored."""
        own_column = lane_column(tile, thread)
        for v in range(cfg.vectors):
            row = row_in_n8_block(thread) + 8 * (v % cfg.n8_blocks)
            for half in range(2):
                column = own_column + (16 * (v // cfg.n8_blocks) + 8 * half)
                if column < sizes.n:
                    word = both_halves(own[4 * v + 2 * half], own[4 * v + 2 * half + 1])
                    address = c + (uint64(tile.row_first + row) * sizes.n + column) * 2
                    if row < tile.x_rows:
                        ptx.st_global_b16(address, uint16(word & 0xFFFF))
                    if row + 1 < tile.x_rows:
                        ptx.st_global_b16(address + uint64(sizes.n) * 2, uint16(word >> 16))

    return lang.namespace(
        "output",
        share_out=share_out if config.warps_k > 1 else keep_all,
        leave_partial=leave_partial,
        count_in=count_in,
        add_partials=add_partials,
        apply_column_factors=multiply_columns if config.block_scaled else scale_columns,
        add_bias=add_bias,
        write_result=write_result,
        lane_column=lane_column,
        row_in_n8_block=row_in_n8_block,
    )

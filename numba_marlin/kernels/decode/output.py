"""The epilogue of ``decode``: accumulators are shared out among warps, reduced across blocks,
scaled, and written out.

``output_verbs(lang, config)`` -> namespace of device functions. ``acc``: the accumulators of a
warp, 4 of each n8 block b (8 rows of C) of each of its four 16-column blocks j, at 4 *
(batch_blocks * j + b): those of (column, row of C) = (16j + g, 8b + 2t), (16j + g, 8b + 2t + 1) and
the same at column + 8, for lane 4g + t. ``half``, 0 or 1: which 8 of the 16 columns. ``thread``:
Thread(warp_n, warp_k, lane, warp). After ``share_out`` the warp holds the finished accumulators of
its ``own_blocks`` 16-column blocks in ``own``, in the same order, and everything else happens warp
by warp: no barrier of the block, no warp waits for another.

Between blocks (stream-K's fixup): each leaves its partial result in the workspace, then counts
itself in at the tile's counter, the lock. The last one to come adds all of them up, from the top
block to the bottom one whichever it is itself, so the same input gives the same bits; nobody ever
waits.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode.config import COLUMNS, VECTOR_BYTES

LOADS_IN_FLIGHT = 12  # vectors of other blocks' partial results that a lane asks for at a time
FIRST_BARRIER = 1  # of the named ones; 0 is syncthreads


def output_verbs(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint16, uint64, float32 = lang.uint16, lang.uint64, lang.float32
    cfg = lang.constants(config)
    scale_of_low, bias_of_low = (
        {"float16": ptx.cvt_f32_f16_low, "bfloat16": ptx.cvt_f32_bf16_low}.get(dtype)
        for dtype in (config.scale_dtype, config.dtype)
    )
    PARTS = max(1, LOADS_IN_FLIGHT // config.vectors)  # blocks that a lane asks at a time
    HELD = PARTS * config.own_floats
    pair_of = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]

    @lang.device
    def keep_all(acc, own, exchange, thread):
        """``share_out`` of a warp that has its columns to itself."""
        for i in range(cfg.own_floats):
            own[i] = acc[i]

    @lang.device
    def share_out(acc, own, exchange, thread):
        """Warps with the same columns and different k: each gets some column blocks of all the
        others, and adds its own to them. exchange: address in shared memory, [warp_n][owner][sender
        but the owner][vector][lane]."""
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
                        address + VECTOR_BYTES * v, (acc[o], acc[o + 1], acc[o + 2], acc[o + 3])
                    )
            else:
                for i in range(cfg.own_floats):
                    own[i] = acc[owner * cfg.own_floats + i]
        ptx.bar_sync(thread.warp_n + FIRST_BARRIER, 32 * cfg.warps_k)
        if thread.warp_k < cfg.owners:
            for sender in range(cfg.warps_k - 1):
                address = (
                    lane_address + (thread.warp_k * (cfg.warps_k - 1) + sender) * cfg.own_bytes
                )
                for v in range(cfg.vectors):
                    d = ptx.ld_shared_v4_f32(address + VECTOR_BYTES * v)
                    for r in range(4):
                        own[4 * v + r] += d[r]
        # nobody sends the next tile's accumulators over these
        ptx.bar_sync(thread.warp_n + FIRST_BARRIER, 32 * cfg.warps_k)

    # ---- between blocks ----

    @lang.device
    def partial_address(partials, block, is_top, thread):
        """Of the tiles that a block shares, it can be the top block only of the last, and a lower
        one only of the first: so it leaves two partial results at most, number 0 and 1 of its own.
        And a tile is named by its top block, which is how locks are numbered."""
        number = block * 2 + (1 if is_top else 0)
        return (
            partials
            + uint64(number) * cfg.partial_bytes
            + (thread.warp * cfg.own_bytes + thread.lane * 16)
        )

    @lang.device
    def first_row(thread):
        """Of a tile: the row of own[0], the next being that of own[1]."""
        return thread.lane % 4 * 2

    @lang.device
    def leave_partial(own, partials, block, top, rows, thread):
        """Only lanes that hold rows of the matrix: at m = 1 one in four."""
        address = partial_address(partials, block, block == top, thread)
        for v in range(cfg.vectors):
            if first_row(thread) + 8 * (v % cfg.batch_blocks) < rows:
                ptx.st_global_v4_f32(
                    address + VECTOR_BYTES * v,
                    (own[4 * v], own[4 * v + 1], own[4 * v + 2], own[4 * v + 3]),
                )

    @lang.device
    def count_in(locks, top, parts, thread):
        """True for the last of the ``parts`` blocks; its counter is back at zero. Every warp counts
        for itself: the same warp of the other blocks left what it will read."""
        lock = locks + uint64(top * cfg.consumers + thread.warp) * 4
        # Orders all lanes' partial results before lane 0's atomic, whose release publishes them.
        ptx.bar_warp_sync(ALL_LANES)
        before = 0
        if thread.lane == 0:
            before = ptx.atom_add_acq_rel_gpu(lock, 1)
        before = ptx.shfl_sync_idx(before, 0)
        # Orders lane 0's acquire before all lanes' reads of what other blocks have left.
        ptx.bar_warp_sync(ALL_LANES)
        last = before + 1 == parts
        if last and thread.lane == 0:
            ptx.st_global_b32(lock, 0)
        return last

    @lang.device
    def add_parts(own, partials, top, parts, rows, thread):
        """All blocks' partial results, top to bottom, several loads at a time: one after the other
        each would cost a round trip to L2."""
        held = cuda.local.array(HELD, float32)
        for i in range(cfg.own_floats):
            own[i] = float32(0)
        part = 0
        while part < parts:
            for p in range(PARTS):
                block = top + min(part + p, parts - 1)
                address = partial_address(partials, block, block == top, thread)
                for v in range(cfg.vectors):
                    o = p * cfg.own_floats + 4 * v
                    for r in range(4):
                        held[o + r] = float32(0)
                    if first_row(thread) + 8 * (v % cfg.batch_blocks) < rows:
                        d = ptx.ld_global_v4_f32(address + VECTOR_BYTES * v)
                        for r in range(4):
                            held[o + r] = d[r]
            for p in range(PARTS):
                if part + p < parts:
                    for i in range(cfg.own_floats):
                        own[i] += held[p * cfg.own_floats + i]
            part += PARTS

    # ---- to C ----

    @lang.device
    def first_column(tile, thread):
        """Of C, the one of own[0]; the 16-column blocks of a warp follow each other."""
        return (
            tile.tile_column * cfg.columns
            + thread.warp_n * COLUMNS
            + thread.warp_k * (16 * cfg.own_blocks)
            + thread.lane // 4
        )

    @lang.device
    def scale_columns(own, scales, tile, thread, sizes):
        """Per-column scales. In every 32 columns Marlin puts 2i + {0, 1, 8, 9, 16, 17, 24, 25} side
        by side: those of this lane are one half of a word each."""
        own_column = first_column(tile, thread)
        odd = thread.lane // 4 % 2
        pair = thread.lane // 8
        for j in range(cfg.own_blocks):
            for half in range(2):
                column = own_column + (16 * j + 8 * half)
                if column < sizes.n_packed:
                    word = ptx.ld_global_b32(
                        scales + uint64(column // 32 * 16 + pair * 4 + column % 32 // 8) * 4
                    )
                    scale = scale_of_low(word >> odd * 16)
                    for b in range(cfg.batch_blocks):
                        o = 4 * (cfg.batch_blocks * j + b) + 2 * half
                        own[o] *= scale
                        own[o + 1] *= scale

    @lang.device
    def multiply_columns(own, factors, tile, thread, sizes):
        """Factors of columns (FP4), float32: those of columns g and g + 8 of 16 side by side."""
        own_column = first_column(tile, thread)
        for j in range(cfg.own_blocks):
            column = own_column + 16 * j
            if column < sizes.n_packed:
                factor = ptx.ld_global_v2_f32(
                    factors + uint64(column // 16 * 16 + column % 16 * 2) * 4
                )
                for b in range(cfg.batch_blocks):
                    o = 4 * (cfg.batch_blocks * j + b)
                    own[o] *= factor[0]
                    own[o + 1] *= factor[0]
                    own[o + 2] *= factor[1]
                    own[o + 3] *= factor[1]

    @lang.device
    def add_bias(own, bias, tile, thread, sizes):
        own_column = first_column(tile, thread)
        for j in range(cfg.own_blocks):
            for half in range(2):
                column = own_column + (16 * j + 8 * half)
                if column < sizes.n:
                    addend = bias_of_low(ptx.ld_global_b16(bias + uint64(column) * 2))
                    for b in range(cfg.batch_blocks):
                        o = 4 * (cfg.batch_blocks * j + b) + 2 * half
                        own[o] += addend
                        own[o + 1] += addend

    @lang.device
    def write_result(c, own, tile, thread, sizes):
        """Two neighbouring rows of C per pair of registers, half a word each."""
        own_column = first_column(tile, thread)
        for v in range(cfg.vectors):
            row = first_row(thread) + 8 * (v % cfg.batch_blocks)
            for half in range(2):
                column = own_column + (16 * (v // cfg.batch_blocks) + 8 * half)
                if column < sizes.n:
                    word = pair_of(own[4 * v + 2 * half], own[4 * v + 2 * half + 1])
                    address = c + (uint64(tile.row_first + row) * sizes.n + column) * 2
                    if row < tile.rows:
                        ptx.st_global_b16(address, uint16(word & 0xFFFF))
                    if row + 1 < tile.rows:
                        ptx.st_global_b16(address + uint64(sizes.n) * 2, uint16(word >> 16))

    return lang.namespace(
        "output",
        share_out=share_out if config.warps_k > 1 else keep_all,
        leave_partial=leave_partial,
        count_in=count_in,
        add_parts=add_parts,
        scale_columns=multiply_columns if config.block_scaled else scale_columns,
        add_bias=add_bias,
        write_result=write_result,
    )

"""How the sums of the decode kernel (``decode``) leave its registers: shared out among warps, added
up across blocks, scaled, written out.

``output_verbs(lang, config)`` -> namespace of device functions. ``acc``: the accumulators of a
warp, 4 of each n8 batch block b of each of its four 16-column blocks j, at 4 * (batch_blocks * j +
b): those of (column, row of C) = (16j + g, 8b + 2t), (16j + g, 8b + 2t + 1) and the same at column
+ 8, for lane 4g + t. ``place``: (warp_n, warp_k, lane, warp). After ``share_out`` the warp holds
the finished sums of its own column blocks in ``own``, and everything else happens warp by warp: no
barrier of the block, no warp waits for another.

Between blocks: each leaves its partial sums in the workspace, then counts itself in at the tile's
counter. Who comes last adds all of them up, top to bottom whoever it is, so the same input gives
the same bits; nobody ever waits.
"""

from types import SimpleNamespace

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.decode.config import COLUMNS, VECTOR_BYTES

LOADS_IN_FLIGHT = 12  # vectors of other blocks' sums that a lane asks for at a time


def output_verbs(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint16, uint32, uint64, float32 = lang.uint16, lang.uint32, lang.uint64, lang.float32
    BATCH_BLOCKS, WARPS_N, WARPS_K, CONSUMERS = (
        config.batch_blocks,
        config.warps_n,
        config.warps_k,
        config.consumers,
    )
    OWNERS, J_OWN, VECTORS = config.owners, 4 // config.owners, config.vectors
    PARTIAL_BYTES, WARP_BYTES = config.partial_bytes, VECTORS * VECTOR_BYTES
    PARTS_AT_ONCE = max(1, LOADS_IN_FLIGHT // VECTORS)
    PARTS_FLOATS = PARTS_AT_ONCE * VECTORS * 4
    scale_of_low, bias_of_low = (
        {"float16": ptx.cvt_f32_f16_low, "bfloat16": ptx.cvt_f32_bf16_low}.get(dtype)
        for dtype in (config.scale_dtype, config.dtype)
    )
    pair_of = {"float16": ptx.cvt_rn_f16x2_f32, "bfloat16": ptx.cvt_rn_bf16x2_f32}[config.dtype]
    FIRST_BARRIER = 1  # of the named ones; 0 is syncthreads

    @lang.device
    def share_out(acc, own, exchange, place):
        """Warps with the same columns and different k: each gets some column blocks of all the
        others, and adds its own to them."""
        warp_n, warp_k, lane, warp = place
        if WARPS_K > 1:
            column = (
                exchange + warp_n * uint32(OWNERS * (WARPS_K - 1) * WARP_BYTES) + lane * uint32(16)
            )
            for owner in range(OWNERS):
                if warp_k != uint32(owner):
                    sender = warp_k - uint32(1) if warp_k > uint32(owner) else warp_k
                    slot = column + (uint32(owner * (WARPS_K - 1)) + sender) * uint32(WARP_BYTES)
                    for v in range(VECTORS):
                        o = 4 * (owner * VECTORS + v)
                        ptx.st_shared_v4_f32(
                            slot + uint32(VECTOR_BYTES * v),
                            (acc[o], acc[o + 1], acc[o + 2], acc[o + 3]),
                        )
                else:
                    for i in range(4 * VECTORS):
                        own[i] = acc[4 * owner * VECTORS + i]
            ptx.bar_sync(warp_n + uint32(FIRST_BARRIER), uint32(32 * WARPS_K))
            if warp_k < uint32(OWNERS):
                for sender in range(WARPS_K - 1):
                    slot = column + (warp_k * uint32(WARPS_K - 1) + uint32(sender)) * uint32(
                        WARP_BYTES
                    )
                    for v in range(VECTORS):
                        d = ptx.ld_shared_v4_f32(slot + uint32(VECTOR_BYTES * v))
                        for r in range(4):
                            own[4 * v + r] += d[r]
            # nobody sends the next tile's sums over these
            ptx.bar_sync(warp_n + uint32(FIRST_BARRIER), uint32(32 * WARPS_K))
        else:
            for i in range(4 * VECTORS):
                own[i] = acc[i]

    @lang.device
    def partial_address(partials, block, is_top, place):
        slot = block * uint32(2) + (uint32(1) if is_top else uint32(0))
        return (
            partials
            + uint64(slot) * uint64(PARTIAL_BYTES)
            + uint64(place[3] * uint32(WARP_BYTES) + place[2] * uint32(16))
        )

    @lang.device
    def leave_partial(own, partials, block, top, rows, place):
        """Only lanes that hold rows of the matrix: at m = 1 one in four."""
        address = partial_address(partials, block, block == top, place)
        first_row = place[2] % uint32(4) * uint32(2)
        for v in range(VECTORS):
            if first_row + uint32(8 * (v % BATCH_BLOCKS)) < rows:
                ptx.st_global_v4_f32(
                    address + uint64(VECTOR_BYTES * v),
                    (own[4 * v], own[4 * v + 1], own[4 * v + 2], own[4 * v + 3]),
                )

    @lang.device
    def count_in(locks, top, parts, place):
        """True for the last of the ``parts`` blocks; its counter is back at zero."""
        lock = locks + uint64(top * uint32(CONSUMERS) + place[3]) * uint64(4)
        ptx.bar_warp_sync(uint32(ALL_LANES))
        before = uint32(0)
        if place[2] == uint32(0):
            before = ptx.atom_add_acq_rel_gpu(lock, uint32(1))
        before = ptx.shfl_sync_idx(before, uint32(0))
        ptx.bar_warp_sync(uint32(ALL_LANES))
        last = uint32(before + uint32(1)) == parts
        if last and place[2] == uint32(0):
            ptx.st_global_b32(lock, uint32(0))
        return last

    @lang.device
    def add_parts(own, partials, top, parts, rows, place):
        """All blocks' sums, top to bottom, several loads at a time: one after the other each would
        cost a round trip to L2."""
        first_row = place[2] % uint32(4) * uint32(2)
        held = cuda.local.array(PARTS_FLOATS, float32)
        for i in range(4 * VECTORS):
            own[i] = float32(0)
        part = uint32(0)
        while part < parts:
            for p in range(PARTS_AT_ONCE):
                block = uint32(top + min(uint32(part + uint32(p)), uint32(parts - uint32(1))))
                address = partial_address(partials, block, block == top, place)
                for v in range(VECTORS):
                    o = 4 * (p * VECTORS + v)
                    for r in range(4):
                        held[o + r] = float32(0)
                    if first_row + uint32(8 * (v % BATCH_BLOCKS)) < rows:
                        d = ptx.ld_global_v4_f32(address + uint64(VECTOR_BYTES * v))
                        for r in range(4):
                            held[o + r] = d[r]
            for p in range(PARTS_AT_ONCE):
                if uint32(part + uint32(p)) < parts:
                    for i in range(4 * VECTORS):
                        own[i] += held[4 * p * VECTORS + i]
            part = uint32(part + uint32(PARTS_AT_ONCE))

    @lang.device
    def first_column(column, place):
        """Of C, the one of own[0]; the column blocks of a warp follow each other."""
        return uint32(
            column * uint32(COLUMNS * WARPS_N)
            + place[0] * uint32(COLUMNS)
            + place[1] * uint32(16 * J_OWN)
            + place[2] // uint32(4)
        )

    @lang.device
    def scale_columns(own, scales, column, n_packed, place):
        """Per-column scales. In every 32 columns Marlin puts 2i + {0, 1, 8, 9, 16, 17, 24, 25} side
        by side: those of this lane are one half of a word each."""
        own_column = first_column(column, place)
        odd = place[2] // uint32(4) % uint32(2)
        pair = place[2] // uint32(8)
        for j in range(J_OWN):
            for half in range(2):
                at = uint32(own_column + uint32(16 * j + 8 * half))
                if at < n_packed:
                    word = ptx.ld_global_b32(
                        scales
                        + uint64(
                            (
                                at // uint32(32) * uint32(16)
                                + pair * uint32(4)
                                + at % uint32(32) // uint32(8)
                            )
                            * uint32(4)
                        )
                    )
                    scale = scale_of_low(word >> (odd * uint32(16)))
                    for b in range(BATCH_BLOCKS):
                        o = 4 * (BATCH_BLOCKS * j + b) + 2 * half
                        own[o] *= scale
                        own[o + 1] *= scale

    @lang.device
    def multiply_columns(own, factors, column, n_packed, place):
        """Factors of columns, float32: those of columns g and g + 8 of 16 side by side."""
        own_column = first_column(column, place)
        for j in range(J_OWN):
            at = uint32(own_column + uint32(16 * j))
            if at < n_packed:
                factor = ptx.ld_global_v2_f32(
                    factors
                    + uint64(at // uint32(16) * uint32(16) + at % uint32(16) * uint32(2))
                    * uint64(4)
                )
                for b in range(BATCH_BLOCKS):
                    o = 4 * (BATCH_BLOCKS * j + b)
                    own[o] *= factor[0]
                    own[o + 1] *= factor[0]
                    own[o + 2] *= factor[1]
                    own[o + 3] *= factor[1]

    @lang.device
    def add_bias(own, bias, column, n, place):
        own_column = first_column(column, place)
        for j in range(J_OWN):
            for half in range(2):
                at = uint32(own_column + uint32(16 * j + 8 * half))
                if at < n:
                    addend = bias_of_low(uint32(ptx.ld_global_b16(bias + uint64(at) * uint64(2))))
                    for b in range(BATCH_BLOCKS):
                        o = 4 * (BATCH_BLOCKS * j + b) + 2 * half
                        own[o] += addend
                        own[o + 1] += addend

    @lang.device
    def write_result(c, own, column, row_first, rows, n, place):
        """Two neighbouring rows of C a pair of registers, half a word each."""
        own_column = first_column(column, place)
        for v in range(VECTORS):
            row = uint32(place[2] % uint32(4) * uint32(2) + uint32(8 * (v % BATCH_BLOCKS)))
            for half in range(2):
                at = uint32(own_column + uint32(16 * (v // BATCH_BLOCKS) + 8 * half))
                if at < n:
                    word = pair_of(own[4 * v + 2 * half], own[4 * v + 2 * half + 1])
                    address = c + (uint64(row_first + row) * uint64(n) + uint64(at)) * uint64(2)
                    if row < rows:
                        ptx.st_global_b16(address, uint16(word & uint32(0xFFFF)))
                    if uint32(row + uint32(1)) < rows:
                        ptx.st_global_b16(
                            address + uint64(n) * uint64(2), uint16(word >> uint32(16))
                        )

    return SimpleNamespace(
        share_out=share_out,
        leave_partial=leave_partial,
        count_in=count_in,
        add_parts=add_parts,
        scale_columns=multiply_columns if config.block_scaled else scale_columns,
        add_bias=add_bias,
        write_result=write_result,
    )

"""How the sums of the faithful kernel (``ampere``) leave its registers: added up across warps,
across blocks, scaled, written out.

``output_verbs(lang, config)`` -> namespace of device functions. ``frag_c``: the accumulators of
``mma.m16n8k16``, four of each n8 block of each m16 block of a lane; ``place``: (warp_n, warp_k,
lane, thread); ``shared``: the block's shared memory, free of copies in flight.
"""

from types import SimpleNamespace

from numba_marlin.kernels.ampere.config import CHUNK, THREADS
from numba_marlin.kernels.language.definition import ceil_div


def output_verbs(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64 = lang.uint32, lang.uint64
    M_BLOCKS, WARPS_N, WARPS_K, ragged = (
        config.thread_m_blocks,
        config.warps_n,
        config.warps_k,
        config.ragged,
    )
    S_SHARED = config.shared_bytes - config.stages * config.s_stage_bytes
    PARTIAL_VECTORS = 8 * M_BLOCKS  # 16-byte vectors of accumulators in a lane
    RESULT_ROW, RESULT_ROW_CHUNKS = config.result_row_bytes, 2 * config.thread_n_blocks
    RESULT_ROWS_PER_COPY = THREADS // RESULT_ROW_CHUNKS
    RESULT_COPIES = ceil_div(16 * M_BLOCKS, RESULT_ROWS_PER_COPY)
    HALVINGS = WARPS_K.bit_length() - 1

    @lang.device
    def add_vector(frag_c, v, vector):
        """Written out: a loop here leaves the one around it rolled where a large tile is compiled
        for sm_120 with CUDA 13.0, and frag_c in local memory."""
        frag_c[4 * v] += vector[0]
        frag_c[4 * v + 1] += vector[1]
        frag_c[4 * v + 2] += vector[2]
        frag_c[4 * v + 3] += vector[3]

    @lang.device
    def thread_block_reduce(frag_c, shared, place):
        """Warps with the same columns and different k add up in shared memory, halving their number
        until warp_k 0 holds the sum."""
        warp_n, warp_k, lane, thread = place
        own_vectors = shared + warp_n * uint32(PARTIAL_VECTORS * 32 * CHUNK) + lane * uint32(CHUNK)
        for halving in range(HALVINGS):
            height = WARPS_K >> (halving + 1)
            if warp_k >= uint32(height) and warp_k < uint32(2 * height):
                slot = own_vectors + (warp_k - uint32(height)) * uint32(
                    WARPS_N * PARTIAL_VECTORS * 32 * CHUNK
                )
                for v in range(PARTIAL_VECTORS):
                    ptx.st_shared_v4_f32(
                        slot + uint32(32 * CHUNK * v),
                        (frag_c[4 * v], frag_c[4 * v + 1], frag_c[4 * v + 2], frag_c[4 * v + 3]),
                    )
            cuda.syncthreads()
            if warp_k < uint32(height):
                slot = own_vectors + warp_k * uint32(WARPS_N * PARTIAL_VECTORS * 32 * CHUNK)
                for v in range(PARTIAL_VECTORS):
                    partial = ptx.ld_shared_v4_f32(slot + uint32(32 * CHUNK * v))
                    if M_BLOCKS > 2:
                        add_vector(frag_c, v, partial)
                    else:  # the loop around this one stays rolled, and its code small
                        for r in range(4):
                            frag_c[4 * v + r] += partial[r]
            cuda.syncthreads()

    @lang.device
    def barrier_acquire(lock, turn, place):
        if place[3] == uint32(0):
            while ptx.ld_acquire_gpu(lock) != turn:
                pass
        cuda.syncthreads()

    @lang.device
    def barrier_release(lock, last, place):
        cuda.syncthreads()
        if place[3] == uint32(0):
            if last:
                ptx.st_global_b32(lock, uint32(0))
            else:
                ptx.red_release_gpu_add(lock, uint32(1))

    @lang.device
    def global_reduce(frag_c, partial, shared, rows, first, last, place):
        """Add what the blocks below left in the slice's buffer, and leave the sum for the block
        above. fp32, in the order of the fragments. A large tile's sum comes by way of shared
        memory: registers for so many loads at a time are not to be had. (m = 64: 28.8 us instead of
        29.7 for 8192 x 8192; for a single m16 block the detour costs more than it saves, 11.1 us
        instead of 10.7 for 4096 x 4096.)
        """
        warp_n, warp_k, lane, thread = place
        # the other lanes hold rows below the matrix
        if warp_k == uint32(0) and uint32(lane // uint32(4)) < rows:
            own_vectors = warp_n * uint32(PARTIAL_VECTORS * 32 * CHUNK) + lane * uint32(CHUNK)
            address = partial + uint64(own_vectors)
            if not first and M_BLOCKS == 1:
                for v in range(PARTIAL_VECTORS):
                    below = ptx.ld_global_v4_f32(address + uint64(32 * CHUNK * v))
                    for r in range(4):
                        frag_c[4 * v + r] += below[r]
            elif not first:
                for v in range(PARTIAL_VECTORS):
                    ptx.cp_async_16(
                        shared + own_vectors + uint32(32 * CHUNK * v),
                        address + uint64(32 * CHUNK * v),
                    )
                ptx.cp_async_wait_all()
                for v in range(PARTIAL_VECTORS):
                    add_vector(
                        frag_c,
                        v,
                        ptx.ld_shared_v4_f32(shared + own_vectors + uint32(32 * CHUNK * v)),
                    )
            if not last:
                for v in range(PARTIAL_VECTORS):
                    ptx.st_global_v4_f32(
                        address + uint64(32 * CHUNK * v),
                        (frag_c[4 * v], frag_c[4 * v + 1], frag_c[4 * v + 2], frag_c[4 * v + 3]),
                    )

    @lang.device
    def scale_columns(frag_c, frag_s, shared, place):
        """Per-column scales, in fp32: lane 4g + t finds those of its columns 2t, 2t + 1 of all n8
        blocks side by side."""
        warp_n, warp_k, lane, thread = place
        for half in range(2):
            s = ptx.ld_shared_v4_b32(
                shared
                + uint32(S_SHARED)
                + (warp_n * uint32(8) + uint32(4 * half) + lane % uint32(4)) * uint32(CHUNK)
            )
            for r in range(4):
                frag_s[4 * half + r] = s[r]
        # one flat loop: nested ones stay rolled for some targets, and frag_c in local memory
        for v in range(PARTIAL_VECTORS):
            low, high = ptx.cvt_f32_f16_low(frag_s[v % 8]), ptx.cvt_f32_f16_high(frag_s[v % 8])
            frag_c[4 * v] *= low
            frag_c[4 * v + 1] *= high
            frag_c[4 * v + 2] *= low
            frag_c[4 * v + 3] *= high

    @lang.device
    def write_result(c, frag_c, shared, row_first, rows, slice_col, place, n):
        """Fragments to shared memory, then whole 16-byte chunks of rows to global memory."""
        warp_n, warp_k, lane, thread = place
        if warp_k == uint32(0):
            corner = (
                shared
                + lane // uint32(4) * uint32(RESULT_ROW)
                + lane % uint32(4) * uint32(4)
                + warp_n * uint32(128)
            )
            for i in range(M_BLOCKS):
                for n8 in range(8):
                    o = (i * 8 + n8) * 4
                    address = corner + uint32(16 * RESULT_ROW * i + 16 * n8)
                    ptx.st_shared_b32(address, ptx.cvt_rn_f16x2_f32(frag_c[o], frag_c[o + 1]))
                    ptx.st_shared_b32(
                        address + uint32(8 * RESULT_ROW),
                        ptx.cvt_rn_f16x2_f32(frag_c[o + 2], frag_c[o + 3]),
                    )
        cuda.syncthreads()
        chunk = thread % uint32(RESULT_ROW_CHUNKS)
        col = uint32((slice_col * uint32(RESULT_ROW_CHUNKS) + chunk) * uint32(8))
        for i in range(RESULT_COPIES):
            row = uint32(thread // uint32(RESULT_ROW_CHUNKS) + uint32(RESULT_ROWS_PER_COPY * i))
            if row < rows and (not ragged or col < n):
                values = ptx.ld_shared_v4_b32(
                    shared + row * uint32(RESULT_ROW) + chunk * uint32(CHUNK)
                )
                ptx.st_global_v4_b32(
                    c + (uint64(row_first + row) * uint64(n) + uint64(col)) * uint64(2), values
                )

    return SimpleNamespace(
        thread_block_reduce=thread_block_reduce,
        barrier_acquire=barrier_acquire,
        barrier_release=barrier_release,
        global_reduce=global_reduce,
        scale_columns=scale_columns,
        write_result=write_result,
    )

"""How the sums of the ``block_decode`` kernel leave it: added up in shared memory, within a block
and then within its cluster, finished in fp32, written out.

``output_verbs(lang, config)`` -> namespace of device functions. ``acc``: of a warp, 4 sums of each
n8 block j of tokens of each of its m16 blocks i, at 4 * (token_blocks * i + j): those of lane 4 g +
t are of rows r and r + 8 of B's 16, r being the row that g stands for, and of the tokens that 2 t
and 2 t + 1 stand for: t and t + 4. ``lane_place``: (which 64 rows of B, which share of k, r, t).
"""

from types import SimpleNamespace

from numba_marlin.kernels.nvfp4.block_decode.config import (
    COLUMNS,
    PITCH,
    RESULT_BYTES,
    WARP_BLOCKS,
    WARP_COLUMNS,
)
from numba_marlin.kernels.nvfp4.block_scaled.epilogue import activation_verb

VECTORS = COLUMNS // 4  # of a token, four columns each
CONSUMER_BARRIER = 1  # 0 is syncthreads


def output_verbs(lang, config):
    ptx, uint32, uint64, float32 = lang.ptx, lang.uint32, lang.uint64, lang.float32
    TOKENS, TOKEN_BLOCKS, K_WARPS, SPLIT, THREADS = (
        config.tokens,
        config.token_blocks,
        config.k_warps,
        config.split,
        32 * config.consumers,
    )
    SHARED, BYTES = config.sums_shared, config.sums_bytes
    SOURCED, BIASED, RESULT_SIZE = config.source, config.bias, RESULT_BYTES[config.result]
    SHARE = TOKENS * VECTORS // SPLIT  # vectors of a block of the cluster
    activate = activation_verb(lang, config.activation)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32
    widen_low, widen_high = (
        (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)
        if config.result == "bfloat16"
        else (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high)
    )

    @lang.device
    def leave_sums(acc, shared, lane_place):
        row_warp, k_warp, own, t = lane_place
        first = shared + SHARED + k_warp * BYTES + ((t * PITCH) + row_warp * WARP_COLUMNS + own) * 4
        for i in range(WARP_BLOCKS):
            for j in range(TOKEN_BLOCKS):
                o, address = (
                    4 * (TOKEN_BLOCKS * i + j),
                    first + (4 * (16 * i + 8 * PITCH * j)),
                )
                ptx.st_shared_b32(address, ptx.bits_of_f32(acc[o]))
                ptx.st_shared_b32(address + (16 * PITCH), ptx.bits_of_f32(acc[o + 1]))
                ptx.st_shared_b32(address + (4 * 8), ptx.bits_of_f32(acc[o + 2]))
                ptx.st_shared_b32(address + (16 * PITCH + 4 * 8), ptx.bits_of_f32(acc[o + 3]))
        ptx.bar_sync(CONSUMER_BARRIER, THREADS)

    @lang.device
    def plus(a, b):
        return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]

    @lang.device
    def place_of(vector):
        """In a share's partial sums, in bytes."""
        return vector // VECTORS * (4 * PITCH) + vector % VECTORS * 16

    @lang.device
    def add_shares(shared, vector):
        """Of the block's k, first to last."""
        address = shared + SHARED + place_of(vector)
        v = ptx.ld_shared_v4_f32(address)
        for each in range(1, K_WARPS):
            v = plus(v, ptx.ld_shared_v4_f32(address + (BYTES * each)))
        return v

    @lang.device
    def add_blocks(shared, vector):
        """Of the cluster, first to last."""
        address = shared + SHARED + place_of(vector)
        v = ptx.ld_shared_cluster_v4_f32(ptx.mapa_shared(address, 0))
        for rank in range(1, SPLIT):
            v = plus(v, ptx.ld_shared_cluster_v4_f32(ptx.mapa_shared(address, uint32(rank))))
        return v

    @lang.device
    def add_source(v, beta, c):
        first, second = ptx.ld_global_v2_b32(c)
        return (
            ptx.fma_rn_f32(beta, widen_low(first), v[0]),
            ptx.fma_rn_f32(beta, widen_high(first), v[1]),
            ptx.fma_rn_f32(beta, widen_low(second), v[2]),
            ptx.fma_rn_f32(beta, widen_high(second), v[3]),
        )

    @lang.device
    def add_bias(v, bias):
        first, second = ptx.ld_global_v2_f32(bias), ptx.ld_global_v2_f32(bias + 8)
        return (
            ptx.fma_rn_f32(v[0], float32(1), first[0]),
            ptx.fma_rn_f32(v[1], float32(1), first[1]),
            ptx.fma_rn_f32(v[2], float32(1), second[0]),
            ptx.fma_rn_f32(v[3], float32(1), second[1]),
        )

    @lang.device
    def finish_columns(sums, outputs, place, vector):
        """Four columns of a token, if there are such: n is a multiple of 8."""
        token, column, m, n = place
        row, first = (
            token + vector // VECTORS,
            column + vector % VECTORS * 4,
        )
        if row < m and first < n:
            c, d, bias, factors = outputs
            alpha = ptx.ld_global_v2_f32(factors)
            index = uint64(row) * uint64(n) + uint64(first)
            v = (alpha[0] * sums[0], alpha[0] * sums[1], alpha[0] * sums[2], alpha[0] * sums[3])
            if SOURCED:
                v = add_source(v, alpha[1], c + index * RESULT_SIZE)
            if BIASED:
                v = add_bias(v, bias + uint64(first) * 4)
            if RESULT_SIZE == 2:
                ptx.st_global_v2_b32(
                    d + index * RESULT_SIZE,
                    (
                        pair_of(activate(v[0]), activate(v[1])),
                        pair_of(activate(v[2]), activate(v[3])),
                    ),
                )
            else:
                ptx.st_global_v2_f32(d + index * RESULT_SIZE, (activate(v[0]), activate(v[1])))
                ptx.st_global_v2_f32(d + index * RESULT_SIZE + 8, (activate(v[2]), activate(v[3])))

    def for_vectors(count, verb):
        """-> device function (shared, outputs, place, rank): ``verb`` of so many vectors, shared
        out to all threads."""
        ROUNDS, REST = max(1, count // THREADS), count < THREADS

        @lang.device
        def go_round(shared, outputs, place, rank):
            done = 0
            while done < ROUNDS:
                vector = ptx.tid_x() + done * THREADS
                if not REST or vector < uint32(count):
                    verb(shared, vector, outputs, place, rank)
                done = done + 1

        return go_round

    @lang.device
    def add_and_finish(shared, vector, outputs, place, rank):
        finish_columns(add_shares(shared, vector), outputs, place, vector)

    @lang.device
    def add_for_cluster(shared, vector, outputs, place, rank):
        ptx.st_shared_v4_f32(shared + SHARED + place_of(vector), add_shares(shared, vector))

    @lang.device
    def add_blocks_and_finish(shared, vector, outputs, place, rank):
        own = rank * SHARE + vector
        finish_columns(add_blocks(shared, own), outputs, place, own)

    finish_all, add_all, finish_share = (
        for_vectors(TOKENS * VECTORS, add_and_finish),
        for_vectors(TOKENS * VECTORS, add_for_cluster),
        for_vectors(SHARE, add_blocks_and_finish),
    )

    @lang.device
    def write_out(shared, outputs, place, rank):
        """Threads that multiplied; the cluster's barrier does not wait for the others, which have
        gone."""
        if SPLIT == 1:
            finish_all(shared, outputs, place, rank)
        else:
            add_all(shared, outputs, place, rank)
            ptx.cluster_arrive()
            ptx.cluster_wait()
            finish_share(shared, outputs, place, rank)
            ptx.cluster_arrive()  # shared memory outlives those who read it
            ptx.cluster_wait()

    return SimpleNamespace(leave_sums=leave_sums, write_out=write_out)

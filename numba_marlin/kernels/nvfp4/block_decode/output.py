"""How the sums of the ``block_decode`` kernel leave it: added up in shared memory, within a block
and then within its cluster, finished in fp32, written out.

``output_verbs(lang, config)`` -> namespace of device functions; the records ``thread``, ``item``,
``sizes`` and ``outputs`` are those of ``kernel``.

``acc`` of a warp is [m16 tile][n8 tile j][4]. Accumulator r = 0 .. 3 of lane 4 g + t is
D[8 j + t + 4 (r % 2), 64 warp_n + 8 i + row_of(g)] of the tile, with the i of ``kernel``, 2 * m16
tile + r // 2: mma has row g and column 2 t + r % 2, and ``row_of`` says which of eight rows of B,
or tokens, stand there (``row_of(2 t) = t``, ``row_of(2 t + 1) = t + 4``).

1. Every slice of k (``warp_k``) leaves its sums in shared memory, fp32 [token][PITCH], 128 columns
   and a gap: a warp writes 32 banks at once (``config.PITCH``). Then a named barrier of the warps
   that multiply.
2. A thread takes *vectors*, four neighbouring columns of a token, number 32 * token + column / 4,
   and adds up their slices, first to last. A warp's 32 vectors are a token's 128 columns: 512 bytes
   in one piece, read without conflicts.
3. With a split, the totals replace the first slice's sums; cluster barrier; every rank takes
   1 / split of the vectors and adds up the ranks' totals, first to last, by distributed shared
   memory. A second cluster barrier keeps blocks alive until all have read.
4. alpha * sum + beta * C + bias, the activation, the type of D: one 8-byte store of a vector (16
   bytes of float32 in two).
"""

from numba_marlin.kernels.nvfp4.block_decode.config import (
    COLUMNS,
    M16_TILES,
    PITCH,
    WARP_COLUMNS,
)
from numba_marlin.kernels.nvfp4.block_scaled.finish import activation_verb

VECTORS = COLUMNS // 4  # of a token, four columns each
CONSUMER_BARRIER = 1  # a named barrier; 0 is that of syncthreads


def output_verbs(lang, config):
    ptx, uint64, float32 = lang.ptx, lang.uint64, lang.float32
    cfg = lang.constants(config)
    threads = 32 * config.consumers
    vectors = config.tokens * VECTORS
    rank_vectors = vectors // config.split  # that a block of the cluster finishes
    activate = activation_verb(lang, config.activation)
    # (left, right) -> a register of two 16-bit numbers, left in the low half (PTX names it last)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32
    widen_low, widen_high = (
        (ptx.cvt_f32_bf16_low, ptx.cvt_f32_bf16_high)
        if config.result == "bfloat16"
        else (ptx.cvt_f32_f16_low, ptx.cvt_f32_f16_high)
    )

    @lang.device
    def leave_sums(acc, shared, thread):
        """For all to read. Lanes write 32 banks at once: 8 t + row."""
        # row: of B, so a column of D
        column = thread.warp_n * WARP_COLUMNS + thread.row
        own = (
            shared
            + cfg.sums_shared
            + thread.warp_k * cfg.sums_bytes
            + (thread.t * PITCH + column) * 4
        )
        # in bytes, 4 of each sum: accumulators 1 and 3 are four tokens on, 2 and 3 eight columns
        four_tokens, eight_columns = 4 * (4 * PITCH), 4 * 8
        for m16 in range(M16_TILES):
            for j in range(cfg.n8_tiles):
                o = 4 * (cfg.n8_tiles * m16 + j)
                address = own + 4 * (16 * m16 + 8 * PITCH * j)
                ptx.st_shared_b32(address, ptx.bits_of_f32(acc[o]))
                ptx.st_shared_b32(address + four_tokens, ptx.bits_of_f32(acc[o + 1]))
                ptx.st_shared_b32(address + eight_columns, ptx.bits_of_f32(acc[o + 2]))
                ptx.st_shared_b32(
                    address + (four_tokens + eight_columns), ptx.bits_of_f32(acc[o + 3])
                )
        ptx.bar_sync(CONSUMER_BARRIER, threads)

    @lang.device
    def plus(a, b):
        return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]

    @lang.device
    def sums_at(shared, vector):
        """Address of a vector among the sums of the first slice of k."""
        return shared + cfg.sums_shared + vector // VECTORS * (4 * PITCH) + vector % VECTORS * 16

    @lang.device
    def add_slices(shared, vector):
        """Of the block's k, first to last."""
        address = sums_at(shared, vector)
        v = ptx.ld_shared_v4_f32(address)
        for warp_k in range(1, cfg.k_warps):
            v = plus(v, ptx.ld_shared_v4_f32(address + cfg.sums_bytes * warp_k))
        return v

    @lang.device
    def add_ranks(shared, vector):
        """Of the cluster, first to last."""
        address = sums_at(shared, vector)
        v = ptx.ld_shared_cluster_v4_f32(ptx.mapa_shared(address, 0))
        for rank in range(1, cfg.split):
            v = plus(v, ptx.ld_shared_cluster_v4_f32(ptx.mapa_shared(address, rank)))
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
        """As multiply-adds by 1: an assembler is free to fuse a plain sum with the product before
        it (alpha * sum), and would change its bits."""
        first, second = ptx.ld_global_v2_f32(bias), ptx.ld_global_v2_f32(bias + 8)
        return (
            ptx.fma_rn_f32(v[0], float32(1), first[0]),
            ptx.fma_rn_f32(v[1], float32(1), first[1]),
            ptx.fma_rn_f32(v[2], float32(1), second[0]),
            ptx.fma_rn_f32(v[3], float32(1), second[1]),
        )

    @lang.device
    def finish_columns(sums, outputs, tile, sizes, vector):
        """Four columns of a token, all of them inside of D or all outside: n is a multiple of 8."""
        row, column = tile.token + vector // VECTORS, tile.column + vector % VECTORS * 4
        if row < sizes.m and column < sizes.n:
            alpha, beta = ptx.ld_global_v2_f32(outputs.factors)
            number = uint64(row) * sizes.n + column
            v = (alpha * sums[0], alpha * sums[1], alpha * sums[2], alpha * sums[3])
            if cfg.source:
                v = add_source(v, beta, outputs.c + number * cfg.result_bytes)
            if cfg.bias:
                v = add_bias(v, outputs.bias + uint64(column) * 4)
            d = outputs.d + number * cfg.result_bytes
            if cfg.result_bytes == 2:
                ptx.st_global_v2_b32(
                    d,
                    (
                        pair_of(activate(v[0]), activate(v[1])),
                        pair_of(activate(v[2]), activate(v[3])),
                    ),
                )
            else:
                ptx.st_global_v2_f32(d, (activate(v[0]), activate(v[1])))
                ptx.st_global_v2_f32(d + 8, (activate(v[2]), activate(v[3])))

    def for_vectors(count, verb):
        """-> device function (shared, outputs, item, sizes): ``verb`` of vectors 0 to count - 1,
        neighbours by neighbouring threads. Both numbers are powers of two."""
        rounds, too_few = max(1, count // threads), count < threads

        @lang.device
        def go_round(shared, outputs, item, sizes):
            done = 0
            while done < rounds:
                vector = ptx.tid_x() + done * threads
                if not too_few or vector < count:
                    verb(shared, vector, outputs, item, sizes)
                done += 1

        return go_round

    @lang.device
    def add_and_finish(shared, vector, outputs, item, sizes):
        finish_columns(add_slices(shared, vector), outputs, item.tile, sizes, vector)

    @lang.device
    def add_for_cluster(shared, vector, outputs, item, sizes):
        ptx.st_shared_v4_f32(sums_at(shared, vector), add_slices(shared, vector))

    @lang.device
    def add_ranks_and_finish(shared, vector, outputs, item, sizes):
        own = item.rank * rank_vectors + vector
        finish_columns(add_ranks(shared, own), outputs, item.tile, sizes, own)

    finish_all, add_all = (
        for_vectors(vectors, add_and_finish),
        for_vectors(vectors, add_for_cluster),
    )
    finish_own = for_vectors(rank_vectors, add_ranks_and_finish)

    @lang.device
    def write_out(shared, outputs, item, sizes):
        """By the threads that multiplied. The cluster's barrier waits for all threads that have not
        returned: those of the load warps return without arriving."""
        if cfg.split == 1:
            finish_all(shared, outputs, item, sizes)
        else:
            add_all(shared, outputs, item, sizes)
            ptx.cluster_arrive()
            ptx.cluster_wait()
            finish_own(shared, outputs, item, sizes)
            ptx.cluster_arrive()  # shared memory outlives those who read it
            ptx.cluster_wait()

    return lang.namespace("output", leave_sums=leave_sums, write_out=write_out)

"""The epilogue of ``ampere``: accumulators are added up across warps and across blocks, scaled, and
written out.

``output_verbs(lang, config)`` -> namespace of device functions. Their parameters:

sums                 a lane's accumulators of ``mma.m16n8k16``, [m16 block][n8 block][4] floats:
                     lane 4 g + t has columns 2 t, 2 t + 1 of row g (the first two) and of row
                     g + 8. A *vector* is these four, 16 bytes; vector v = 8 * m16 block + n8 block
base                 address of the block's shared memory, free of copies in flight but for scales
partial, lock        addresses of the output tile's, in global memory
is_top, is_bottom    whether this block has the tile column's first tile, or its last one
thread, output_tile  records of ``kernel`` and ``schedule``; rows: output_tile.rows

*Across blocks.* ``top`` to ``bottom`` are the blocks with slices of one tile column; higher numbers
are further along k, further down. They add up in turns, from bottom to top, in a tile of fp32
(``partials``): the lock counts how many have, block b waits until bottom - b have, top sets it back
to 0 (proofs: ``layout.stripes``).

- One lock and one tile of partial sums per block are enough, numbered by ``top``. If others share a
  tile column with its top block, they have its lower tiles, so the top block's stripe ends inside
  that tile column: a block is top of at most one shared tile column.
- Nobody waits in a circle: a block waits for higher numbers only. Each of these begins its stripe
  in this very tile column, as every block but the top one does, so it waits nowhere before. That
  needs all blocks of the grid to run at once (``AmpereConfig.blocks_per_sm``; a launch checks it).
- Memory order: all threads store their partial sums (plain st.global), then a block-wide barrier,
  then thread 0 alone does ``red.release.gpu.global.add`` on the lock. A release is cumulative: it
  covers what the barrier has ordered before it, so the other 255 threads' stores too; no fence.
  Thread 0 of the block above polls with ``ld.acquire.gpu.global``, and a barrier passes on to its
  block what that acquired.

*Shared memory*, all from ``base`` on, where stages of A and B were (the map in ``config``): sums of
warps [warp_k of those that read][warp_n][vector][lane], of each halving in the same place; after
that the sum of the blocks below [warp_n][vector][lane]; after that the result, tile_m rows of
``result_row_bytes``. Behind them, in the first slot of the stages' scales, scales per column. What
keeps them apart:

- stages | sums of warps: the kernel waits for all copies, then a barrier;
- sums of warps | those of the next halving, the sum of the blocks below, or the result: the barrier
  at the end of each halving in ``thread_block_reduce``;
- the sum of the blocks below | the result, or the next slice's stages: the barrier in
  ``barrier_release``, before the lock;
- scales per column being copied | read: the kernel waits for all copies, then a barrier, before
  ``scale_columns``; read | overwritten by the next slice's: the barrier inside ``write_result``;
- rows of the result being written | read: the barrier inside ``write_result``;
- the result | the next slice's stages: the kernel's last barrier.
"""

from numba_marlin.kernels.ampere.config import CHUNK, THREADS
from numba_marlin.kernels.language.definition import ceil_div

WARP_VECTORS = 32 * CHUNK  # bytes: a vector of every lane, side by side


def output_verbs(lang, config):
    cuda, ptx, uint64 = lang.cuda, lang.ptx, lang.uint64
    cfg = lang.constants(config)
    vectors = 8 * config.thread_m_blocks  # of a lane
    warp_bytes = vectors * WARP_VECTORS  # of all sums of a warp
    row_bytes, row_chunks = config.result_row_bytes, 2 * config.thread_n_blocks
    rows_per_copy = THREADS // row_chunks
    result_copies = ceil_div(config.tile_m, rows_per_copy)
    halvings = config.warps_k.bit_length() - 1  # log2 of 2 or 4

    @lang.device
    def add_vector(sums, v, vector):
        """``sums[4 * v + r] += vector[r]`` for r = 0 .. 3, written out. A loop over vectors must be
        unrolled, for its index says which registers; with a loop inside, it stays rolled where a
        large tile is compiled for sm_120 with CUDA 13.0, and the sums are in local memory."""
        sums[4 * v] += vector[0]
        sums[4 * v + 1] += vector[1]
        sums[4 * v + 2] += vector[2]
        sums[4 * v + 3] += vector[3]

    @lang.device
    def vector_of(sums, v):
        return sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]

    @lang.device
    def thread_block_reduce(sums, base, thread):
        """Warps with the same columns and different k add up in shared memory, halving their number
        until warp_k 0 holds the sum. Of the 2 * height warps that still hold sums, the upper half
        stores and the lower half adds: warp_k + height stores in the slot of warp_k, which adds
        that to its own. With k0 .. k3 for the sums of warp_k 0 .. 3: (k0 + k2) + (k1 + k3), or, of
        two, k0 + k1."""
        own_vectors = base + thread.warp_n * warp_bytes + thread.lane * CHUNK
        for halving in range(halvings):
            height = cfg.warps_k >> (halving + 1)
            if thread.warp_k >= height and thread.warp_k < 2 * height:
                slot = own_vectors + (thread.warp_k - height) * (cfg.warps_n * warp_bytes)
                for v in range(vectors):
                    ptx.st_shared_v4_f32(slot + WARP_VECTORS * v, vector_of(sums, v))
            cuda.syncthreads()
            if thread.warp_k < height:
                slot = own_vectors + thread.warp_k * (cfg.warps_n * warp_bytes)
                for v in range(vectors):
                    upper = ptx.ld_shared_v4_f32(slot + WARP_VECTORS * v)
                    # Both branches do the same. With the loop over r, the loop over v is unrolled
                    # and the loop over halvings is not, which makes for less code. With 48 and 64
                    # rows the loop over v would stay rolled (add_vector).
                    if cfg.thread_m_blocks > 2:
                        add_vector(sums, v, upper)
                    else:
                        for r in range(4):
                            sums[4 * v + r] += upper[r]
            cuda.syncthreads()

    @lang.device
    def barrier_acquire(lock, turn, thread):
        """Wait until ``turn`` blocks, those of higher numbers, have added their sums."""
        if thread.number == 0:
            while ptx.ld_acquire_gpu(lock) != turn:
                pass
        cuda.syncthreads()

    @lang.device
    def barrier_release(lock, is_top, thread):
        """Hand the turn to the block above, of the next lower number: the barrier, then the
        release by one thread, publish the stores of all (module docstring). The top block leaves
        the lock as it was before the launch."""
        cuda.syncthreads()
        if thread.number == 0:
            if is_top:
                ptx.st_global_b32(lock, 0)
            else:
                ptx.red_release_gpu_add(lock, 1)

    @lang.device
    def global_reduce(sums, partial, base, rows, is_bottom, is_top, thread):
        """Add what the blocks below, of higher numbers, left in the tile of sums ``partial``, and
        leave the sum for the block above; the bottom block only leaves, the top block only adds.
        fp32 [warp_n][vector][lane]. A large tile's sum comes by way of shared memory: registers for
        so many loads at a time are not to be had. (m = 64: 28.8 us instead of 29.7 for 8192 x 8192;
        for a single m16 block the detour costs more than it saves, 11.1 us instead of 10.7 for
        4096 x 4096.) Either way ``barrier_acquire`` has made the other blocks' stores visible.
        """
        # lane // 4 is a lane's first row: where the matrix has not even that, nothing is exchanged
        if thread.warp_k == 0 and thread.lane // 4 < rows:
            own_vectors = thread.warp_n * warp_bytes + thread.lane * CHUNK
            address = partial + own_vectors
            if not is_bottom and cfg.thread_m_blocks == 1:
                for v in range(vectors):
                    below = ptx.ld_global_v4_f32(address + WARP_VECTORS * v)
                    for r in range(4):
                        sums[4 * v + r] += below[r]
            elif not is_bottom:
                for v in range(vectors):
                    ptx.cp_async_16(
                        base + own_vectors + WARP_VECTORS * v, address + WARP_VECTORS * v
                    )
                ptx.cp_async_wait_all()
                for v in range(vectors):
                    below = ptx.ld_shared_v4_f32(base + own_vectors + WARP_VECTORS * v)
                    add_vector(sums, v, below)
            if not is_top:
                for v in range(vectors):
                    ptx.st_global_v4_f32(address + WARP_VECTORS * v, vector_of(sums, v))

    @lang.device
    def scale_columns(sums, scales, base, thread):
        """Per-column scales, in fp32. ``scales``: eight free registers. Register i gets the scales
        of columns 2 t (low half) and 2 t + 1 of n8 block i, from the first slot of the stages'
        scales, where a chunk fills four registers."""
        for columns32 in range(2):  # which 32 of the warp's 64 columns
            # 64 columns are 8 chunks, 32 are 4, one for each t
            chunk = thread.warp_n * 8 + 4 * columns32 + thread.lane % 4
            words = ptx.ld_shared_v4_b32(base + cfg.scales_at + chunk * CHUNK)
            for r in range(4):
                scales[4 * columns32 + r] = words[r]
        # one flat loop: nested ones stay rolled for some targets, and the sums in local memory
        for v in range(vectors):
            n8 = v % 8
            low, high = ptx.cvt_f32_f16_low(scales[n8]), ptx.cvt_f32_f16_high(scales[n8])
            sums[4 * v] *= low
            sums[4 * v + 1] *= high
            sums[4 * v + 2] *= low
            sums[4 * v + 3] *= high

    @lang.device
    def write_result(c, sums, base, output_tile, thread, n):
        """Pairs of sums, rounded to fp16, to shared memory as rows; then all threads write chunks
        of 16 bytes of them to global memory. (``cvt_rn_f16x2_f32(low, high)``: its first argument
        becomes the low half, the lower column; PTX itself names the high half first.)"""
        # a word is two columns, a chunk (an n8 block) eight, a warp's 64 columns eight chunks
        if thread.warp_k == 0:
            corner = (
                base
                + thread.lane // 4 * row_bytes
                + thread.lane % 4 * 4
                + thread.warp_n * (8 * CHUNK)
            )
            for i in range(cfg.thread_m_blocks):
                for n8 in range(8):
                    at = (i * 8 + n8) * 4  # of sums
                    address = corner + (16 * row_bytes * i + CHUNK * n8)
                    ptx.st_shared_b32(address, ptx.cvt_rn_f16x2_f32(sums[at], sums[at + 1]))
                    ptx.st_shared_b32(
                        address + 8 * row_bytes, ptx.cvt_rn_f16x2_f32(sums[at + 2], sums[at + 3])
                    )
        cuda.syncthreads()
        chunk = thread.number % row_chunks
        column = (output_tile.n_tile * row_chunks + chunk) * 8
        for i in range(result_copies):
            row = thread.number // row_chunks + rows_per_copy * i
            if row < output_tile.rows and (not cfg.ragged or column < n):
                ptx.st_global_v4_b32(
                    c + (uint64(output_tile.row_first + row) * n + column) * 2,
                    ptx.ld_shared_v4_b32(base + row * row_bytes + chunk * CHUNK),
                )

    return lang.namespace(
        "output",
        thread_block_reduce=thread_block_reduce,
        barrier_acquire=barrier_acquire,
        barrier_release=barrier_release,
        global_reduce=global_reduce,
        scale_columns=scale_columns,
        write_result=write_result,
    )

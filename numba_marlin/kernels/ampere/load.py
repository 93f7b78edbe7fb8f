"""Global to shared memory in ``ampere``: every thread copies its 16-byte chunks of each tile.

``load_verbs(lang, config)`` -> namespace of device functions. ``state``, ``slice_``, ``thread``:
records of ``kernel`` and ``schedule``. Copies are ``cp.async.cg`` (to shared memory through L2,
past L1), those of B with the L2 policy ``evict_first``: with m up to tile_m a weight is read once.
All copies of a tile, its scales included, are one *copy group* of the thread; ``wait_for_stage``
says how many are in flight and what guards a stage, ``config`` where a chunk lies.

*Tails.* Rows of A past m always, and with ``ragged`` all that lies past n or k, arrive as zeros,
and so does a whole tile past the end of the slice: with size 0, cp.async reads nothing, wherever
its source points (PTX ISA), and fills its 16 bytes with zeros. Zeros instead of a branch keep a
step one straight line of code. Why zeros of b, which are not weights of 0, do no harm: ``kernel``,
Tails. What is past the end of the slice is not multiplied.
"""

from numba_marlin.kernels.ampere.config import CHUNK, HALVES, THREADS

NEXT_A, NEXT_B = 0, 1  # of ``pointers``: byte addresses of this thread's first chunks of a tile
FP16_BYTES = 2
CODES_BYTES = 8  # of a column in a k16 row of b: 16 codes


def load_verbs(lang, config):
    cuda, ptx, uint64 = lang.cuda, lang.ptx, lang.uint64
    cfg = lang.constants(config)
    # cp.async.wait_group: waits until at most n of the thread's copy groups are in flight
    wait_for_copy_groups = ptx.cp_async_wait_group(n=config.stages - 2)

    @lang.device
    def slice_pointers(pointers, a, b, slice_, thread, sizes):
        """Point at this thread's chunks of the slice's first tile."""
        a_chunk = thread.number % cfg.a_row_chunks + slice_.first_step * cfg.a_row_chunks
        row = slice_.output_tile.row_first + thread.number // cfg.a_row_chunks
        pointers[NEXT_A] = a + uint64(row) * sizes.k * FP16_BYTES + uint64(a_chunk) * CHUNK
        b_chunk = thread.number % cfg.b_row_chunks + slice_.output_tile.n_tile * cfg.b_row_chunks
        k16_row = thread.number // cfg.b_row_chunks + slice_.first_step * cfg.thread_k_blocks
        pointers[NEXT_B] = b + uint64(k16_row) * sizes.n * CODES_BYTES + uint64(b_chunk) * CHUNK

    @lang.device
    def fetch_scales(state, n_tile, stage, step, valid):
        """The scales of one tile into the slot of its stage, a chunk each by the first
        ``scale_chunks`` threads. Tiles that share a scale group fetch it once each (from L2, after
        the first). The original lets such tiles share a slot, which it refills while a slow warp
        may still read it: the results of one launch in some hundred differed."""
        thread, sizes = state.thread, state.sizes
        if thread.number < cfg.scale_chunks:
            group_of_tile = thread.number // cfg.s_row_chunks  # from 0 in each tile
            # from 0 at k = 0: the row of ``scales``
            scale_group = group_of_tile
            if cfg.grouped:
                scale_group = group_of_tile + step * cfg.thread_k_blocks // cfg.group_blocks
            # index, in that row, of the first fp16 of the thread's chunk. The order of scales mixes
            # columns only inside 64, and n is a multiple of 64: so a chunk holds scales of columns
            # < n if, and only if, index < n
            index = (n_tile * cfg.s_row_chunks + thread.number % cfg.s_row_chunks) * 8
            if cfg.ragged:
                valid = valid and index < sizes.n
                if cfg.grouped:
                    valid = valid and scale_group * (16 * cfg.group_blocks) < sizes.k
            ptx.cp_async_16_zfill(
                state.shared.own_chunk + cfg.scales_at + cfg.s_stage_bytes * stage,
                state.source.scales + (uint64(scale_group) * sizes.n + index) * FP16_BYTES,
                CHUNK if valid else 0,
            )

    @lang.device
    def fetch_to_shared(state, slice_, stage, step):
        """Start copying the tile of ``step`` into a stage, and move the pointers on to the next
        tile's."""
        number, sizes = state.thread.number, state.sizes
        pointers = state.source.pointers
        active = step < slice_.end_step
        for i in range(cfg.a_copies):
            row = number // cfg.a_row_chunks + cfg.a_rows_per_copy * i
            valid = active and row < slice_.output_tile.rows
            if cfg.ragged:
                valid = valid and step * cfg.tile_k + number % cfg.a_row_chunks * 8 < sizes.k
            # one copy may have more rows than the tile: threads past tile_m copy nothing
            if cfg.tile_m % cfg.a_rows_per_copy == 0 or row < cfg.tile_m:
                ptx.cp_async_16_zfill(
                    state.shared.own_a_chunk + cfg.a_stage_bytes * stage + THREADS * CHUNK * i,
                    pointers[NEXT_A] + uint64(sizes.k) * (FP16_BYTES * cfg.a_rows_per_copy * i),
                    CHUNK if valid else 0,
                )
        pointers[NEXT_A] += cfg.a_row_chunks * CHUNK
        b_write = state.shared.own_chunk + cfg.b_at + cfg.b_stage_bytes * stage
        for half in range(HALVES):  # copy number ``half`` brings that half's k16 rows
            valid = active
            if cfg.ragged:
                k16_row = (
                    step * cfg.thread_k_blocks
                    + number // cfg.b_row_chunks
                    + cfg.b_k16_rows_per_copy * half
                )
                # of the n / 2 chunks of a k16 row, 32 for each 64 columns: n is a multiple of 64,
                # so chunk < n / 2 for columns < n
                chunk = slice_.output_tile.n_tile * cfg.b_row_chunks + number % cfg.b_row_chunks
                valid = valid and chunk * 2 < sizes.n and k16_row * 16 < sizes.k
            ptx.cp_async_16_zfill_hint(
                b_write + THREADS * CHUNK * half,
                pointers[NEXT_B] + uint64(sizes.n) * (CODES_BYTES * cfg.b_k16_rows_per_copy * half),
                CHUNK if valid else 0,
                state.source.policy,
            )
        pointers[NEXT_B] += uint64(sizes.n) * (CODES_BYTES * cfg.thread_k_blocks)
        if cfg.grouped:
            fetch_scales(state, slice_.output_tile.n_tile, stage, step, active)
        ptx.cp_async_commit_group()

    @lang.device
    def wait_for_stage(state, slice_, stage, step):
        """Wait until the tile of ``step``, in ``stage``, may be read, and the stage of the tile
        before it overwritten. With S = ``stages``, behind the copies of tile step + S - 2:

        Before reading: each step commits one copy group (past the slice's end of zeros, so that the
        count holds to its last step), and fetch_to_shared leaves S - 1 in flight. When only S - 2
        of a thread's are left, its oldest, of the tile of ``step``, has landed; after the barrier
        everyone's has. Before overwriting: the next fetch_to_shared copies tile step + S - 1 into
        the stage of tile step - 1. Each thread has both halves of that tile in registers before it
        comes to this barrier, so behind it nobody reads that stage any more.

        Before the main loop this ends a step first_step - 1 that multiplies nothing: the S - 1
        tiles from first_step on have been issued, and the first of them is waited for."""
        wait_for_copy_groups()
        cuda.syncthreads()

    @lang.device
    def wait_for_all(state):
        """Wait until no copy of the block is in flight."""
        ptx.cp_async_wait_all()
        cuda.syncthreads()

    return lang.namespace(
        "load",
        slice_pointers=slice_pointers,
        fetch_scales=fetch_scales,
        fetch_to_shared=fetch_to_shared,
        wait_for_stage=wait_for_stage,
        wait_for_all=wait_for_all,
    )

"""The faithful Marlin kernel (Frantar et al., "MARLIN", 2024), verb for verb, in Python.

``C[m, n] = A[m, k] @ W[k, n]``; parameters (raw addresses): a fp16 [m, k], b int32 [k/16, 2n] and
scales fp16 [groups, n] in Marlin's order, c fp16 [m, n], partials fp32 and locks int32
(``workspace_bytes``; locks zero before, zero again after), m, n, k as int32. k is a multiple of 16,
n of 64, m any; with ``ragged=False`` k and n fill whole tiles.

``config`` has the sizes and the map of shared memory, ``output`` the epilogue. In the order in
which the kernel reads:

- *Stripes* (stream-K). The weight is cut into tiles of ``tile_k x tile_n``. All tiles, one column
  of them after the other, are cut into equal stripes, one per block, so that every SM gets the
  same work. The part of a stripe in one column is a slice: one tile of C, some steps along k.
  3 x 3 tiles, five blocks, which block has which tile (``layout.stripes`` has the proof)::

      0 1 3
      0 2 3       column 0: blocks 0 (top) and 1 (bottom) share a tile of C
      1 2 4       column 1: blocks 1 and 2; column 2: blocks 3 and 4
- *Pipeline.* A ring of ``stages`` tiles in shared memory, filled by ``cp.async``; B passes through
  L2 with ``evict_first``.
- *XOR swizzle.* Rows of an A tile lie 128 or 256 bytes apart, so the same chunk of eight rows
  would be in the same four banks. Chunk c of row r lies at chunk c ^ (r % 8) instead: the eight
  lanes of a phase, of a copy's write and of an ``ldmatrix`` read, touch every bank once.
- *Register double buffer.* A warp multiplies two k16 rows of a tile, its halves. While one
  multiplies, ``ldmatrix`` fetches the other.
- *Dequantise between the multiplies.* The integer units spread the next word while the tensor cores
  run ``mma.sync``.
- *Two reductions.* Warps that share columns add up in shared memory; blocks that share a tile of C
  add up one after the other, from the bottom of the column to its top, guarded by a lock: the order
  is fixed, so the same input gives the same bits.

Better than the original: partial sums between blocks stay fp32, in a workspace that depends on the
grid and not on the problem; per-column scales multiply the fp32 sum before the cast; tails of m, n
and k are zero-filled copies inside one launch; a barrier keeps the next slice's copies off the
result still being written out.
"""

from numba_marlin.kernels.ampere.config import CHUNK, HALVES, THREADS
from numba_marlin.kernels.ampere.output import output_verbs
from numba_marlin.kernels.dequantize.verbs import number_verbs

NEXT_A, NEXT_B = 0, 1  # of ``pointers``


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    cfg = lang.constants(config)
    numbers, output = number_verbs(lang), output_verbs(lang, config)

    Sizes = lang.record("Sizes", "m n k")

    # warp_n: which 64 columns of the tile are the warp's; warp_k: which k16 row of a tile is its
    # first half's (its second half's is warps_k further); number: of the thread in the block
    Thread = lang.record("Thread", "warp_n warp_k lane number")

    # tiles [position, end) of the weight, counted down the columns; share: tiles of every stripe
    Stripe = lang.record("Stripe", "position end share")

    # a tile of C: the number of its column, its first row, how many of its rows the matrix has
    Tile = lang.record("Tile", "column row_first rows")

    # a slice: steps [first_step, end_step) along k of a tile of C; following: the position behind
    # its column; top, bottom: the blocks that have the column's first and last k tile
    WorkItem = lang.record("WorkItem", "tile first_step end_step following top bottom")

    # in global memory: addresses of this thread's next chunks of A and B; the scales; L2 policy
    Source = lang.record("Source", "pointers scales policy")

    # in shared memory: where it begins; this thread's chunk of any 4 KiB that the block copies with
    # one instruction; its chunk of an A tile, swizzled
    Shared = lang.record("Shared", "base own_chunk own_a_chunk")

    # in a lane's registers: a [half][m16 block][4] words, b and scales [half][4] words,
    # c [m16 block][n8 block][4] floats, the accumulators
    Fragments = lang.record("Fragments", "a b scales c")

    State = lang.record("State", "fragments source shared thread sizes")

    # division of the work

    @lang.device
    def tiles_of(size, tile):
        return (size + (tile - 1)) // tile

    @lang.device
    def own_thread():
        number = ptx.tid_x()
        warp = number // 32
        return Thread(warp % cfg.warps_n, warp // cfg.warps_n, number % 32, number)

    @lang.device
    def own_stripe(sizes):
        """The stripe of this block: as many tiles as every other's, or what is left."""
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        k_tiles, n_tiles = tiles_of(sizes.k, cfg.tile_k), tiles_of(sizes.n, cfg.tile_n)
        tiles = k_tiles * n_tiles * tiles_of(sizes.m, cfg.tile_m)
        share = (tiles + blocks - 1) // blocks
        if cfg.whole:
            share = (tiles // k_tiles + blocks - 1) // blocks * k_tiles
        position = block * share
        return Stripe(position, min(position + share, tiles), share)

    @lang.device
    def own_slice(position, stripe, sizes):
        """The slice that begins with tile number ``position`` of the stripe. Where m has more rows
        than a tile, the columns of the next rows follow those of the first."""
        k_tiles, n_tiles = tiles_of(sizes.k, cfg.tile_k), tiles_of(sizes.n, cfg.tile_n)
        column = position // k_tiles
        start = column * k_tiles
        row_first = column // n_tiles * cfg.tile_m
        tile = Tile(column % n_tiles, row_first, min(sizes.m - row_first, cfg.tile_m))
        end_step = min(stripe.end - start, k_tiles)
        top, bottom = start // stripe.share, (start + k_tiles - 1) // stripe.share
        return WorkItem(tile, position - start, end_step, start + k_tiles, top, bottom)

    @lang.device
    def slice_pointers(pointers, a, b, item, thread, sizes):
        """Where this thread's 16-byte chunks of the slice's first tile lie in global memory."""
        a_chunk = thread.number % cfg.a_row_chunks + item.first_step * cfg.a_row_chunks
        row = item.tile.row_first + thread.number // cfg.a_row_chunks
        pointers[NEXT_A] = a + uint64(row) * sizes.k * 2 + uint64(a_chunk) * CHUNK
        b_chunk = thread.number % cfg.b_row_chunks + item.tile.column * cfg.b_row_chunks
        k16_row = thread.number // cfg.b_row_chunks + item.first_step * cfg.thread_k_blocks
        pointers[NEXT_B] = b + uint64(k16_row) * sizes.n * 8 + uint64(b_chunk) * CHUNK

    # global to shared memory

    @lang.device
    def fetch_scales(state, column, stage, step, valid):
        """The scales of one tile. Two tiles may share a group and then fetch it twice (the second
        time from L2): the original lets them share a slot too, and refills it while a slow warp may
        still read it; results differed in one launch of some hundred.
        """
        thread, sizes = state.thread, state.sizes
        if thread.number < cfg.scale_chunks:
            group = thread.number // cfg.s_row_chunks
            if cfg.grouped:
                group += step * cfg.thread_k_blocks // cfg.group_blocks
            col = (column * cfg.s_row_chunks + thread.number % cfg.s_row_chunks) * 8
            if cfg.ragged:
                valid = valid and col < sizes.n
                if cfg.grouped:
                    valid = valid and group * (16 * cfg.group_blocks) < sizes.k
            ptx.cp_async_16_zfill(
                state.shared.own_chunk + cfg.scales_at + cfg.s_stage_bytes * stage,
                state.source.scales + (uint64(group) * sizes.n + col) * 2,
                CHUNK if valid else 0,
            )

    @lang.device
    def fetch_to_shared(state, item, stage, step):
        """Start copying the tile of one step into a stage of the ring: 16 bytes per thread and
        copy, or as many zeros where the tile leaves the matrix or the step lies past the end of the
        slice. (Zeros instead of a branch keep a whole stage one straight line of code.)
        """
        number, sizes = state.thread.number, state.sizes
        pointers = state.source.pointers
        active = step < item.end_step
        for i in range(cfg.a_copies):
            row = number // cfg.a_row_chunks + cfg.a_rows_per_copy * i
            valid = active and row < item.tile.rows
            if cfg.ragged:
                valid = valid and step * cfg.tile_k + number % cfg.a_row_chunks * 8 < sizes.k
            if cfg.tile_m % cfg.a_rows_per_copy == 0 or row < cfg.tile_m:
                ptx.cp_async_16_zfill(
                    state.shared.own_a_chunk + cfg.a_stage_bytes * stage + THREADS * CHUNK * i,
                    pointers[NEXT_A] + uint64(sizes.k) * (2 * cfg.a_rows_per_copy * i),
                    CHUNK if valid else 0,
                )
        pointers[NEXT_A] += cfg.a_row_chunks * CHUNK
        b_write = state.shared.own_chunk + cfg.b_at + cfg.b_stage_bytes * stage
        for i in range(HALVES):
            valid = active
            if cfg.ragged:
                k16_row = (
                    step * cfg.thread_k_blocks
                    + number // cfg.b_row_chunks
                    + cfg.b_rows_per_copy * i
                )
                col = (item.tile.column * cfg.b_row_chunks + number % cfg.b_row_chunks) * 2
                valid = valid and col < sizes.n and k16_row * 16 < sizes.k
            ptx.cp_async_16_zfill_hint(
                b_write + THREADS * CHUNK * i,
                pointers[NEXT_B] + uint64(sizes.n) * (8 * cfg.b_rows_per_copy * i),
                CHUNK if valid else 0,
                state.source.policy,
            )
        pointers[NEXT_B] += uint64(sizes.n) * (8 * cfg.thread_k_blocks)
        if cfg.grouped:
            fetch_scales(state, item.tile.column, stage, step, active)
        ptx.cp_async_commit_group()

    leave_in_flight = ptx.cp_async_wait_group(n=config.stages - 2)

    @lang.device
    def wait_for_stage():
        """Wait for the tile of the next step, and until the stage of the current one is free.

        Every step commits one group of copies, for the tile ``stages`` - 1 steps ahead (of zeros,
        past the end of the slice, so that the count holds to its last step). So
        ``stages`` - 1 groups are in flight here, those of the steps after the current one; waiting
        until ``stages`` - 2 are left means that the oldest, the next step's, has landed. The
        barrier makes it visible to all threads. It also says that every thread has read the current
        step's tile into its registers: the next step's ``fetch_to_shared`` overwrites that stage.
        """
        leave_in_flight()
        cuda.syncthreads()

    # shared memory to registers, and the multiply

    @lang.device
    def fetch_to_registers(state, stage, half):
        """Fragments of one of the warp's two k16 rows of a tile: ldmatrix undoes the swizzle; the
        weights and scales already lie in the order of the lanes."""
        fragments, shared, thread = state.fragments, state.shared, state.thread
        k_block = thread.warp_k + cfg.warps_k * half
        if cfg.grouped:
            group = k_block // cfg.group_blocks if cfg.groups_per_tile > 1 else 0
            s_chunk = group * cfg.s_row_chunks + thread.warp_n * 8 + thread.lane // 4
            s = ptx.ld_shared_v4_b32(
                shared.base + s_chunk * CHUNK + cfg.scales_at + cfg.s_stage_bytes * stage
            )
            for r in range(4):
                fragments.scales[half * 4 + r] = s[r]
        row = thread.lane % 16
        chunk = (k_block * 2 + thread.lane // 16) ^ (row % 8)
        a_read = shared.base + (row * cfg.a_row_chunks + chunk) * CHUNK + cfg.a_stage_bytes * stage
        for i in range(cfg.thread_m_blocks):
            x = ptx.ldmatrix_x4(a_read + 16 * i * cfg.a_row_chunks * CHUNK)
            for r in range(4):
                fragments.a[(half * cfg.thread_m_blocks + i) * 4 + r] = x[r]
        q = ptx.ld_shared_v4_b32(
            shared.own_chunk + cfg.b_at + cfg.b_stage_bytes * stage + THREADS * CHUNK * half
        )
        for r in range(4):
            fragments.b[half * 4 + r] = q[r]

    @lang.device
    def multiply(fragments, b, half, n8):
        """One n8 block of columns, all rows of the tile."""
        a, c = fragments.a, fragments.c
        for i in range(cfg.thread_m_blocks):
            x, o = (half * cfg.thread_m_blocks + i) * 4, (i * 8 + n8) * 4
            d = ptx.mma_m16n8k16_f32_f16(
                (a[x], a[x + 1], a[x + 2], a[x + 3]), b, (c[o], c[o + 1], c[o + 2], c[o + 3])
            )
            # written out: with a loop, CUDA 13.0 keeps the words' loop rolled for sm_120, and
            # c in local memory
            if cfg.thread_m_blocks == 3:
                c[o], c[o + 1], c[o + 2], c[o + 3] = d
            else:
                for r in range(4):
                    c[o + r] = d[r]

    @lang.device
    def matmul(fragments, half):
        """Four words of weights, 16 columns each. m is innermost: one word is spread while the last
        one multiplies.

        Nibble p of word j of lane 4 g + t is W[k, n] of the warp's 16 x 64 block at
        k = 2 t + p // 4 + 8 (p % 2), n = 16 j + g + 8 (p // 2 % 2). Nibbles 0, 4, 1, 5 are thus a B
        fragment of the first eight of the 16 columns, 2, 6, 3, 7 one of the other eight
        (``formats.marlin_order``). A word of scales has those of the two columns."""
        for j in range(4):
            word = fragments.b[half * 4 + j]
            first, second = numbers.dequantize(word), numbers.dequantize(word >> 8)
            if cfg.grouped:
                s = fragments.scales[half * 4 + j]
                first = numbers.scale_pair(first, ptx.both_low_f16x2(s))
                second = numbers.scale_pair(second, ptx.both_high_f16x2(s))
            multiply(fragments, first, half, 2 * j)
            multiply(fragments, second, half, 2 * j + 1)

    @lang.device
    def lap_done(state, item, step):
        pass

    def lap_from(stage):
        """-> device function: the main loop's steps from ``step``, whose tile is in ``stage``, to
        the end of a lap, which is the step in the ring's last stage, or to the slice's last. A lap
        is unrolled, so that every offset in shared memory is a constant. Each fetch, of fragments
        or of a tile, overlaps a multiplication."""
        rest = lap_from(stage + 1) if stage + 1 < config.stages else lap_done
        before, after = (stage - 1) % config.stages, (stage + 1) % config.stages

        @lang.device
        def lap(state, item, step):
            # half 0 of this step is in registers already
            fetch_to_registers(state, stage, 1)
            # the stage of the step before is free since that step's wait_for_stage
            fetch_to_shared(state, item, before, step + (cfg.stages - 1))
            wait_for_stage()
            matmul(state.fragments, 0)
            fetch_to_registers(state, after, 0)
            matmul(state.fragments, 1)
            if step + 1 < item.end_step:
                rest(state, item, step + 1)

        return lap

    lap = lap_from(0)

    # the kernel

    def ampere(a, b, c, scales, partials, locks, m, n, k):
        block, sizes, thread = uint32(cuda.blockIdx.x), Sizes(m, n, k), own_thread()
        policy = ptx.create_policy_evict_first()
        base = shared_base()
        # ptxas splits an address into a uniform and a per-thread register where it can, and
        # cp.async with both a uniform register and an L2 policy is an "illegal instruction" on
        # Hopper: what crashes the published kernel too. A shuffle with oneself hides the sum from
        # it.
        own_chunk = ptx.shfl_sync_idx(base + thread.number * CHUNK, thread.lane)
        row, chunk = thread.number // cfg.a_row_chunks, thread.number % cfg.a_row_chunks
        own_a_chunk = base + (row * cfg.a_row_chunks + (chunk ^ row % 8)) * CHUNK
        shared = Shared(base, own_chunk, own_a_chunk)
        pointers = cuda.local.array(2, uint64)
        source = Source(pointers, scales, policy)
        fragments = Fragments(
            cuda.local.array(cfg.a_fragment_words, uint32),
            cuda.local.array(cfg.b_fragment_words, uint32),
            cuda.local.array(cfg.s_fragment_words, uint32),
            cuda.local.array(cfg.c_fragment_floats, float32),
        )

        stripe = own_stripe(sizes)
        position = stripe.position
        while position < stripe.end:
            item = own_slice(position, stripe, sizes)
            state = State(fragments, source, shared, thread, sizes)
            slice_pointers(pointers, a, b, item, thread, sizes)
            for stage in range(cfg.stages - 1):
                fetch_to_shared(state, item, stage, item.first_step + stage)
            for i in range(cfg.c_fragment_floats):
                fragments.c[i] = float32(0)
            wait_for_stage()
            fetch_to_registers(state, 0, 0)
            step = item.first_step
            while step < item.end_step:
                lap(state, item, step)
                step += cfg.stages

            ptx.cp_async_wait_all()  # the zeros past the end
            cuda.syncthreads()
            # The thread's place and the same slice, worked out anew: what is derived from them then
            # need not stay in registers all through the main loop. The compiler would notice that
            # nothing has changed; opaque_u32 hides it.
            thread = own_thread()
            done = own_slice(ptx.opaque_u32(position), stripe, sizes)
            writes = block == done.top
            if not cfg.grouped and writes:
                epilogue = State(fragments, source, shared, thread, sizes)
                fetch_scales(epilogue, done.tile.column, 0, 0, True)
            output.thread_block_reduce(fragments.c, base, thread)
            if done.top != done.bottom:
                begins = block == done.bottom
                lock = locks + uint64(done.top) * 4
                # The bottom block has nothing to wait for. (A tile of 16 rows, 4096 x 4096 at
                # m = 1, is level with the CUDA original so, where it was 1% behind; larger tiles
                # gained nothing.)
                if cfg.thread_m_blocks > 1 or not begins:
                    output.barrier_acquire(lock, done.bottom - block, thread)
                partial = partials + uint64(done.top) * cfg.partial_bytes
                output.global_reduce(
                    fragments.c, partial, base, done.tile.rows, begins, writes, thread
                )
                output.barrier_release(lock, writes, thread)
            if writes:
                if not cfg.grouped:
                    ptx.cp_async_wait_all()
                    cuda.syncthreads()
                    output.scale_columns(fragments.c, fragments.scales, base, thread)
                output.write_result(c, fragments.c, base, done.tile, thread, sizes.n)
                cuda.syncthreads()  # no copy of the next slice over a result still being read
            position = item.following

    return ampere

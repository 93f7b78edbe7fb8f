"""The faithful Marlin kernel (Frantar et al., "MARLIN", 2024), verb for verb, in Python.

``C[m, n] = A[m, k] @ W[k, n]``. Parameters: raw addresses of a fp16 [m, k], b int32 [k/16, 2n] and
scales fp16 [groups, n], both in Marlin's order, c fp16 [m, n], partials fp32 and locks int32
(``workspace_bytes``; locks zero before, zero again after); then m, n, k, which come as int32 and
enter the record ``Sizes`` as unsigned 32-bit numbers (``lang`` calculates as C does:
``compiler.language``). k is a multiple of 16, n of 64, m any; with ``ragged=False`` k and n fill
whole tiles.

*Marlin's order.* ``matmul`` says which weight a nibble of b is. Scales of groups: inside 64 columns
number 8 g + i is column g + 8 i's. Per column: inside 32, 8 t + 2 r + e is column 8 r + 2 t + e's.

*Words.* A *block* is a thread block; an m16, n8 or k16 block is 16 rows of A and C, 8 columns of W
and C, 16 of k. A *k16 row* is 16 rows of W, one row of b. A *tile* is tile_k x tile_n of W, with
the tile_m x tile_k of A that it multiplies: one *step* of the main loop. A *tile column* is all
tiles along k, top to bottom, of one tile of C (tile_m x tile_n); tile columns are numbered along
n, and on from there for every further tile_m rows of A. A *column* is one column of a matrix.

In the order in which the kernel reads; ``config`` has the sizes, the map of shared memory and its
swizzle, ``output`` the epilogue, its locks and its barriers:

- *Stripes* (stream-K). All tiles, one tile column after the other, are cut into equal stripes, one
  per block, so that every SM gets the same work. The part of a stripe in one tile column is a
  *slice*: some steps for one tile of C. 3 x 3 tiles, five blocks, which block has which tile::

      0 1 3
      0 2 3       tile column 0: blocks 0 (top) and 1 (bottom) add up to one tile of C
      1 2 4       tile column 1: blocks 1 and 2; tile column 2: blocks 3 and 4
- *Pipeline.* A ring of ``stages`` tiles in shared memory, filled by ``cp.async``; B passes through
  L2 with ``evict_first``. ``wait_for_stage`` says what is where, and when.
- *XOR swizzle.* Chunk c (16 bytes) of row r of an A tile lies at chunk c ^ (r % 8).
- *Register double buffer.* A warp multiplies two k16 rows of a tile, its halves. While one
  multiplies, ``ldmatrix`` fetches the other.
- *Dequantise between the multiplies.* The integer units spread the next word while the tensor cores
  run ``mma.sync``.
- *Two reductions.* Warps that share columns add up in shared memory; blocks that share a tile of C
  add up one after the other, from the bottom of the tile column to its top, guarded by a lock: the
  order is fixed, so the same input gives the same bits.

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
    cfg = lang.constants(config)  # ``config`` as device functions can read it
    numbers, output = number_verbs(lang), output_verbs(lang, config)

    Sizes = lang.record("Sizes", "m n k")

    # warp_n: which 64 columns of the tile are the warp's; warp_k: which k16 row of a tile is its
    # first half's (its second half's is warps_k further); number: of the thread in the block
    Thread = lang.record("Thread", "warp_n warp_k lane number")

    # tiles [position, end), counted down the tile columns; share: tiles of every stripe
    Stripe = lang.record("Stripe", "position end share")

    # a tile of C: its number along n, its first row, how many of its rows the matrix has
    Tile = lang.record("Tile", "n_tile row_first rows")

    # a slice: steps [first_step, end_step) along k of a tile of C; following: the first position
    # behind its tile column; top, bottom: the blocks of the tile column's first and last tile
    WorkItem = lang.record("WorkItem", "tile first_step end_step following top bottom")

    # in global memory: addresses of this thread's chunks of A and B of the next tile to copy,
    # ``stages`` - 1 steps ahead of the one that multiplies; the scales; the L2 policy
    Source = lang.record("Source", "pointers scales policy")

    # in shared memory: where it begins; own_chunk: base + 16 * number, to which offsets of region,
    # stage and copy (256 threads x 16 bytes) are added; own_a_chunk: the same for A, swizzled
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
        """The stripe of this block: as many tiles as every other's, or what is left. Nothing may be
        left: the block then does nothing and touches no lock."""
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
        """The slice that begins with tile number ``position`` of the stripe."""
        k_tiles, n_tiles = tiles_of(sizes.k, cfg.tile_k), tiles_of(sizes.n, cfg.tile_n)
        tile_column = position // k_tiles
        start = tile_column * k_tiles
        row_first = tile_column // n_tiles * cfg.tile_m
        tile = Tile(tile_column % n_tiles, row_first, min(sizes.m - row_first, cfg.tile_m))
        end_step = min(stripe.end - start, k_tiles)
        top, bottom = start // stripe.share, (start + k_tiles - 1) // stripe.share
        return WorkItem(tile, position - start, end_step, start + k_tiles, top, bottom)

    @lang.device
    def slice_pointers(pointers, a, b, item, thread, sizes):
        """Where this thread's 16-byte chunks of the slice's first tile lie in global memory."""
        a_chunk = thread.number % cfg.a_row_chunks + item.first_step * cfg.a_row_chunks
        row = item.tile.row_first + thread.number // cfg.a_row_chunks
        pointers[NEXT_A] = a + uint64(row) * sizes.k * 2 + uint64(a_chunk) * CHUNK
        b_chunk = thread.number % cfg.b_row_chunks + item.tile.n_tile * cfg.b_row_chunks
        k16_row = thread.number // cfg.b_row_chunks + item.first_step * cfg.thread_k_blocks
        pointers[NEXT_B] = b + uint64(k16_row) * sizes.n * 8 + uint64(b_chunk) * CHUNK

    # global to shared memory

    @lang.device
    def fetch_scales(state, n_tile, stage, step, valid):
        """The scales of one tile, into the slot of its stage: refilled when the stage is. Tiles
        that share a group fetch it once each (from L2, after the first). The original lets such
        tiles share a slot, which it refills while a slow warp may still read it: the results of
        one launch in some hundred differed."""
        thread, sizes = state.thread, state.sizes
        if thread.number < cfg.scale_chunks:
            group = thread.number // cfg.s_row_chunks
            if cfg.grouped:
                group += step * cfg.thread_k_blocks // cfg.group_blocks
            col = (n_tile * cfg.s_row_chunks + thread.number % cfg.s_row_chunks) * 8
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
        slice: of size 0, cp.async reads nothing, wherever its source points (PTX ISA), and fills
        with zeros. (Zeros instead of a branch keep a whole stage one straight line of code.)
        """
        number, sizes = state.thread.number, state.sizes
        pointers = state.source.pointers
        active = step < item.end_step
        for i in range(cfg.a_copies):
            row = number // cfg.a_row_chunks + cfg.a_rows_per_copy * i
            valid = active and row < item.tile.rows
            if cfg.ragged:
                valid = valid and step * cfg.tile_k + number % cfg.a_row_chunks * 8 < sizes.k
            # one copy may have more rows than the tile: threads past tile_m copy nothing
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
                # 32 chunks hold 64 columns, 2 per chunk: exact where it matters, at multiples of 64
                col = (item.tile.n_tile * cfg.b_row_chunks + number % cfg.b_row_chunks) * 2
                valid = valid and col < sizes.n and k16_row * 16 < sizes.k
            ptx.cp_async_16_zfill_hint(
                b_write + THREADS * CHUNK * i,
                pointers[NEXT_B] + uint64(sizes.n) * (8 * cfg.b_rows_per_copy * i),
                CHUNK if valid else 0,
                state.source.policy,
            )
        pointers[NEXT_B] += uint64(sizes.n) * (8 * cfg.thread_k_blocks)
        if cfg.grouped:
            fetch_scales(state, item.tile.n_tile, stage, step, active)
        ptx.cp_async_commit_group()

    # an instruction, which waits until at most so many of the thread's groups are in flight
    wait_for_oldest_group = ptx.cp_async_wait_group(n=config.stages - 2)

    @lang.device
    def wait_for_stage():
        """Wait for the next step's tile, and until the stage of this step's is free. The tiles
        around step s, of S = ``stages``; read: by this thread; free: by all, to be overwritten::

            after               s - 1  s       s + 1      to s + S - 2  s + S - 1
            the step before     free   landed  in flight  in flight     -
            fetch_to_registers  free   read    in flight  in flight     -
            fetch_to_shared     -      read    in flight  in flight     in flight, S - 1 groups
            wait_for_stage      -      free    landed     in flight     in flight, S - 2 groups

        Tile s + S - 1 takes the stage of tile s - 1. Every step commits one group of copies (zeros,
        past the slice's end, so that the count holds to its last step). When only S - 2 of a
        thread's groups are left, its oldest, of tile s + 1, has landed; the barrier then says that
        everyone's have, and that everyone has read tile s.
        """
        wait_for_oldest_group()
        cuda.syncthreads()

    # shared memory to registers, and the multiply

    @lang.device
    def fetch_to_registers(state, stage, half):
        """Fragments of one of the warp's two k16 rows of a tile. Lane l addresses row l % 16 of an
        m16 block of A, the first eight of k or (l >= 16) the others; ldmatrix then undoes the
        swizzle. Weights and scales already lie in the order of the lanes (``config``)."""
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
            # Written out for 48 rows: with a loop, CUDA 13.0 keeps the words' loop rolled for
            # sm_120, and c in local memory (not so with 16, 32 or 64).
            if cfg.thread_m_blocks == 3:
                c[o], c[o + 1], c[o + 2], c[o + 3] = d
            else:
                for r in range(4):
                    c[o + r] = d[r]

    @lang.device
    def matmul(fragments, half):
        """Four words of weights, 16 columns each. m is innermost: one word is spread while the last
        one multiplies.

        Nibble p (bits 4 p to 4 p + 3) of word j of lane 4 g + t is W[k, n] of the warp's 16 x 64
        weights at k = 2 t + p // 4 + 8 (p % 2), n = 16 j + g + 8 (p // 2 % 2). Nibbles 0, 4, 1, 5
        are thus a B fragment of the first n8 block of the word's two, 2, 6, 3, 7 of the other
        (``formats.marlin_order``). ``dequantize`` makes fp16 pairs (0, 4) and (1, 5), code - 8,
        exactly; the scale is one fp16 multiplication. A word of scales holds those of column g of
        the two n8 blocks."""
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
        """-> device function: the steps from ``step``, whose tile is in ``stage``, to the one in
        the ring's last stage, or to the slice's last. Every slice begins at stage 0, so lap_from(0)
        is a lap of the ring: ``stages`` steps, each called by the one before and all inlined, so
        that every offset in shared memory is a constant.

        A copy from global memory overlaps the multiplications of ``stages`` - 2 steps, this one's
        first; the fetch of half 1 (before its stage is given away), what the tensor cores still
        have to do of the step before; that of the next tile's half 0, the multiply of half 1."""
        rest = lap_from(stage + 1) if stage + 1 < config.stages else lap_done
        before, after = (stage - 1) % config.stages, (stage + 1) % config.stages

        @lang.device
        def lap(state, item, step):
            # half 0 of this step is in registers already
            fetch_to_registers(state, stage, 1)
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
        # ptxas splits an address into a uniform and a per-thread register where it can. cp.async
        # with such an address and an L2 policy (B's) is an "illegal instruction" on Hopper: what
        # crashes the published kernel too. A shuffle with oneself hides the sum from ptxas.
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

            # zeros fetched past the slice's end would land on the sums that now replace A and B
            ptx.cp_async_wait_all()
            cuda.syncthreads()
            # The thread's place and the same slice, worked out anew, so that nothing derived from
            # them stays in registers all through the main loop. The compiler would see that it is
            # the same; but tid_x is volatile, it is read again, and so is opaque_u32, a move.
            thread = own_thread()
            done = own_slice(ptx.opaque_u32(position), stripe, sizes)
            writes = block == done.top
            if not cfg.grouped and writes:
                epilogue = State(fragments, source, shared, thread, sizes)
                fetch_scales(epilogue, done.tile.n_tile, 0, 0, True)
            output.thread_block_reduce(fragments.c, base, thread)
            if done.top != done.bottom:
                begins = block == done.bottom
                lock = locks + uint64(done.top) * 4
                # The bottom block need not wait. (A tile of 16 rows, 4096 x 4096 at m = 1, is level
                # with the CUDA original so, where it was 1% behind; larger tiles gained nothing.)
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

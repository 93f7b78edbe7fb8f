"""Rung 3: the faithful Marlin kernel (Frantar et al., "MARLIN", 2024), verb for verb, in Python.

``C[m, n] = A[m, k] @ W[k, n]``; parameters (raw addresses): a fp16 [m, k], b int32 [k/16, 2n] and
scales fp16 [groups, n] in Marlin's order, c fp16 [m, n], partials fp32 and locks int32
(``workspace_bytes``; locks zero before, zero again after), m, n, k as int32. k is a multiple of 16,
n of 64, m any; with ``ragged=False`` k and n fill whole tiles.

The sizes are in ``ampere_config``, the way of the sums out of the registers in ``ampere_output``.
The ideas, in the order in which the kernel reads:
- *Stripes.* The tiles of all column slices, one slice after the other, are cut into equal stripes,
  one a block: every SM gets the same work and few slices are shared between blocks
  (``layout.stripes`` is the executable picture).
- *Pipeline.* ``cp.async`` keeps ``stages`` - 1 tiles of A, B and scales in flight; B passes through
  L2 with ``evict_first``.
- *XOR swizzle.* Chunk c of row r of an A tile lies at chunk c ^ (r % 8): writes and ``ldmatrix``
  reads touch every bank once.
- *Register double buffer.* While one k16 step multiplies, ``ldmatrix`` fetches the next.
- *Dequantise between the multiplies.* The integer units spread the next word while the tensor cores
  run ``mma.sync``.
- *Two reductions.* Warps that share columns add up in shared memory; blocks that share a slice add
  up one after the other, bottom to top, guarded by a lock: the order is fixed, so the same input
  gives the same bits.

Better than the original: partial sums between blocks stay fp32, in a workspace that depends on the
grid and not on the problem; per-column scales multiply the fp32 sum before the cast; tails of m, n
and k are zero-filled copies inside one launch; a barrier keeps the next slice's copies off the
result still being written out.
"""

from numba_marlin.kernels.ampere.config import CHUNK, STEPS, THREADS
from numba_marlin.kernels.ampere.output import output_verbs
from numba_marlin.kernels.dequantize.verbs import number_verbs
from numba_marlin.kernels.language.definition import ceil_div


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    shared_base = lang.shared_base
    verbs = number_verbs(lang)
    dequantize, scale_pair = verbs.dequantize, verbs.scale_pair
    output = output_verbs(lang, config)
    thread_block_reduce, barrier_acquire, barrier_release = (
        output.thread_block_reduce,
        output.barrier_acquire,
        output.barrier_release,
    )
    global_reduce, scale_columns, write_result = (
        output.global_reduce,
        output.scale_columns,
        output.write_result,
    )
    wait_for_copies = ptx.cp_async_wait_group(n=config.stages - 2)

    M_BLOCKS, N_BLOCKS, K_BLOCKS = (
        config.thread_m_blocks,
        config.thread_n_blocks,
        config.thread_k_blocks,
    )
    STAGES, WARPS_N, WARPS_K, WHOLE = config.stages, config.warps_n, config.warps_k, config.whole
    grouped, ragged = config.grouped, config.ragged
    GROUP_BLOCKS, GROUPS_PER_TILE = config.group_blocks, config.groups_per_tile
    TILE_ROWS = 16 * M_BLOCKS
    A_ROW_CHUNKS, A_STAGE = config.a_row_chunks, config.a_stage_bytes
    A_ROWS_PER_COPY = THREADS // A_ROW_CHUNKS
    A_COPIES = ceil_div(TILE_ROWS, A_ROWS_PER_COPY)
    B_ROW_CHUNKS, B_STAGE = config.b_row_chunks, config.b_stage_bytes
    B_ROWS_PER_COPY = THREADS // B_ROW_CHUNKS
    S_ROW_CHUNKS, S_STAGE = config.s_row_chunks, config.s_stage_bytes
    S_CHUNKS = GROUPS_PER_TILE * S_ROW_CHUNKS
    B_SHARED, S_SHARED = STAGES * A_STAGE, config.shared_bytes - STAGES * S_STAGE
    PARTIAL_BYTES = config.partial_bytes
    FRAG_A, FRAG_B, FRAG_C, FRAG_S = STEPS * M_BLOCKS * 4, STEPS * 4, M_BLOCKS * 32, 8
    POINTERS, POINTER_A, POINTER_B = 2, 0, 1

    # ---- slices ----

    @lang.device
    def own_place():
        """(warp_n, warp_k, lane, thread), read anew: what is derived from it then need not stay in
        registers all through the main loop."""
        thread = ptx.tid_x()
        warp = uint32(thread // uint32(32))
        return (
            uint32(warp % uint32(WARPS_N)),
            uint32(warp // uint32(WARPS_N)),
            uint32(thread % uint32(32)),
            thread,
        )

    @lang.device
    def own_slice(position, share, m, n, k):
        """The slice in which tile number `position` lies: (first tile's number, slice column, first
        row, rows), and of the blocks that share it those of its top and its bottom tile."""
        k_tiles = uint32((k + uint32(16 * K_BLOCKS - 1)) // uint32(16 * K_BLOCKS))
        n_tiles = uint32((n + uint32(16 * N_BLOCKS - 1)) // uint32(16 * N_BLOCKS))
        index = uint32(position // k_tiles)
        first = uint32(index * k_tiles)
        row_first = uint32(index // n_tiles * uint32(TILE_ROWS))
        rows = uint32(min(uint32(m - row_first), uint32(TILE_ROWS)))
        top = uint32(first // share)
        bottom = uint32(uint32(first + k_tiles - uint32(1)) // share)
        return first, uint32(index % n_tiles), row_first, rows, top, bottom

    @lang.device
    def slice_pointers(pointers, a, b, slice_row, slice_col, row_first, place, problem):
        """Where this thread's 16-byte chunks of the slice's first tile lie in global memory."""
        thread = place[3]
        n, k = problem
        a_chunk = thread % uint32(A_ROW_CHUNKS) + slice_row * uint32(A_ROW_CHUNKS)
        row = row_first + thread // uint32(A_ROW_CHUNKS)
        pointers[POINTER_A] = (
            a + uint64(row) * uint64(k) * uint64(2) + uint64(a_chunk) * uint64(CHUNK)
        )
        b_chunk = thread % uint32(B_ROW_CHUNKS) + slice_col * uint32(B_ROW_CHUNKS)
        k_row = thread // uint32(B_ROW_CHUNKS) + slice_row * uint32(K_BLOCKS)
        pointers[POINTER_B] = (
            b + uint64(k_row) * uint64(n) * uint64(8) + uint64(b_chunk) * uint64(CHUNK)
        )

    # ---- global to shared ----

    @lang.device
    def fetch_scales(scales, own_chunk, stage, tile, slice_col, valid, place, problem):
        """The scales of one tile. Two tiles may share a group and then fetch it twice (the second
        time from L2): the original lets them share a slot too, and refills it while a slow warp may
        still read it; results differed in one launch of some hundred.
        """
        thread = place[3]
        n, k = problem
        if thread < uint32(S_CHUNKS):
            group = thread // uint32(S_ROW_CHUNKS)
            if grouped:
                group += tile * uint32(K_BLOCKS) // uint32(GROUP_BLOCKS)
            col = (slice_col * uint32(S_ROW_CHUNKS) + thread % uint32(S_ROW_CHUNKS)) * uint32(8)
            if ragged:
                valid = valid and uint32(col) < n
                if grouped:
                    valid = valid and uint32(group * uint32(16 * GROUP_BLOCKS)) < k
            pointer = scales + (uint64(group) * uint64(n) + uint64(col)) * uint64(2)
            ptx.cp_async_16_zfill(
                own_chunk + uint32(S_SHARED) + uint32(S_STAGE) * uint32(stage),
                pointer,
                uint32(CHUNK) if valid else uint32(0),
            )

    @lang.device
    def fetch_to_shared(
        pointers,
        scales,
        own_chunk,
        a_write,
        stage,
        tile,
        tile_end,
        slice_col,
        rows,
        policy,
        place,
        problem,
    ):
        """Start copying tile number `tile` of the slice's column into a stage of the pipeline: 16
        bytes, or as many zeros where the tile leaves the matrix or lies past the end of the slice.
        (Zeros instead of a branch keep a whole stage one straight line of code.)
        """
        thread = place[3]
        n, k = problem
        active = uint32(tile) < tile_end
        for i in range(A_COPIES):
            row = uint32(thread // uint32(A_ROW_CHUNKS) + uint32(A_ROWS_PER_COPY * i))
            valid = active and row < rows
            if ragged:
                valid = (
                    valid
                    and uint32(
                        tile * uint32(K_BLOCKS * 16) + thread % uint32(A_ROW_CHUNKS) * uint32(8)
                    )
                    < k
                )
            if TILE_ROWS % A_ROWS_PER_COPY == 0 or row < uint32(TILE_ROWS):
                pointer = pointers[POINTER_A] + uint64(k) * uint64(2 * A_ROWS_PER_COPY * i)
                ptx.cp_async_16_zfill(
                    a_write + uint32(A_STAGE) * uint32(stage) + uint32(THREADS * CHUNK * i),
                    pointer,
                    uint32(CHUNK) if valid else uint32(0),
                )
        pointers[POINTER_A] += uint64(A_ROW_CHUNKS * CHUNK)
        b_write = own_chunk + uint32(B_SHARED) + uint32(B_STAGE) * uint32(stage)
        for i in range(STEPS):
            valid = active
            if ragged:
                k_row = (
                    tile * uint32(K_BLOCKS)
                    + thread // uint32(B_ROW_CHUNKS)
                    + uint32(B_ROWS_PER_COPY * i)
                )
                col = (slice_col * uint32(B_ROW_CHUNKS) + thread % uint32(B_ROW_CHUNKS)) * uint32(2)
                valid = valid and uint32(col) < n and uint32(k_row * uint32(16)) < k
            pointer = pointers[POINTER_B] + uint64(n) * uint64(8 * B_ROWS_PER_COPY * i)
            ptx.cp_async_16_zfill_hint(
                b_write + uint32(THREADS * CHUNK * i),
                pointer,
                uint32(CHUNK) if valid else uint32(0),
                policy,
            )
        pointers[POINTER_B] += uint64(n) * uint64(8 * K_BLOCKS)
        if grouped:
            fetch_scales(scales, own_chunk, stage, tile, slice_col, active, place, problem)
        ptx.cp_async_commit_group()

    @lang.device
    def wait_for_stage():
        """The oldest copies still in flight have landed, for every thread; and every thread is done
        with the tile before."""
        wait_for_copies()
        cuda.syncthreads()

    # ---- shared to registers, and the multiply ----

    @lang.device
    def fetch_to_registers(registers, shared, own_chunk, stage, step, place):
        """Fragments of one k16 step: ldmatrix undoes the swizzle; the weights and scales already
        lie in the order of the lanes."""
        frag_a, frag_b, frag_s, frag_c = registers
        warp_n, warp_k, lane, thread = place
        k_block = warp_k + uint32(WARPS_K * step)
        if grouped:
            group = k_block // uint32(GROUP_BLOCKS) if GROUPS_PER_TILE > 1 else uint32(0)
            s_chunk = group * uint32(S_ROW_CHUNKS) + warp_n * uint32(8) + lane // uint32(4)
            s = ptx.ld_shared_v4_b32(
                shared
                + s_chunk * uint32(CHUNK)
                + uint32(S_SHARED)
                + uint32(S_STAGE) * uint32(stage)
            )
            for r in range(4):
                frag_s[step * 4 + r] = s[r]
        row = lane % uint32(16)
        chunk = (k_block * uint32(2) + lane // uint32(16)) ^ (row % uint32(8))
        a_read = (
            shared
            + (row * uint32(A_ROW_CHUNKS) + chunk) * uint32(CHUNK)
            + uint32(A_STAGE) * uint32(stage)
        )
        for i in range(M_BLOCKS):
            x = ptx.ldmatrix_x4(a_read + uint32(16 * i * A_ROW_CHUNKS * CHUNK))
            for r in range(4):
                frag_a[(step * M_BLOCKS + i) * 4 + r] = x[r]
        q = ptx.ld_shared_v4_b32(
            own_chunk
            + uint32(B_SHARED)
            + uint32(B_STAGE) * uint32(stage)
            + uint32(THREADS * CHUNK * step)
        )
        for r in range(4):
            frag_b[step * 4 + r] = q[r]

    @lang.device
    def multiply(registers, b, step, n8):
        frag_a, frag_b, frag_s, frag_c = registers
        for i in range(M_BLOCKS):
            x, o = (step * M_BLOCKS + i) * 4, (i * 8 + n8) * 4
            d = ptx.mma_m16n8k16_f32_f16(
                (frag_a[x], frag_a[x + 1], frag_a[x + 2], frag_a[x + 3]),
                b,
                (frag_c[o], frag_c[o + 1], frag_c[o + 2], frag_c[o + 3]),
            )
            # written out: with a loop, CUDA 13.0 keeps the words' loop rolled for sm_120, and
            # frag_c in local memory
            if M_BLOCKS == 3:
                frag_c[o], frag_c[o + 1], frag_c[o + 2], frag_c[o + 3] = d
            else:
                for r in range(4):
                    frag_c[o + r] = d[r]

    @lang.device
    def matmul(registers, step):
        """Four words of weights, 16 columns each. m innermost: one word is spread while the last
        one multiplies."""
        frag_a, frag_b, frag_s, frag_c = registers
        for j in range(4):
            word = frag_b[step * 4 + j]
            b0 = dequantize(word)
            b1 = dequantize(word >> uint32(8))
            if grouped:
                s = frag_s[step * 4 + j]
                b0 = scale_pair(b0, ptx.both_low_f16x2(s))
                b1 = scale_pair(b1, ptx.both_high_f16x2(s))
            multiply(registers, b0, step, 2 * j)
            multiply(registers, b1, step, 2 * j + 1)

    @lang.device
    def round_done(
        registers,
        pointers,
        scales,
        shared,
        own_chunk,
        a_write,
        tile,
        tile_end,
        slice_col,
        rows,
        policy,
        place,
        problem,
    ):
        pass

    def round_from(stage):
        """Verb for the tiles from `stage` to the last stage of the pipeline: unrolled, so that
        every shared-memory offset is a constant."""
        rest = round_from(stage + 1) if stage + 1 < STAGES else round_done

        @lang.device
        def round_of_tiles(
            registers,
            pointers,
            scales,
            shared,
            own_chunk,
            a_write,
            tile,
            tile_end,
            slice_col,
            rows,
            policy,
            place,
            problem,
        ):
            fetch_to_registers(registers, shared, own_chunk, stage, 1, place)
            fetch_to_shared(
                pointers,
                scales,
                own_chunk,
                a_write,
                (stage + STAGES - 1) % STAGES,
                tile + uint32(STAGES - 1),
                tile_end,
                slice_col,
                rows,
                policy,
                place,
                problem,
            )
            wait_for_stage()
            matmul(registers, 0)
            fetch_to_registers(registers, shared, own_chunk, (stage + 1) % STAGES, 0, place)
            matmul(registers, 1)
            following = uint32(tile + uint32(1))
            if following < tile_end:
                rest(
                    registers,
                    pointers,
                    scales,
                    shared,
                    own_chunk,
                    a_write,
                    following,
                    tile_end,
                    slice_col,
                    rows,
                    policy,
                    place,
                    problem,
                )

        return round_of_tiles

    # ---- the kernel ----

    round_of_tiles = round_from(0)

    def ampere(a, b, c, scales, partials, locks, m, n, k):
        block, blocks = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x)
        place = own_place()
        lane, thread = place[2], place[3]
        problem = (uint32(n), uint32(k))
        policy = ptx.create_policy_evict_first()
        shared = shared_base()
        # ptxas splits an address into a uniform and a per-thread register where it can, and
        # cp.async with both a uniform register and an L2 policy is an "illegal instruction" on
        # Hopper: what crashes the published kernel too. A shuffle with oneself hides the sum from
        # it.
        own_chunk = ptx.shfl_sync_idx(shared + thread * uint32(CHUNK), lane)
        a_row, a_chunk = thread // uint32(A_ROW_CHUNKS), thread % uint32(A_ROW_CHUNKS)
        a_write = shared + (
            a_row * uint32(A_ROW_CHUNKS) + (a_chunk ^ (a_row % uint32(8)))
        ) * uint32(CHUNK)

        # The stripe of this block: `share` consecutive tiles, counted down a column slice, then on
        # to the next slice.
        k_tiles = uint32((uint32(k) + uint32(16 * K_BLOCKS - 1)) // uint32(16 * K_BLOCKS))
        n_tiles = uint32((uint32(n) + uint32(16 * N_BLOCKS - 1)) // uint32(16 * N_BLOCKS))
        tiles = uint32(
            k_tiles * n_tiles * ((uint32(m) + uint32(TILE_ROWS - 1)) // uint32(TILE_ROWS))
        )
        share = uint32(uint32(tiles + blocks - uint32(1)) // blocks)
        if WHOLE:
            share = uint32(
                uint32(uint32(tiles // k_tiles) + blocks - uint32(1)) // blocks * k_tiles
            )
        position = uint32(block * share)
        end = uint32(min(uint32(position + share), tiles))

        registers = (
            cuda.local.array(FRAG_A, uint32),
            cuda.local.array(FRAG_B, uint32),
            cuda.local.array(FRAG_S, uint32),
            cuda.local.array(FRAG_C, float32),
        )
        frag_a, frag_b, frag_s, frag_c = registers
        pointers = cuda.local.array(POINTERS, uint64)

        while position < end:
            # One slice: the tiles of one column from slice_row on. Blocks that share it take turns
            # from the bottom (turn 0) to the top.
            first, slice_col, row_first, rows, top, bottom = own_slice(
                position, share, uint32(m), uint32(n), uint32(k)
            )
            slice_row = uint32(position - first)
            tile_end = uint32(min(uint32(end - first), k_tiles))

            slice_pointers(pointers, a, b, slice_row, slice_col, row_first, place, problem)
            for stage in range(STAGES - 1):
                fetch_to_shared(
                    pointers,
                    scales,
                    own_chunk,
                    a_write,
                    stage,
                    slice_row + uint32(stage),
                    tile_end,
                    slice_col,
                    rows,
                    policy,
                    place,
                    problem,
                )
            for i in range(FRAG_C):
                frag_c[i] = float32(0)
            wait_for_stage()
            fetch_to_registers(registers, shared, own_chunk, 0, 0, place)
            tile = slice_row
            while tile < tile_end:
                round_of_tiles(
                    registers,
                    pointers,
                    scales,
                    shared,
                    own_chunk,
                    a_write,
                    tile,
                    tile_end,
                    slice_col,
                    rows,
                    policy,
                    place,
                    problem,
                )
                tile = uint32(tile + uint32(STAGES))

            ptx.cp_async_wait_all()  # the zeros past the end
            cuda.syncthreads()
            place = own_place()
            first, slice_col, row_first, rows, top, bottom = own_slice(
                ptx.opaque_u32(position), share, uint32(m), uint32(n), uint32(k)
            )
            last = block == top
            if not grouped and last:
                fetch_scales(scales, own_chunk, 0, uint32(0), slice_col, True, place, problem)
            thread_block_reduce(frag_c, shared, place)
            if top != bottom:
                lock = locks + uint64(top) * uint64(4)
                # The bottom block has nobody to wait for. (A tile of 16 rows, 4096 x 4096 at m = 1,
                # is level with the CUDA original so, where it was 1% behind; larger tiles gained
                # nothing.)
                if M_BLOCKS > 1 or block != bottom:
                    barrier_acquire(lock, uint32(bottom - block), place)
                global_reduce(
                    frag_c,
                    partials + uint64(top) * uint64(PARTIAL_BYTES),
                    shared,
                    rows,
                    block == bottom,
                    last,
                    place,
                )
                barrier_release(lock, last, place)
            if last:
                if not grouped:
                    ptx.cp_async_wait_all()
                    cuda.syncthreads()
                    scale_columns(frag_c, frag_s, shared, place)
                write_result(c, frag_c, shared, row_first, rows, slice_col, place, uint32(n))
                cuda.syncthreads()  # nobody may copy the next slice over a result still being read
            position = uint32(first + k_tiles)

    return ampere

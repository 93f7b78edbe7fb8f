"""Rung 4: Marlin itself (Frantar et al., "MARLIN", 2024), function by function, in Python. On an
H200 10.0 us, where rung 3 takes 79 (16 rows of A, 4096 x 4096 weights; with 64 rows 16.5 and 84;
experiments/18_ladder).

**The idea.** With few rows of A the product takes no longer than reading W, if every SM reads all
the time. So *stream-K* gives each block the same number of tiles, whatever the shape; a ring of
``stages`` tiles (two in rung 3), filled by ``cp.async``, keeps ``stages`` - 1 of them on their way;
and what is done with a tile (load fragments, dequantise, multiply) overlaps copies of the next.

**Parameters.** ``C[m, n] = A[m, k] @ W[k, n]``. Raw addresses, 16-byte aligned, then sizes:

a, c       fp16 [m, k] and [m, n]
b          4-bit codes of W, int32 [k / 16, 2 n], in Marlin's order; a weight is (code - 8) * scale
scales     fp16 [groups, n], in Marlin's order
partials   fp32 [blocks][tile_m * tile_n]: sums on their way between blocks
locks      int32 [blocks], zero before the launch and zero again after
m, n, k    int32; unsigned in ``Sizes`` (integers calculate as in C: ``compiler.language``)

**Words.** A *block* is a thread block; an m16, n8 or k16 block is 16 rows of A and C, 8 columns of
W and C, 16 of k. A *k16 row* is 16 rows of W, one row of b. A *chunk* is 16 bytes. Lane 4 g + t:
g = 0 .. 7 and t = 0 .. 3 stand for lane // 4 and lane % 4 everywhere. A *tile* is tile_k x tile_n
of W, with the tile_m x tile_k of A that it multiplies. All tiles along k of one *output tile*
(tile_m x tile_n of C) are a *tile column*. The main loop multiplies a tile per *step*, and steps
have the numbers of their tiles: 0 is the tile column's top, k = 0, whoever has it. A *scale group*
is the weights of a column that share a scale, a *copy group* what a thread copies between two
``cp.async.commit_group``. Functions ``..._verbs`` make the device functions of a module. Names of
modules: without a dot those of this folder, with a dot those of ``numba_marlin``.

**Who does what.** Blocks share all tiles in equal *stripes*; the part of a stripe in one tile
column is a *slice* (``schedule``, with a drawing). A block's 256 threads all copy, and its 8 warps
all multiply: warp w has 64 columns, number warp_n = w % warps_n of the tile, all its rows of A, and
two of its k16 rows, the *halves* of a double buffer in registers: half h = 0, 1 is k16 row warp_k +
warps_k * h, warp_k = w // warps_n. So 2 x 4 warps (n x k) share a tile of 128 columns and 128 of k,
4 x 2 one of 256 columns and 64 of k.

**Where it says what.** Shared memory (map, sizes, shapes, the swizzle, why banks do not conflict):
``config``. What is in flight, and what guards a stage: ``wait_for_stage``. The order in a step, and
what overlaps: ``lap_from``. Which k and n a nibble holds: ``matmul``. How many stages, and why:
``AmpereConfig.stages``.

**Scales.** W[k, n] belongs to scale group k // (16 group_blocks). Inside 64 columns of a row of
scales, number 8 g + i is the scale of column g + 8 i (i = 0 .. 7), so lanes 4 g to 4 g + 3 read
their columns' as one chunk. They are copied with their tile, and multiply dequantised weights, in
fp16. Per column (group_blocks = -1) there is one row, and inside 32 columns number 8 t + 2 r + e is
the scale of column 8 r + 2 t + e (r = 0 .. 3, e = 0, 1): those of the accumulators of lane 4 g + t
are a chunk. They are copied after the main loop, by the block that writes the output tile, and
multiply its fp32 sums.

**Reductions** (``output``). A warp's accumulators add up its k16 rows, step by step. Warps with the
same columns then add up in shared memory, and blocks that share an output tile add up in global
memory, one after the other, from the bottom of the tile column to its top, guarded by a lock. The
order depends on m, n, k, the configuration and the number of SMs, never on time: on one device the
same input gives the same bits. The top block writes C (``output.write_result``).

**Tails.** m is any: rows of A past it arrive as zeros and are not written to C. k is a multiple of
16 and n of 64 (the host checks: ``formats.marlin``, ``kernels.language.definition.Takes``); with
``ragged`` what lies past k or n arrives as zeros and is not written, and with ``ragged=False`` k
and n must fill whole tiles (``choose.check``). Sums of what is past m or n are zeros, added up and
handed on like others; only lanes none of whose rows exist hand nothing on (``global_reduce``).

**What lives through the main loop**, in each thread:

==================== ============================================================================
step                 number of the tile that is multiplied, in its tile column
slice_               .end_step: the step at which to stop; .output_tile: what bounds copies need
pointers             byte addresses of its first chunks, of A and of B, of tile step + stages - 1,
                     the next one to copy
fragments            see ``Fragments``; c, the sums, is set to zero with each slice
position, stripe     the slice's first tile, and .end of the stripe: numbers of tiles in the launch
the rest             does not change: ``Source`` (but for pointers), ``Shared``, ``Thread``,
                     ``Sizes``
==================== ============================================================================

The stage is no variable, but a constant of each copy of the loop's body (``lap_from``).

Better than the original: sums between blocks stay fp32, in a workspace that depends on the grid and
not on the problem; per-column scales multiply the fp32 sum before the cast; tails of m, n and k are
zero-filled copies inside one launch; a barrier keeps the next slice's copies off the result still
being written out.
"""

from numba_marlin.kernels.ampere.config import CHUNK, THREADS
from numba_marlin.kernels.ampere.load import load_verbs
from numba_marlin.kernels.ampere.output import output_verbs
from numba_marlin.kernels.ampere.schedule import schedule_verbs
from numba_marlin.kernels.dequantize.verbs import number_verbs


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    cfg = lang.constants(config)  # ``config`` as device functions can read it
    schedule, load = schedule_verbs(lang, config), load_verbs(lang, config)
    numbers, output = number_verbs(lang), output_verbs(lang, config)

    # warp_n, warp_k: the warp's place, see above; number: of the thread in the block
    Thread = lang.record("Thread", "warp_n warp_k lane number")

    # in global memory. pointers: [NEXT_A], [NEXT_B] (``load``); scales: address of the first;
    # policy: evict_first, for all of B in L2
    Source = lang.record("Source", "pointers scales policy")

    # in shared memory, addresses. base: where it begins; own_chunk: base + 16 * number, to which
    # offsets of region, stage and copy (256 threads x 16 bytes) are added; own_a_chunk: the same
    # for A, swizzled
    Shared = lang.record("Shared", "base own_chunk own_a_chunk")

    # in a lane's registers: a [half][m16 block][4] words, weights and scales [half][4] words,
    # c [m16 block][n8 block][4] floats, the accumulators
    Fragments = lang.record("Fragments", "a weights scales c")
    State = lang.record("State", "fragments source shared thread sizes")

    @lang.device
    def own_thread():
        number = ptx.tid_x()
        warp = number // 32
        return Thread(warp % cfg.warps_n, warp // cfg.warps_n, number % 32, number)

    # an instruction, which waits until at most so many of the thread's copy groups are in flight
    wait_for_oldest_copy_group = ptx.cp_async_wait_group(n=config.stages - 2)

    @lang.device
    def wait_for_stage():
        """Wait for the next step's tile, and until this step's stage may be overwritten. The tiles
        around step s, of S = ``stages``, after each call of the step, in order (``lap_from``)::

            tile                s - 1  s       s + 1      s + 2 .. s + S - 2  s + S - 1
            end of step s - 1   free   landed  in flight  in flight           -
            fetch_to_registers  free   read    in flight  in flight           -
            fetch_to_shared     -      read    in flight  in flight           in flight
            wait_for_stage      -      free    landed     in flight           in flight

        *read*: this thread has all it needs in registers; *free*: every thread has. Tile s + S - 1
        takes the stage of tile s - 1, free since the barrier of step s - 1. Every step commits one
        copy group (zeros past the slice's end, so that the count holds to its last step), so
        fetch_to_shared leaves S - 1 in flight. When only S - 2 of a thread's are left, its oldest,
        of tile s + 1, has landed; the barrier then says that everyone's have, and that everyone has
        read tile s. (For S = 3 there are no tiles s + 2 .. s + S - 2.)

        Before the main loop this ends a step first_step - 1 that multiplies nothing: the S - 1
        tiles from first_step on have been issued, and the first of them is waited for."""
        wait_for_oldest_copy_group()
        cuda.syncthreads()

    # shared memory to registers, and the multiply

    @lang.device
    def fetch_to_registers(state, stage, half):
        """Fragments of one half. For ``ldmatrix`` lane l gives the address of row l % 16 of an m16
        block of A, the first eight of k or (l >= 16) the others: the XOR finds the swizzled chunk.
        Weights and scales already lie in the order of the lanes (``config``)."""
        fragments, shared, thread = state.fragments, state.shared, state.thread
        k_block = thread.warp_k + cfg.warps_k * half
        if cfg.grouped:
            scale_group = k_block // cfg.group_blocks if cfg.groups_per_tile > 1 else 0
            s_chunk = scale_group * cfg.s_row_chunks + thread.warp_n * 8 + thread.lane // 4
            scale_words = ptx.ld_shared_v4_b32(
                shared.base + s_chunk * CHUNK + cfg.scales_at + cfg.s_stage_bytes * stage
            )
            for r in range(4):
                fragments.scales[half * 4 + r] = scale_words[r]
        row = thread.lane % 16
        chunk = (k_block * 2 + thread.lane // 16) ^ (row % 8)
        a_read = shared.base + (row * cfg.a_row_chunks + chunk) * CHUNK + cfg.a_stage_bytes * stage
        for i in range(cfg.thread_m_blocks):
            a_words = ptx.ldmatrix_x4(a_read + 16 * i * cfg.a_row_chunks * CHUNK)
            for r in range(4):
                fragments.a[(half * cfg.thread_m_blocks + i) * 4 + r] = a_words[r]
        weight_words = ptx.ld_shared_v4_b32(
            shared.own_chunk + cfg.b_at + cfg.b_stage_bytes * stage + THREADS * CHUNK * half
        )
        for r in range(4):
            fragments.weights[half * 4 + r] = weight_words[r]

    @lang.device
    def multiply(fragments, b_fragment, half, n8):
        """A k16 row of one n8 block, all rows of the tile. b_fragment: a pair of registers."""
        a, c = fragments.a, fragments.c
        for i in range(cfg.thread_m_blocks):
            a_at, c_at = (half * cfg.thread_m_blocks + i) * 4, (i * 8 + n8) * 4
            sums = ptx.mma_m16n8k16_f32_f16(
                (a[a_at], a[a_at + 1], a[a_at + 2], a[a_at + 3]),
                b_fragment,
                (c[c_at], c[c_at + 1], c[c_at + 2], c[c_at + 3]),
            )
            # Written out for 48 rows: with a loop, CUDA 13.0 leaves that of ``matmul`` over words
            # rolled for sm_120, and c in local memory (not so with 16, 32 or 64).
            if cfg.thread_m_blocks == 3:
                c[c_at], c[c_at + 1], c[c_at + 2], c[c_at + 3] = sums
            else:
                for r in range(4):
                    c[c_at + r] = sums[r]

    @lang.device
    def matmul(fragments, half):
        """A half: four words of weights, 16 columns each. ``mma.sync`` holds up only what needs its
        result, so the integer units dequantise a word while tensor cores still multiply the word
        before.

        Nibble p (bits 4 p to 4 p + 3) of b[K, 128 N + 4 (4 g + t) + j], which is word j of lane
        4 g + t, is the code of W[k, n] at k = 16 K + 2 t + p // 4 + 8 (p % 2), n = 64 N + 16 j + g
        + 8 (p // 2 % 2). Nibbles 0, 4, 1, 5 are thus a B fragment of the first n8 block of the
        word's two, 2, 6, 3, 7 of the second (``formats.marlin_order``). ``dequantize`` makes fp16
        pairs (0, 4) and (1, 5), code - 8, exactly; the scale is one fp16 multiplication. Word j of
        scales holds those of column g of the two n8 blocks."""
        for j in range(4):
            word = fragments.weights[half * 4 + j]
            first, second = numbers.dequantize(word), numbers.dequantize(word >> 8)
            if cfg.grouped:
                scales = fragments.scales[half * 4 + j]
                first = numbers.scale_pair(first, ptx.both_low_f16x2(scales))
                second = numbers.scale_pair(second, ptx.both_high_f16x2(scales))
            multiply(fragments, first, half, 2 * j)
            multiply(fragments, second, half, 2 * j + 1)

    # behind the ring's last stage: the kernel's loop begins the next lap
    @lang.device
    def lap_done(state, slice_, step):
        pass

    def lap_from(stage):
        """-> device function: the steps from ``step``, whose tile is in ``stage``, to the one in
        the ring's last stage, or to the slice's last. Every slice begins at stage 0, so lap_from(0)
        is a lap of the ring: ``stages`` steps, each called by the one before and all inlined, so
        that every offset in shared memory is a constant.

        What overlaps, in one warp (others fill what is left):

        - a copy from global memory: the multiplies of ``stages`` - 2 steps, this one's first;
        - fetching half 1 of this tile, before the barrier that gives its stage away: what the
          tensor cores still have to do of the step before;
        - fetching half 0 of the next tile: the multiply of half 1. (While half 0 multiplies,
          nothing is fetched: half 1 is there, and half 0's registers are in use.)"""
        rest = lap_from(stage + 1) if stage + 1 < config.stages else lap_done
        before, after = (stage - 1) % config.stages, (stage + 1) % config.stages

        @lang.device
        def lap(state, slice_, step):
            # half 0 of this step is in registers already
            fetch_to_registers(state, stage, 1)
            load.fetch_to_shared(state, slice_, before, step + (cfg.stages - 1))
            wait_for_stage()
            matmul(state.fragments, 0)
            fetch_to_registers(state, after, 0)
            matmul(state.fragments, 1)
            if step + 1 < slice_.end_step:
                rest(state, slice_, step + 1)

        return lap

    lap = lap_from(0)

    # the kernel

    def ampere(a, b, c, scales, partials, locks, m, n, k):
        block, sizes = uint32(cuda.blockIdx.x), schedule.Sizes(m, n, k)
        thread = own_thread()
        policy = ptx.create_policy_evict_first()
        base = shared_base()
        # ptxas splits an address into a uniform and a per-thread register where it can. For a
        # cp.async with an L2 policy, such an address is an "illegal instruction" on Hopper (which
        # the published kernel runs into). Only copies of B have a policy; a shuffle of each lane
        # with itself hides from ptxas that their address is such a sum.
        own_chunk = ptx.shfl_sync_idx(base + thread.number * CHUNK, thread.lane)
        row, chunk = thread.number // cfg.a_row_chunks, thread.number % cfg.a_row_chunks
        own_a_chunk = base + (row * cfg.a_row_chunks + (chunk ^ row % 8)) * CHUNK
        shared = Shared(base, own_chunk, own_a_chunk)
        pointers = cuda.local.array(2, uint64)
        source = Source(pointers, scales, policy)
        fragments = Fragments(
            cuda.local.array(cfg.a_fragment_words, uint32),
            cuda.local.array(cfg.weight_words, uint32),
            cuda.local.array(cfg.scale_words, uint32),
            cuda.local.array(cfg.c_fragment_floats, float32),
        )

        stripe = schedule.own_stripe(sizes)
        position = stripe.position
        while position < stripe.end:
            slice_ = schedule.own_slice(position, stripe, sizes)
            state = State(fragments, source, shared, thread, sizes)
            load.slice_pointers(pointers, a, b, slice_, thread, sizes)
            for stage in range(cfg.stages - 1):
                load.fetch_to_shared(state, slice_, stage, slice_.first_step + stage)
            for i in range(cfg.c_fragment_floats):
                fragments.c[i] = float32(0)
            wait_for_stage()
            fetch_to_registers(state, 0, 0)
            step = slice_.first_step
            while step < slice_.end_step:
                lap(state, slice_, step)
                step += cfg.stages

            # zeros fetched past the slice's end would land on the sums that now replace A and B
            ptx.cp_async_wait_all()
            cuda.syncthreads()
            # The thread's place and the slice, worked out anew: what only the epilogue needs of
            # them must not stay in registers all through the main loop. (It needs ``shared`` and
            # ``sizes`` itself; of the slice ``following`` stays, one register.) The compiler must
            # not see that they are the same: tid_x is a volatile read, and opaque_u32(x) is x by
            # way of a volatile move.
            thread = own_thread()
            again = schedule.own_slice(ptx.opaque_u32(position), stripe, sizes)
            output_tile = again.output_tile
            is_top = block == again.top
            if not cfg.grouped and is_top:
                # To the slot of stage 0 (per column, the step does not matter), while sums are
                # added up. The wait for all copies, below, needs no copy group. Of a State,
                # fetch_scales takes all but the fragments.
                epilogue = State(fragments, source, shared, thread, sizes)
                load.fetch_scales(epilogue, output_tile.n_tile, 0, 0, True)
            output.thread_block_reduce(fragments.c, base, thread)
            if again.top != again.bottom:
                is_bottom = block == again.bottom
                lock = locks + uint64(again.top) * 4
                # The bottom block need not wait, and with one m16 block does not: 4096 x 4096 at
                # m = 1 is so level with the CUDA original, and was 1% behind. Larger tiles gained
                # nothing by it.
                if cfg.thread_m_blocks > 1 or not is_bottom:
                    output.barrier_acquire(lock, again.bottom - block, thread)
                partial = partials + uint64(again.top) * cfg.partial_bytes
                output.global_reduce(
                    fragments.c, partial, base, output_tile.rows, is_bottom, is_top, thread
                )
                output.barrier_release(lock, is_top, thread)
            if is_top:
                if not cfg.grouped:
                    ptx.cp_async_wait_all()
                    cuda.syncthreads()
                    output.scale_columns(fragments.c, fragments.scales, base, thread)
                output.write_result(c, fragments.c, base, output_tile, thread, sizes.n)
                cuda.syncthreads()  # no copy of the next slice over a result still being read
            position = slice_.following

    return ampere

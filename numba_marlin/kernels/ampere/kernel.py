"""Marlin itself (Frantar et al., "MARLIN", 2024), function by function, in Python: rung 4 of the
README's ladder of kernels. On an H200 10.0 us, where rung 3 (``buffered``) takes 79 (16 rows of A,
4096 x 4096 weights; with 64 rows 16.5 and 84; experiments/18_ladder).

**The idea.** With few rows of A the product takes no longer than reading W, if every SM reads all
the time. So *stream-K* gives each block the same number of tiles, whatever the shape; a ring of
``stages`` tiles (two in rung 3), filled by ``cp.async``, keeps copies of ``stages`` - 2 tiles in
flight all the time (one more, from their issue to the next wait); and one tile is loaded into
registers and dequantised while tensor cores still multiply the one before.

**Parameters.** ``C[m, n] = A[m, k] @ W[k, n]``. Raw addresses, 16-byte aligned, then sizes:

a, c       fp16 [m, k] and [m, n]
b          4-bit codes of W, int32 [k / 16, 2 n], in Marlin's order; a weight is (code - 8) * scale
scales     fp16 [groups, n], in Marlin's order; groups = k / group size (no remainder); per column 1
partials   fp32 [blocks][tile_m * tile_n]: sums on their way between blocks
locks      int32 [blocks], zero before the launch and zero again after
m, n, k    int32; unsigned in ``Sizes`` (integers calculate as in C: ``compiler.language``)

**Words.** A *block* is a thread block; an m16, n8 or k16 block is 16 rows of A and C, 8 columns of
W and C, 16 of k. A *k16 row* is 16 rows of W, one row of b. A *chunk* is 16 bytes. Lane 4 g + t:
g = 0 .. 7 and t = 0 .. 3 stand for lane // 4 and lane % 4 everywhere. A *tile* is tile_k x tile_n
of W, with the tile_m x tile_k of A that it multiplies. All tiles along k of one *output tile*
(tile_m x tile_n of C) are a *tile column*. A tile has two numbers: its *step* in the tile column (0
at k = 0, whichever block multiplies it), and its *position* among all tiles of the launch
(``schedule``). The main loop multiplies one tile per step. A *scale group* is the weights of a
column that share a scale, *group size* of them; a *copy group* is what a thread copies between two
``cp.async.commit_group``. Functions ``..._verbs`` make the device functions of a module. Names of
modules: without a dot those of this folder, with a dot those of ``numba_marlin``.

**Who does what.** Blocks share all tiles in equal *stripes*; the part of a stripe in one tile
column is a *slice* (``schedule``, with a drawing). There are no clusters, and warps have no
different roles: a block's 256 threads all copy, and its 8 warps all multiply. Warp w has warp_n =
w % warps_n and warp_k = w // warps_n. It multiplies 64 columns of the tile, from 64 warp_n on, by
all rows of A, along two of the tile's k16 rows: half 0 of its fragment registers holds k16 row
warp_k, half 1 holds warp_k + warps_k, and one half is loaded while the other is multiplied. So 2 x
4 warps (n x k) share a tile of 128 columns and 128 of k, 4 x 2 one of 256 columns and 64 of k.

**Where it says what.** Shared memory (map, sizes, shapes, the swizzle, why banks do not conflict):
``config``. What guards a stage: ``load.wait_for_stage``. The order in a step, what is in flight and
what overlaps: ``steps_from``. Which k and n a nibble holds: ``matmul``. How many stages, and why:
``AmpereConfig.stages``.

**Scales.** W[k, n] belongs to scale group k // (16 group_blocks). The group size, 16 group_blocks,
is 32, 64 or 128 and divides k (``formats.types.check_group_size`` sees to it), and of it and tile_k
one divides the other: a tile holds whole scale groups, or lies inside one. Of the 64 fp16 for 64
columns in a row of scales, the one at index 8 g + i is that of column g + 8 i (i = 0 .. 7), so
lanes 4 g to 4 g + 3 read their columns' as one chunk. They are copied with their tile, and multiply
dequantised weights, in fp16. Per column (group_blocks = -1: one group, all of k) there is one row,
and of the 32 fp16 for 32 columns the one at index 8 t + 2 r + e is that of column 8 r + 2 t + e
(r = 0 .. 3, e = 0, 1): those of the accumulators of lane 4 g + t are a chunk. They are copied after
the main loop, by the block that writes the output tile, and multiply its fp32 sums.

**Reductions** (``output``). A warp's accumulators add up its k16 rows, step by step. Warps with the
same columns then add up in shared memory: with k0 .. k3 for the sums of warp_k = 0 .. 3, to
(k0 + k2) + (k1 + k3), and to k0 + k1 where warps_k is 2. Blocks that share an output tile add up in
global memory, one after the other, from the bottom of the tile column to its top, each its own sum
and that from below, guarded by a lock. The order depends on m, n, k, the configuration and the
number of SMs, never on time: on one device the same input gives the same bits. The top block writes
C (``output.write_result``).

**Tails.** m is any. Of the tile_m rows of an output tile the first output_tile.rows exist
(``own_slice``), and three places look at that: ``fetch_to_shared`` copies zeros for the other rows
of A, so that their sums are 0; ``write_result`` does not write the other rows of C; and in
``global_reduce`` a lane of which no row exists (its lowest is g) exchanges no sums with other
blocks.

k is a multiple of 16 and n of 64: packing and the launch check it (``formats.marlin``;
``kernels.language.definition.Takes``). With ``ragged=False`` k and n must also fill whole tiles
(``choose.check``). With ``ragged`` all that lies past k or n arrives as zeros. A zero of b is code
0, a weight of -8 * scale and not of 0:

- past k it meets zeros of A, so it adds 0 to the sums;
- past n it meets rows of A. Scales of groups are zeros there too, and make it 0. With scales per
  column the sums past n are arbitrary. Blocks exchange them like others; nobody writes them to C.

**What lives through the main loop**, in each thread:

==================== ============================================================================
step                 number of the tile that is multiplied, in the tile column
slice_               .end_step: the step at which to stop; .output_tile: for the bounds of copies;
                     .following: position of the first tile behind this tile column
pointers             byte addresses of the thread's first chunks of A and of B in the next tile to
                     copy: at the start of a step that of ``step`` + stages - 1
fragments            see ``Fragments``; c, the sums, is set to zero with each slice
position             of the slice's first tile
stripe               .end: the position at which to stop; .share: tiles of a whole stripe
the rest             does not change: ``Source`` (but for pointers), ``Shared``, ``Thread``,
                     ``Sizes``
==================== ============================================================================

The stage is no variable, but a constant of each copy of the loop's body (``steps_from``): the tile
of ``step`` is in stage (step - first_step) % stages.

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
    # ``config`` as device functions can read it; ``config`` itself is for Python, at build time
    cfg = lang.constants(config)
    schedule, load = schedule_verbs(lang, config), load_verbs(lang, config)
    numbers, output = number_verbs(lang), output_verbs(lang, config)

    # warp_n, warp_k: the warp's place, see above; number: of the thread in the block
    Thread = lang.record("Thread", "warp_n warp_k lane number")

    # in global memory. pointers: [NEXT_A], [NEXT_B] (``load``); scales: address of the first;
    # policy: of L2, evict_first, for all reads of B
    Source = lang.record("Source", "pointers scales policy")

    # in shared memory, addresses. base: where it begins; own_chunk: base + 16 * number, to which
    # offsets of region, stage and copy (256 threads x 16 bytes) are added. It is where the thread
    # writes its chunks of scales and of B, and reads those of B (``config``). own_a_chunk: where it
    # writes those of A, swizzled
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

    # shared memory to registers, and the multiply

    @lang.device
    def fetch_to_registers(state, stage, half):
        """Fragments of one half. For ``ldmatrix`` lane l gives the address of row l % 16 of an m16
        block of A: of the k16 block's first chunk (8 of k), or, if l >= 16, of its second; the XOR
        finds it in the swizzle. Weights and scales already lie in the order of the lanes
        (``config``)."""
        fragments, shared, thread = state.fragments, state.shared, state.thread
        k_block = thread.warp_k + cfg.warps_k * half
        if cfg.grouped:
            # the row of the tile's scales
            group_of_tile = k_block // cfg.group_blocks if cfg.groups_per_tile > 1 else 0
            # 64 columns of a warp have 8 chunks of scales
            s_chunk = group_of_tile * cfg.s_row_chunks + thread.warp_n * 8 + thread.lane // 4
            scale_words = ptx.ld_shared_v4_b32(
                shared.base + s_chunk * CHUNK + cfg.scales_at + cfg.s_stage_bytes * stage
            )
            for r in range(4):
                fragments.scales[half * 4 + r] = scale_words[r]
        row = thread.lane % 16
        place = (k_block * 2 + thread.lane // 16) ^ (row % 8)  # of the chunk, in its row
        a_read = shared.base + (row * cfg.a_row_chunks + place) * CHUNK + cfg.a_stage_bytes * stage
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
        """A k16 row of one n8 block, all rows of the tile. b_fragment: two f16x2 registers."""
        a, c = fragments.a, fragments.c
        for i in range(cfg.thread_m_blocks):
            a_at, c_at = (half * cfg.thread_m_blocks + i) * 4, (i * 8 + n8) * 4
            sums = ptx.mma_m16n8k16_f32_f16(
                (a[a_at], a[a_at + 1], a[a_at + 2], a[a_at + 3]),
                b_fragment,
                (c[c_at], c[c_at + 1], c[c_at + 2], c[c_at + 3]),
            )
            # Both branches store the four sums. Written out for 48 rows: with a loop over r here,
            # CUDA 13.0 leaves the loop over j in ``matmul`` rolled for sm_120, and c in local
            # memory (not so with 16, 32 or 64 rows).
            if cfg.thread_m_blocks == 3:
                c[c_at], c[c_at + 1], c[c_at + 2], c[c_at + 3] = sums
            else:
                for r in range(4):
                    c[c_at + r] = sums[r]

    @lang.device
    def matmul(fragments, half):
        """A half: one of the warp's two k16 rows, four words of weights, 16 columns each. As
        ``mma.sync`` holds up only what needs its result, the integer units dequantise a word while
        tensor cores still multiply the word before.

        Nibble p (bits 4 p to 4 p + 3) of b[K, 128 N + 4 (4 g + t) + j], which is word j of lane
        4 g + t, is the code of W[k, n] at k = 16 K + 2 t + p // 4 + 8 (p % 2), n = 64 N + 16 j + g
        + 8 (p // 2 % 2). Here K = step * thread_k_blocks + warps_k * half + warp_k, and 64 N is the
        first of the warp's columns. Nibbles 0, 4, 1, 5 are thus a B fragment of the first n8 block
        of the word's two, 2, 6, 3, 7 of the second (``formats.marlin_order``). ``dequantize`` makes
        fp16 pairs (0, 4) and (1, 5), code - 8, exactly; the scale is one fp16 multiplication. Word
        j of scales holds those of column g of the two n8 blocks."""
        for j in range(4):
            word = fragments.weights[half * 4 + j]
            first, second = numbers.dequantize(word), numbers.dequantize(word >> 8)
            if cfg.grouped:
                scales = fragments.scales[half * 4 + j]
                first = numbers.scale_pair(first, ptx.both_low_f16x2(scales))
                second = numbers.scale_pair(second, ptx.both_high_f16x2(scales))
            multiply(fragments, first, half, 2 * j)
            multiply(fragments, second, half, 2 * j + 1)

    # the main loop

    # behind the last stage: back to the kernel's loop, which begins the next lap
    @lang.device
    def lap_done(state, slice_, step):
        pass

    def steps_from(stage):
        """-> device function: multiplies the tile of ``step``, which is in stage ``stage``, then
        the next step's, in the next stage, and so on, up to stage ``stages`` - 1 or the slice's
        last tile. steps_from(0) is one lap of the ring. In CUDA it would be a loop::

            #pragma unroll
            for (int stage = 0; stage < stages; stage++) {
                ...  // the six calls below, of one step
                if (++step == end_step) break;
            }

        Numba has no such pragma, and libnvvm leaves so long a loop rolled (tried). So each turn of
        the loop is a device function that calls the next one, all of them inlined: that unrolls the
        steps, makes ``stage`` a compile-time constant, and with it all offsets in shared memory.

        What overlaps, in one warp (others fill what is left):

        - a tile's copies are in flight during the multiplies of ``stages`` - 2 steps, beginning
          with those of the step that issues them;
        - the loads of a half are issued behind the last ``mma`` that reads its registers, and
          arrive under what follows: those of half 0 under the ``mma`` of half 1, those of half 1
          under the last of these ``mma``, the next copies and the wait;
        - inside ``matmul``, the next word is dequantised while they work on the one before.

        Where the tiles around step s are after each of the six calls, with S = ``stages`` (for
        S = 3 there are no tiles s + 2 .. s + S - 2)::

            tile                       s - 1  s       s + 1      s + 2 .. s + S - 2  s + S - 1
            at the step's start        free   half 0  in flight  in flight           -
            fetch_to_registers, half 1 free   read    in flight  in flight           -
            fetch_to_shared            -      read    in flight  in flight           in flight
            wait_for_stage             -      free    landed     in flight           in flight
            matmul, half 0             -      free    landed     in flight           in flight
            fetch_to_registers, half 0 -      free    half 0     in flight           in flight
            matmul, half 1             -      free    half 0     in flight           in flight

            landed  in shared memory, for every thread to read
            half 0  landed, and this thread has half 0 in registers
            read    this thread has both halves in registers
            free    every thread has both halves in registers: the stage may be overwritten
            -       in no stage: tile s + S - 1 not issued yet, or tile s - 1 overwritten by it"""
        next_steps = steps_from(stage + 1) if stage + 1 < config.stages else lap_done
        before, after = (stage - 1) % config.stages, (stage + 1) % config.stages

        @lang.device
        def steps(state, slice_, step):
            # half 0 of this step's tile is in registers already
            fetch_to_registers(state, stage, 1)
            load.fetch_to_shared(state, slice_, before, step + (cfg.stages - 1))
            load.wait_for_stage(state, slice_, after, step + 1)
            matmul(state.fragments, 0)
            # in the slice's last step this brings zeros, which nothing multiplies
            fetch_to_registers(state, after, 0)
            matmul(state.fragments, 1)
            if step + 1 < slice_.end_step:
                next_steps(state, slice_, step + 1)

        return steps

    lap = steps_from(0)

    # the kernel

    def ampere(a, b, c, scales, partials, locks, m, n, k):
        block, sizes = uint32(cuda.blockIdx.x), schedule.Sizes(m, n, k)
        thread = own_thread()
        policy = ptx.create_policy_evict_first()
        base = shared_base()
        # The shuffle of each lane with itself returns what it is given. It hides from ptxas that
        # ``base``, the same for all threads, is a part of that address in shared memory. ptxas
        # would keep that part in a uniform register, and for a cp.async with an L2 policy fold it
        # and the policy into one register pair (LDGSTS [R+UR6], desc[UR7]): an "illegal
        # instruction" on Hopper, at which the published kernel stops. Only copies of B have a
        # policy, and they go to own_chunk; own_a_chunk, for copies of A, needs no shuffle.
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
            load.wait_for_stage(state, slice_, 0, slice_.first_step)
            fetch_to_registers(state, 0, 0)  # half 0 of the first tile
            step = slice_.first_step  # of the first tile of a lap
            while step < slice_.end_step:
                lap(state, slice_, step)
                step += cfg.stages

            # zeros fetched past the slice's end would land on the sums that now replace A and B
            load.wait_for_all(state)
            # From here on the epilogue (``output``). It works its thread and slice out anew, from
            # position, stripe and sizes. Otherwise what only the epilogue needs (top, bottom,
            # row_first ...) would take registers all through the main loop. The compiler must not
            # see that they are the same: tid_x is a volatile read, and opaque_u32(x) is x by way of
            # a volatile move.
            thread = own_thread()
            again = schedule.own_slice(ptx.opaque_u32(position), stripe, sizes)
            output_tile = again.output_tile
            is_top = block == again.top
            if not cfg.grouped and is_top:
                # Scales per column arrive while sums are added up, in the slot of stage 0. The wait
                # below needs no commit: cp.async.wait_all waits for uncommitted copies too. (Of a
                # State fetch_scales takes all but the fragments; step does not matter per column.)
                epilogue = State(fragments, source, shared, thread, sizes)
                load.fetch_scales(epilogue, output_tile.n_tile, stage=0, step=0, valid=True)
            output.thread_block_reduce(fragments.c, base, thread)
            if again.top != again.bottom:
                is_bottom = block == again.bottom
                lock = locks + uint64(again.top) * 4
                # The bottom block's turn is 0, which the lock is already: it would only read it and
                # pass a barrier. With one m16 block it does not: with m = 1 and 4096 x 4096 that
                # costs 1%. Larger tiles gain nothing by leaving it out.
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
                # no copy of the next slice over a result still being read (blocks that are not top
                # had their last barrier in barrier_release)
                cuda.syncthreads()
            position = slice_.following

    return ampere

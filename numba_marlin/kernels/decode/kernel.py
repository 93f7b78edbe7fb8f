"""The decode kernel: ``C[m, n] = A[m, k] @ W[k, n]`` for small batches, where to read W is most of
the work. A tile has up to 32 rows of C; more rows are further tiles, which read the weights again.

Read ``decode`` at the end of this file first, then ``consume`` and ``finish_tile`` above it, then
``load.produce``, ``multiply.double_buffered`` and ``output.share_out``. What stands here is to look
things up in.

Parameters, in this order. Addresses are raw: multiples of 16 bytes those of a, its rows, b, scales,
zeros and partials, of 8 factors, the others of their elements. n_packed is n completed to 64.

a                     [m, k] of ``dtype``, called x; rows are ``a_stride`` elements apart
b                     packed weights, int32 [k/16, n_packed * bits/2]: integer codes in Marlin's
                      order, which is below (**Which k and n a nibble holds**); FP4 with the bits
                      of each word permuted, for one ``dtype`` (``fp4``)
c                     [m, n] of ``dtype``
scales                [groups, n_packed] of ``scale_dtype`` in Marlin's order (**Where scales are
                      applied**), groups = k / group size, or 1 if scales are per column; of FP4:
                      ``fp4``
zeros                 int32 [groups, n_packed * bits/32] or float16 [groups, n_packed]
bias                  [n] of ``dtype``
partials, locks       workspace, fp32 and int32 (``workspace_bytes``); locks are zero before and
                      zero again after
m, n, k, a_stride     int32; m from 1 on, k a multiple of 16, n of 8 (**Tails**)
factors               with FP4: fp32 [n_packed]. The epilogue multiplies a column by its factor:
                      the global scale, times a power of two (``fp4``, **Units**)

b, scales and zeros may be read while earlier launches on the stream still run, so these must not
write them. All other memory may be written by the launch before.

**Words.** A *tile* is of C: ``batch`` rows by ``64 warps_n`` columns, with all of k. *m* is the
number of rows of x and C. A *step* is stage_k of a tile's k; a *stage* is the place in shared
memory that a step's operands are copied to, and the stages are used as a ring. A *k16 row* is a row
of packed words, 16 of k, the k of one ``mma``; a *pair* is two of them, as deep as one
``ldmatrix.x4`` reaches. A *group* is the weights of a column that share a scale: 32, 64, 128, 256
or all of them, or 16 or 32 of FP4, whose groups are called *scale blocks*; the field
``group_blocks`` counts k16 rows of a group, nothing else. A *block* alone is a thread block; a
*16-column block* is 16 columns of W and C, an *n8 block* 8 rows of x and C. Functions named
``*_verbs`` make device functions for a configuration and return them as a namespace, but for
``load_verbs``, which returns a single function.

**The idea.** At m = 1 the weights are read once and nothing else counts, so a kernel must keep as
many bytes of them on their way as it can, and spend few instructions on each. The product is
*transposed*: a Marlin word, dequantised, is the A fragment of W^T, so 16 columns of W are the m of
``mma.m16n8k16`` and rows of x its n. A single row is padded to 8, not to 16, and no byte of the
published layout has to move. Warps are *specialised*: one producer warp issues bulk copies, which
take no registers and no thread per byte, and consumer warps dequantise and multiply. (No
``setmaxnreg``: it works on whole warpgroups, and the producer is a single warp.) *Stream-K* gives
every SM the same bytes to read. *Programmatic dependent launch* overlaps two launches: as soon as
all blocks of one have begun, blocks of the next may begin wherever there is room. That is on an SM
without a block of the first, if it has fewer blocks than there are SMs; beside blocks of the first,
on an SM with fewer of them than ``resident`` (config: how many fit); or where a block has ended.
They copy weights, scales and zero points at once, and touch nothing else before
``griddepcontrol.wait``, which waits until the launch before ends.

**How work is divided** (``schedule``). The grid is min(SMs * blocks_per_sm, steps) blocks, in one
dimension, no clusters. The steps of all tiles, in a row, are cut into one contiguous stripe per
block, equal to within a step, so several blocks may share a tile, each a part of its k. The part of
a stripe in one tile is a ``WorkItem``, the body of the outer loop in ``consume``. With ``whole``
(config) stripes are whole tiles, and there are no more blocks than tiles. To share a tile costs
about 2.5 us (partial results to L2, an atomic add with acquire and release semantics, all of them
back); whole tiles save that, which pays if every block gets about as many of them.

**Who does what.** A block has ``warps_n * warps_k`` consumer warps, and one producer warp, the
last. Consumer warp w multiplies 64 columns of the tile, number ``warp_n = w % warps_n``, by all
rows of the tile. Of each stage it takes the k16 rows from warp_k * rows_per_warp up to (warp_k + 1)
* rows_per_warp, with ``warp_k = w // warps_n`` and rows_per_warp = stage_k / 16 / warps_k: warps of
equal warp_n add up in the epilogue. One lane of the producer warp walks through the same steps,
ahead of the others (``load``).

**Shared memory** (sizes, index shapes, an example in bytes, why no bank conflicts: ``shared``).
Lanes are 4g + t, g from 0 to 7, t from 0 to 3:

=================== ===================== ====================== ================================
where               what                  written by             read by
=================== ===================== ====================== ================================
stage, 0            weights, stage_k rows bulk copy per k16 row  a lane: its own 16 or 32 bytes
stage, scales_at    scales of the groups  bulk copy per group    lanes 4g to 4g + 3: columns of g
stage, zeros_at     their zero points     bulk copy per group    lanes 4g to 4g + 3: columns of g
stage, x_at         rows of x             bulk copy per row      ldmatrix
block, exchange_at  accumulators          consumers (``output``) warps that finish these columns
block, barriers_at  full, empty mbarriers both sides             both sides
=================== ===================== ====================== ================================

(FP4: a copy of scales per 64 columns.) The exchange has memory of its own because the producer
already fills the ring for the next tile during the epilogue.

**What is in flight, and what guards a stage.** Copies to up to ``stages`` stages. A stage has two
mbarriers, and each side waits for one and arrives at the other; both walk round the ring by
themselves (``language.pipeline``). That is all that guards it:

========  ==========================  ============================================================
who       before it                   waits for
========  ==========================  ============================================================
consumer  reads a stage (every lane)  *full*: the producer's one arrival, and all bytes it announced
producer  overwrites one (but in the  *empty*: an arrival of every consumer warp, made by one lane
          first lap of the ring)      behind a barrier of the warp, when all its lanes have read
                                      what they need of the stage: the warp *releases* it
========  ==========================  ============================================================

Released means read, not used: in the source the products of the last words fetched come after that,
except with float16 zero points and batch > 16 (``multiply.in_turns``) and in a last step that k
does not fill (``tail``). The next phase of a full mbarrier cannot complete before this warp has
released the stage, so a slow lane cannot miss a phase; it passes later, and the ``.sync``
instructions that follow wait for it.

Within a tile consumer warps do not wait for each other, so they may be in different stages. At its
end those of equal warp_n do, twice (``output.share_out``); those of different warp_n do not, and
may be in different tiles. The producer does not stop at the end of a tile. Arrivals release and
waits acquire, the default of the PTX instructions, so the assembler leaves all reads of a stage
between its wait and its release. So does the compiler: what touches memory, ``ld.shared`` and
``ldmatrix`` included, is volatile and clobbers memory. Between wait and release loads, arithmetic
and ``mma`` may move (``multiply`` says how they do). Between the reads of a stage and the bulk copy
that overwrites it is no ``fence.proxy.async``: the arrival, a release, takes effect when the loads
before it have returned, and the copy is issued after the wait (``multiply.done_with_stage``).

**Stage counts.** 2 or more: with one the kernel would be correct, but copy nothing while it
multiplies. At most what ``shared_limit`` has room for: with the default sizes 5, as two blocks
should fit on an SM (11 with resident=1). Any number: only the ring's length, ``exchange_at``,
``barriers_at`` and how far the producer begins ahead depend on it, no order of sums, no branch.

**A round of the main loop**: one turn of the innermost ``while`` in ``consume``. In order: wait
until the stage is full; fetch its first pair; then for each pair fetch the next one, multiply this
one, and promote the group that ends; at the last pair release the stage instead of a fetch, before
it is multiplied. The code is ``multiply.double_buffered``, from top to bottom, and for batch > 16
``multiply.in_turns``. What overlaps: the shared loads of a pair with the products of the pair
before; the first pair of a stage is fetched with nothing to multiply meanwhile (what that costs was
not measured). The producer waits for an empty stage, announces bytes, copies k16 rows, scales, zero
points and rows of x.

**Which k and n a nibble holds.** Lane 4g + t loads 16 bytes per k16 row, words j = 0 to 3, a
16-column block each. Nibble p of word j, p = 0 being the lowest bits, is W[k, n] at k = 2t + p // 4
+ 8 (p % 2), n = 16j + g + 8 (p // 2 % 2) of the 16 x 64 that the k16 row and the warp's 64 columns
have. In W^T that is row g or g + 8 of the 16 x 16 fragment j, and column k: nibbles (0, 4) are A
register 0, (2, 6) register 1, (1, 5) register 2, (3, 7) register 3. Which word of b that is, and
8-bit codes: ``weights``. FP4: a word's codes are these eight elements too, in the same registers,
but of which bits it makes them depends on ``dtype`` (``fp4``). B fragments are rows of x as they
lie, by ``ldmatrix``.

**Where scales are applied.** In Marlin's order the scale of column n of 64 stands at ``8 (n % 8) +
n // 8``, so a lane has its eight columns' in 16 bytes; float16 zero points likewise (packed ones:
``zero_points``). Group scales multiply accumulators: a group's products add up in fp32 accumulators
of their own, from codes that are exact, and are *promoted*, added times the scale to those of the
tile, at the end of the group or of the warp's part of the stage (``promote``; it takes float16 zero
points off, too). Integer zero points are subtracted from codes (``zero_points``). Per-column scales
multiply the result in the epilogue, read from global memory (``output``; their order is another).
FP4's scales multiply weights (``fp4``), and ``factors`` the result.

**Reductions, and their order.** A warp adds up its k16 rows in order, in fp32, group by group. The
first min(4, warps_k) warps of the same columns, the ``owners``, finish some 16-column blocks each:
an owner begins with its own accumulators and adds the others' in the order of warp_k, through
shared memory. Then, owner by owner, the blocks of a tile leave partial results in the workspace and
count themselves in, at a lock for that owner. The last to come adds all of them up in fp32, from
the top block (smallest k) to the bottom one, its own included. No block waits. The order is fixed
by the configuration, m, n, k and the number of blocks: with these the same input gives the same
bits.

**From accumulators to C** (``output``). Accumulator 4 (n8_blocks * j + n8) + r of a lane is C[8 n8
+ 2t + r % 2, 16j + g + 8 (r // 2)] of the tile's rows and the warp's columns, n8 being the n8
block. Factors, then bias, in fp32; one conversion makes a register of two rows, and two 2-byte
stores write them straight from it: no staging, no shuffle, no vector stores.

**Tails.** What is not there is not copied, nor stored. (b, scales and zeros have n_packed columns.)

=  =================  =================  ========================================  ================
.  fits if            copied             multiplied                                stored
=  =================  =================  ========================================  ================
m  always             rows below m       all ``batch`` rows: a lane whose row is   rows below m
                                         missing reads the last one there is
n  n % columns == 0   columns below      64 columns by each warp whose first one   columns below n
                      n_packed           is below n_packed (others: see below)
k  k % stage_k == 0   k16 rows below k   those, one at a time (``multiply.tail``)
=  =================  =================  ========================================  ================

A warp without columns only releases the stages, and takes zeros through the epilogue. Rows beyond
``batch`` are further tiles. n that does not fit is a multiple of 8, k of 16, and both take
``ragged=True``: without it the kernel has no code for them, and ``choose.check`` refuses them. (TMA
boxes would fill in zeros instead. They cost 2% at m = 1: experiments/03_tma.)

A group size of integers divides k (one of k or more becomes per-column scales). FP4's scales lie in
rows for 32 of k, ceil(k / 32) of them: the last row, and with it a scale block of 32, may have a
single k16 row. ``problems.WeightProblem`` refuses other n, k and group sizes, ``DecodeConfig``
sizes that do not go together, ``DecodeConfig.grid`` more steps than 32 bits count.

**State of a consumer warp** through the main loop (of the producer: ``load``):

``item_position``  position, among all steps of the launch, of its work item's first step; ends at
                   ``stripe.end``
``item``           the work item: tile, first step in it, number of steps
``k_step``         the step in the tile, counted from 0, up to ``end_k_step``
``place``          RingPlace(stage, parity): the stage, and the parity of the phase of its full
                   mbarrier that it waits for; runs on from tile to tile
``offsets``        where the lane reads in a stage, in bytes from its beginning: per item
``columns_exist``  whether the warp's 64 columns lie in n_packed: per item
``registers``      accumulators and operands (``multiply.Registers``). Of these only ``acc`` carries
                   anything from one step to the next; it begins at 0 with each item

**How fast.** What a launch adds to a row of launches, weights not in L2, INT4, on an H200, whose
memory gave 4.4 TB/s to a sum. k x n = 8192 x 57344 takes 59 us at m = 1, 4.1 TB/s; 4096 x 4096
takes 4.6 us at m = 1 (1.9 TB/s, 64 blocks with ``whole``), 6.9 at m = 16, 14.7 at m = 64, where
``ampere``, the kernel of Marlin's own algorithm, takes 9.8, 10.0, 16.5 (experiments/02_hopper,
18_ladder). An earlier form took 13.5 us for 8192 x 8192 at m = 1, 15.3 without dependent launch.
"""

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.decode.load import load_verbs
from numba_marlin.kernels.decode.multiply import multiply_verbs
from numba_marlin.kernels.decode.output import output_verbs
from numba_marlin.kernels.decode.schedule import schedule_verbs
from numba_marlin.kernels.language.pipeline import pipeline_verbs


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, float32 = lang.uint32, lang.float32
    shared_base = lang.shared_base
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=config.consumers)
    schedule = schedule_verbs(lang, config)
    produce = load_verbs(lang, config, ring, schedule)
    multiply = multiply_verbs(lang, config, ring)
    output = output_verbs(lang, config)

    # warp_n: which 64 columns of the tile; warp_k: which part of a stage's k; warp: its number
    Thread = lang.record("Thread", "warp_n warp_k lane warp")
    # In shared memory: addresses of the ring of stages, which comes first, and of its barriers
    Shared = lang.record("Shared", "base barriers")
    # In global memory: what the epilogue reads and writes. column_factors: the parameter scales if
    # these are per column, or FP4's parameter factors
    Epilogue = lang.record("Epilogue", "c column_factors bias partials locks")

    @lang.device
    def finish_tile(acc, epilogue, exchange, item, sharers, thread, sizes):
        """The epilogue: accumulators into C, or, from a tile that blocks share, into the workspace
        until the last of them has come. Warps that own no columns are done after ``share_out``."""
        tile, block = item.tile, uint32(cuda.blockIdx.x)
        own = cuda.local.array(cfg.own_floats, float32)
        output.share_out(acc, own, exchange, thread)
        if thread.warp_k < cfg.owners:
            complete = cfg.whole or sharers.top == sharers.bottom
            if not complete:
                output.leave_partial(
                    own, epilogue.partials, block, sharers.top, tile.x_rows, thread
                )
                sharing_blocks = sharers.bottom - sharers.top + 1
                complete = output.count_in(epilogue.locks, sharers.top, sharing_blocks, thread)
                if complete:
                    output.add_partials(
                        own, epilogue.partials, sharers.top, sharing_blocks, tile.x_rows, thread
                    )
            if complete:
                if cfg.has_column_factors:
                    output.apply_column_factors(own, epilogue.column_factors, tile, thread, sizes)
                if cfg.bias:
                    output.add_bias(own, epilogue.bias, tile, thread, sizes)
                output.write_result(epilogue.c, own, tile, thread, sizes)

    @lang.device
    def divided_early(item):
        """The item itself, but its n_tile goes through a shuffle, so that the division that yields
        it is done here, while the first copies are on their way. Otherwise LLVM moves the division
        to the first use, in the epilogue: 1% of a launch of 4.5 us. A shuffle is convergent, and
        LLVM leaves it here. (The assembler drops it, and leaves the division.) All lanes."""
        tile = item.tile
        n_tile = ptx.shfl_sync_idx(tile.n_tile, 0)
        return schedule.WorkItem(
            schedule.Tile(n_tile, tile.row_first, tile.x_rows), item.first_k_step, item.steps
        )

    @lang.device
    def consume(epilogue, shared, stripe, thread, sizes):
        """A consumer warp: the main loop over the steps of each item of the stripe, and the
        epilogue of the item."""
        acc = cuda.local.array(cfg.accumulators, float32)
        products = cuda.local.array(multiply.products_length, float32)
        registers = multiply.Registers(
            acc,
            products if cfg.promoted else acc,
            cuda.local.array(cfg.weight_words, uint32),
            cuda.local.array(cfg.x_words, uint32),
            cuda.local.array(multiply.zeros_or_scales_length, uint32),
            cuda.local.array(multiply.minus_x_length, float32),
            multiply.reads_upper_first(thread.lane),
        )
        offsets = cuda.local.array(multiply.offsets_length, uint32)
        item_position, place = stripe.begin, ring.consumer_start()
        # The launch before may still use c and the workspace. That it waits as early as this costs
        # nothing: no stage is full before x is in it, which waits for the same.
        ptx.griddepcontrol_wait()
        while item_position < stripe.end:
            item = divided_early(schedule.item_at(item_position, stripe.end, sizes))
            multiply.stage_offsets(offsets, item.tile.x_rows, thread)
            for i in range(cfg.accumulators):
                acc[i] = float32(0)
            warp_column = (item.tile.n_tile * cfg.warps_n + thread.warp_n) * COLUMNS
            columns_exist = not cfg.ragged or warp_column < sizes.n_packed
            k_step = item.first_k_step
            end_k_step = k_step + item.steps
            while k_step < end_k_step:
                ring.wait_full(shared.barriers, place)
                if columns_exist:
                    k16_rows = schedule.k16_rows_of(k_step, sizes)
                    multiply.multiply_stage(registers, shared, offsets, place, k16_rows, thread)
                else:
                    multiply.done_with_stage(shared, place, thread.lane)
                place = ring.advance(place)
                k_step += 1
            sharers = schedule.sharers_of(item_position, item, sizes)  # unused with ``whole``
            exchange = shared.base + cfg.exchange_at
            finish_tile(acc, epilogue, exchange, item, sharers, thread, sizes)
            item_position += item.steps

    def decode(a, b, c, scales, zeros, bias, partials, locks, m, n, k, a_stride, factors):
        base = shared_base()
        shared = Shared(base, base + cfg.barriers_at)
        number = ptx.tid_x()
        # All lanes have the same number of the warp. A shuffle lets the compiler know, which may
        # then keep it, and what follows from it, in uniform registers.
        warp, lane = ptx.shfl_sync_idx(number // 32, 0), number % 32
        if number == 0:
            ring.initialise(shared.barriers)
        sizes = schedule.sizes_of(uint32(m), uint32(n), uint32(k), uint32(a_stride))
        stripe = schedule.stripe_of(uint32(cuda.blockIdx.x), sizes)
        cuda.syncthreads()
        # As early as this: blocks of the next launch may start when all of this one have come here,
        # and read only weights, scales and zero points before their griddepcontrol.wait, which
        # waits until this launch has ended.
        ptx.griddepcontrol_launch_dependents()
        if warp == cfg.consumers:
            if ptx.elect_sync():
                produce(a, b, scales, zeros, shared, stripe, sizes)
        else:
            thread = Thread(warp % cfg.warps_n, warp // cfg.warps_n, lane, warp)
            column_factors = factors if cfg.block_scaled else scales
            epilogue = Epilogue(c, column_factors, bias, partials, locks)
            consume(epilogue, shared, stripe, thread, sizes)

    return decode

"""The decode kernel: small batches at the speed of the memory. ``C[m, n] = A[m, k] @ W[k, n]`` for
batches of up to 32 rows; more rows are further passes over the weights. On an H200, 4096 x 4096
INT4 weights take 4.6 us at m = 1, 6.9 at m = 16 and 14.7 at m = 64, where ``ampere`` takes 9.8,
10.0 and 16.5 (experiments/18_ladder).

Parameters, in this order. Addresses are raw; a, its rows, b, scales, zeros and partials are 16-byte
aligned:

a                     [m, k] of ``dtype``, called x; rows are ``a_stride`` elements apart
b                     packed weights, int32 [k/16, n_packed * bits/2], in Marlin's order
c                     [m, n] of ``dtype``
scales                [groups, n_packed] of ``scale_dtype`` in Marlin's order; of FP4:
                      ``formats.fp4_marlin``
zeros                 int32 [groups, n_packed * bits/32] or float16 [groups, n_packed]
bias                  [n] of ``dtype``
partials, locks       workspace, fp32 and int32 (``workspace_bytes``); locks are zero before and
                      zero again after
m, n, k, a_stride     int32; k is a multiple of 16, n of 8; n_packed is n completed to 64; with
                      ``ragged=False`` k and n fill whole tiles
factors               with FP4: fp32 [n_packed], what a column is multiplied by at the end

A *k16 row* is a row of packed words, 16 of k. A *pair* is two of them, 32 of k: as deep as one
``ldmatrix.x4`` reaches. An *n8 block* is 8 rows of x: n of the transposed product, see next.

**The idea.** At m = 1 the weights are read once and nothing else counts, so a kernel must keep as
many bytes of them on their way as it can, and spend few instructions on each. The product is
*transposed*: a Marlin word, dequantised, is the A fragment of W^T, 16 columns of W become the rows
of ``mma.m16n8k16`` and the batch its columns. So one row of x pays for 8, not 16, and no byte of
the published layout has to move. Warps are *specialised*: one producer warp issues bulk copies,
which take no registers and no thread per byte, and consumer warps dequantise and multiply. A tile
of C is ``batch`` rows by ``64 warps_n`` columns; *stream-K* gives every SM the same bytes to read.
*Programmatic dependent launch* (``griddepcontrol``) overlaps a launch with the one before it:
copies of weights begin while that one ends, in shared memory kept free for them or on SMs that it
left: 8192 x 8192 at m = 1 takes 12.1 us that way and 15.3 without.

**Who does what.** A block has ``warps_n * warps_k`` consumer warps, and one producer warp, the
last. Consumer warp w multiplies 64 columns, number ``warp_n = w % warps_n`` of the tile, by all its
rows, and of each stage the k16 rows of part ``warp_k = w // warps_n`` of warps_k. One lane of the
producer warp walks through the same stages, ahead of the others (``load``).

**What is in flight, and what guards a stage.** The ring has ``stages`` stages: one multiplies, the
others are full or on their way. A stage is released before its last products, which are of words in
registers by then, so for that long all of them may be on their way. (At least 2 is for speed: one
would be correct.) A stage's *full* mbarrier completes when the bytes that the producer announced
have landed, its *empty* mbarrier when all consumer warps have read it. ``RingPlace(stage, parity)``
is a warp's place in the ring; the parity says which round a wait is for (``language.pipeline``).
The ring begins empty: in the first round the producer waits for no empty mbarrier. It does not stop
at the end of a tile: the next tile's stages come in during the epilogue, and so nothing else may
use the ring's memory. Inside a warp, with up to 16 rows of x, a pair multiplies while ``ldmatrix``
and ``ld.shared`` fetch the next one of the stage (``multiply``). That ends with the stage: its
first pair is fetched with nothing to multiply meanwhile, and other warps must fill that time. (What
it costs was not measured.)

**How work is divided.** The weight is cut into tiles of columns and those into steps of ``stage_k``
rows, one stage each. All steps, tile after tile, are cut into one stripe per block, equal to within
a step; the part of a stripe in one tile is a ``WorkItem``, the body of the loop in ``consume``. So
a tile may be shared by several blocks (``schedule``). With ``whole`` stripes are cut at tiles: what
blocks share costs 2.5 us (partial results to L2, an atomic add with acquire and release semantics,
and all of them back), which whole tiles save where they come out even.

**Which k and n a nibble holds.** Lane 4g + t loads 16 bytes per k16 row, words j = 0 to 3. Nibble p
of word j is W[k, n] at k = 2t + p // 4 + 8 (p % 2), n = 16j + g + 8 (p // 2 % 2) of the warp's 16 x
64 block. In W^T that is row g or g + 8 of the 16 x 16 fragment j, and column k: nibbles (0, 4) are
A register 0, (2, 6) register 1, (1, 5) register 2, (3, 7) register 3. B fragments are rows of x as
they lie, by ``ldmatrix``; accumulator r of a lane is C[8b + 2t + r % 2, 16j + g + 8 (r // 2)].
8-bit codes: ``weights``. FP4 numbers are in the same words and registers (``formats.fp4_words``).

**Where scales are applied.** Group scales multiply accumulators: a group's products add up in fp32
accumulators of their own, from codes that are exact, and are promoted to those of the tile at the
end of the group, or of the warp's part of the stage (``promote``, with float16 zero points).
Integer zero points are subtracted from codes (``zero_points``). Per-column scales multiply the
result in the epilogue. Scales of FP4 blocks multiply weights (``fp4``), and a factor per column the
result.

**Reductions** (``output``): the warps of a column exchange accumulators through shared memory, each
finishes some 16-column blocks: it begins with its own and adds the others' in the order of warp_k.
Then the blocks of a tile leave partial results in the workspace and count themselves in; the last
to come adds all of them up in fp32, from the top block to the bottom one, itself included: the
order is fixed, so the same input gives the same bits, and no block waits. Factors, bias, the cast
to ``dtype`` and the stores follow, straight from registers.

**Tails.** Of k and n with ``ragged``, of m always. k: the last stage has fewer k16 rows; the
producer copies those that there are, and the warps multiply theirs one at a time. n: the last tile
is copied as far as n_packed, its warps beyond that only release stages, and nothing is stored from
column n on. m: rows of x beyond m are not copied; a lane whose row is missing reads the last one
there is, and what comes of that is not stored.

**Shared memory** (offsets, strides and a picture: ``config``):

=================== ========================== ============================ ====================
where               what                       written by                   read by
=================== ========================== ============================ ====================
stage, 0            weights of stage_k rows    producer, a copy per k16 row a lane: 16 bytes
stage, scales_at    scales of their groups     producer, a copy per group   lanes of column g
stage, zeros_at     zero points of the groups  producer, a copy per group   lanes of column g
stage, x_at         rows of x                  producer, a copy per row     ldmatrix
block, exchange_at  accumulators between warps consumer warps (``output``)  the owner of a column
block, barriers_at  full and empty mbarriers   both                         both
=================== ========================== ============================ ====================

No swizzle is needed: weights lie in the order of the lanes, and the gaps between rows of x shift
each by four banks.
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
    # In global memory: what the epilogue reads and writes. factors: per-column scales, or FP4's
    # factors
    Result = lang.record("Result", "c factors bias partials locks")

    @lang.device
    def finish_tile(acc, result, exchange, item, sharers, thread, sizes):
        """The epilogue: accumulators into C, or, from a tile that blocks share, into the workspace
        until the last of them has come."""
        tile, block = item.tile, uint32(cuda.blockIdx.x)
        own = cuda.local.array(cfg.own_floats, float32)
        output.share_out(acc, own, exchange, thread)
        if thread.warp_k < cfg.owners:
            complete = cfg.whole or sharers.top == sharers.bottom
            if not complete:
                output.leave_partial(own, result.partials, block, sharers.top, tile.rows, thread)
                parts = sharers.bottom - sharers.top + 1
                complete = output.count_in(result.locks, sharers.top, parts, thread)
                if complete:
                    output.add_parts(own, result.partials, sharers.top, parts, tile.rows, thread)
            if complete:
                if cfg.column_factors:
                    output.scale_columns(own, result.factors, tile, thread, sizes)
                if cfg.bias:
                    output.add_bias(own, result.bias, tile, thread, sizes)
                output.write_result(result.c, own, tile, thread, sizes)

    @lang.device
    def consume(result, shared, stripe, thread, sizes):
        """A consumer warp: the main loop over the stages of each item of the stripe, and the
        epilogue of the item."""
        acc = cuda.local.array(cfg.accumulators, float32)
        products = cuda.local.array(multiply.products, float32)
        registers = multiply.Registers(
            acc,
            products if cfg.promoted else acc,
            cuda.local.array(cfg.weight_words, uint32),
            cuda.local.array(cfg.x_words, uint32),
            cuda.local.array(multiply.corrections, uint32),
            cuda.local.array(multiply.minus_x, float32),
            multiply.upper_first(thread.lane),
        )
        offsets = cuda.local.array(multiply.pointers, uint32)
        position, place = stripe.position, ring.consumer_start()
        ptx.griddepcontrol_wait()  # the kernel before may still use c and the workspace
        while position < stripe.end:
            item = schedule.worked_out(schedule.item_at(position, stripe.end, sizes))
            multiply.stage_offsets(offsets, item.tile.rows, thread)
            for i in range(cfg.accumulators):
                acc[i] = float32(0)
            first_column = (item.tile.tile_column * cfg.warps_n + thread.warp_n) * COLUMNS
            columns_exist = not cfg.ragged or first_column < sizes.n_packed
            step = item.first_step
            end_step = step + item.steps
            while step < end_step:
                ring.wait_full(shared.barriers, place)
                if columns_exist:
                    rows = schedule.k16_rows_of(step, sizes)
                    multiply.multiply_stage(registers, shared, offsets, place, rows, thread)
                else:
                    multiply.done_with_stage(shared, place, thread.lane)
                place = ring.advance(place)
                step += 1
            sharers = schedule.sharers_of(position, item, sizes)
            exchange = shared.base + cfg.exchange_at
            finish_tile(acc, result, exchange, item, sharers, thread, sizes)
            position += item.steps

    def decode(a, b, c, scales, zeros, bias, partials, locks, m, n, k, a_stride, factors):
        base = shared_base()
        shared = Shared(base, base + cfg.barriers_at)
        number = ptx.tid_x()
        # A shuffle tells the compiler that all lanes agree on the warp's number.
        warp, lane = ptx.shfl_sync_idx(number // 32, 0), number % 32
        if number == 0:
            ring.initialise(shared.barriers)
        sizes = schedule.sizes_of(uint32(m), uint32(n), uint32(k), uint32(a_stride))
        stripe = schedule.stripe_of(uint32(cuda.blockIdx.x), sizes)
        cuda.syncthreads()
        # As early as this: the next launch starts when all blocks have come here, in the room that
        # they leave, and reads only weights before its own griddepcontrol.wait, which waits until
        # this launch has ended.
        ptx.griddepcontrol_launch_dependents()
        if warp == cfg.consumers:
            if ptx.elect_sync():
                produce(a, b, scales, zeros, shared, stripe, sizes)
        else:
            thread = Thread(warp % cfg.warps_n, warp // cfg.warps_n, lane, warp)
            column_factors = factors if cfg.block_scaled else scales
            result = Result(c, column_factors, bias, partials, locks)
            consume(result, shared, stripe, thread, sizes)

    return decode

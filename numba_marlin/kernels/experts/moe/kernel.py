"""The kernel of a mixture of experts: for every pair of a token and one of its experts e,
``C[pair] = A[token] @ W[e]``, ragged over experts in one persistent launch, for batches where to
read the weights of the experts that are touched is most of the work.

Parameters, in this order. Addresses are raw: multiples of 16 bytes those of a, its rows, b, scales
and partials, the others of their elements. E experts; a pair is number token * top_k + slot
(``formats.routing``).

a            [m, k] of ``dtype``, or [pairs, k] with ``x_of_pairs``; rows are ``a_stride`` elements
             apart
b            packed weights of all experts, int32 [E, k/16, n_packed * bits/2], in decode's order
c            [pairs, n] of ``dtype``; with ``combine`` in fp32, not rounded, for ``sum_experts``.
             Rows of pairs that are in no expert's list are not written. With ``activation``
             [pairs, n / 2], activation(gate) * up, gate's columns being before up's
scales       [E, ...]: of each expert as in ``decode``; so zeros, and factors [E, n_packed] of FP4
bias         [E, n] of ``dtype``
partials     workspace, fp32: partial results of tiles that blocks share, then, with
             ``activation``, [pairs, n]
locks        workspace, int32, zero before and after: of shared tiles, then, with ``activation``,
             counters
pairs        int32, sorted by expert; offsets: int32 [E + 1], where each expert's pairs begin
n, k         int32; n a multiple of 8, with ``activation`` of 128; k of 16. How many rows there
             are offsets[E] says
a_stride     int32

All memory may be written by the launch before, the routing too: nothing is read before
``griddepcontrol.wait``.

**What is decode's, and what is not.** Blocks, warps, shared memory, ring, main loop, fragments,
promotion, stream-K's partial results and tails are those of ``decode``, word for word: its docs say
what they are. A tile belongs to one expert: its rows of x are gathered by the producer where they
lie (``load``: a bulk copy per row and stage, no sorted copy of x, no padding in memory), its
weights are at e times the bytes of one expert's, and its rows of C are scattered or activated
(``output``). Tiles of all experts, in a row, are cut into
equal stripes, so that every SM reads the same bytes however uneven the routing is; how many tiles
there are each block finds out for itself (``schedule``), so that the host never waits for the
routing, and a CUDA graph captures a launch for every routing.

**Reductions, and their order.** Those of decode within a tile. The order depends on where stripes
cut the tile, so on the whole routing: the same input gives the same bits. With ``whole`` it depends
on k only.
"""

from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.decode.multiply import multiply_verbs
from numba_marlin.kernels.experts.moe.load import load_verbs
from numba_marlin.kernels.experts.moe.output import output_verbs
from numba_marlin.kernels.experts.moe.schedule import schedule_verbs
from numba_marlin.kernels.language.pipeline import pipeline_verbs


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    shared_base = lang.shared_base
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=config.consumers)
    schedule = schedule_verbs(lang, config)
    produce = load_verbs(lang, config, ring, schedule)
    multiply = multiply_verbs(lang, config, ring)
    output = output_verbs(lang, config)

    # as in ``decode``
    Thread = lang.record("Thread", "warp_n warp_k lane warp")
    Shared = lang.record("Shared", "base barriers")
    # In global memory: what the epilogue reads and writes
    Epilogue = lang.record("MoeEpilogue", "c column_factors bias partials locks pairs")

    @lang.device
    def finish_tile(acc, own_pair, epilogue, exchange, item, sharers, thread, sizes):
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
                    before = uint64(tile.expert) * sizes.n_packed * (4 if cfg.block_scaled else 2)
                    factors = epilogue.column_factors + before
                    output.apply_column_factors(own, factors, tile, thread, sizes)
                if cfg.bias:
                    bias = epilogue.bias + uint64(tile.expert) * sizes.n * 2
                    output.add_bias(own, bias, tile, thread, sizes)
                output.write(epilogue, own, own_pair, tile, thread, sizes)

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
        while item_position < stripe.end:
            item = schedule.item_at(item_position, stripe.end, sizes)
            own_pair = output.pair_of(epilogue.pairs, item.tile, thread.lane)
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
            finish_tile(acc, own_pair, epilogue, exchange, item, sharers, thread, sizes)
            item_position += item.steps

    def moe(
        a,
        b,
        c,
        scales,
        zeros,
        factors,
        bias,
        partials,
        locks,
        pairs,
        offsets,
        n,
        k,
        a_stride,
    ):
        base = shared_base()
        shared = Shared(base, base + cfg.barriers_at)
        number = ptx.tid_x()
        warp, lane = ptx.shfl_sync_idx(number // 32, 0), number % 32
        if number == 0:
            ring.initialise(shared.barriers)
        ptx.griddepcontrol_wait()
        if warp == 0:
            schedule.count_row_blocks(offsets, base + cfg.table_at, base + cfg.offsets_at, lane)
        cuda.syncthreads()
        ptx.griddepcontrol_launch_dependents()
        sizes = schedule.sizes_of(
            uint32(n), uint32(k), uint32(a_stride), base + cfg.table_at, base + cfg.offsets_at
        )
        stripe = schedule.stripe_of(uint32(cuda.blockIdx.x), sizes)
        if warp == cfg.consumers:
            if ptx.elect_sync():
                produce(a, b, scales, zeros, pairs, shared, stripe, sizes)
        else:
            thread = Thread(warp % cfg.warps_n, warp // cfg.warps_n, lane, warp)
            column_factors = factors if cfg.block_scaled else scales
            epilogue = Epilogue(c, column_factors, bias, partials, locks, pairs)
            consume(epilogue, shared, stripe, thread, sizes)

    return moe

"""W4A8 for few rows: ``C[m, n] = A[m, k] @ W[k, n]`` of 8-bit activations, Marlin's bytes as they
are, by ``mma.sync``: m16n8k32 (s32.s8.s8) of int8, m16n8k16 (f32.f16.f16) of e4m3.

Parameters, in this order. Addresses are raw, aligned as in ``kernels.decode.kernel``:

a                int8 or e4m3 [m, k], k permuted within 16 (``layout.w4a8``), rows side by side
b, scales        as in ``decode``: int32 [k/16, 2 n_packed]; scales [groups, n_packed] of the type
                 of c, or one row, per column
zeros            int32 [groups, n_packed / 8]
c, bias          [m, n] and [n], of one 16-bit type
a_scales         float32 [m], of the rows of x
partials, locks  workspace, fp32 and int32; locks are zero before and after
m, n, k          int32; n a multiple of 8, k of 16

**What is decode's, and what is not.** The transposed product, blocks, warps, ring, producer,
stream-K and its partial results, stores of C and tails are those of ``decode``. x is half as many
bytes. Rows of x have scales, which come in at the end (``finish``). The main loop:

int8   a product is twice as deep, and a word becomes bytes in 5 instructions (9 with zero points)
       (``int8``).
e4m3   decode's (``decode.multiply``), in float16 whatever the type of c: x is widened in registers,
       two instructions for each k16 row and 8 rows of x, however many columns they are multiplied
       by (``decode.activations``); codes less their zero points are float16 too, and all that is
       exact. The 8-bit product of ``mma.sync`` saves nothing: for sm_90 ptxas 13.5 makes two
       products in float16 of a m16n8k32 of e4m3, after a conversion of every register of both
       operands, so that a weight would be made e4m3 (10 instructions for a word) and then float16.

**The bits of int8.** Sums of a group, and with one scale per column all sums up to a depth
(``config.most_k``), are exact integers. Results are those of
``reference.activations.kernel_product`` with one scale per column up to there, whoever shares a
tile; of groups, where a warp has them whole and in order (``order_of_sums``). Otherwise (and where
k is ``deep``) warps and blocks add up parts of k in fp32, in a fixed order, within
``reference.activations.error_bound`` for parts of 16.

**The bits of e4m3.** Products are exact, and of small integers sums too. Others are within
``error_bound``, which is made for sums of e4m3 products, of which tensor cores keep 13 bits; of
float16 products they keep 25 (``emulator.tensor.tensor_sums``). With one scale per column a warp
has one accumulator for all of its k, as in ``decode``. For each 32 of k that loses 10.5 * 2**-23 of
the largest partial sum at most, where the bound has 33 * 2**-13 of the largest product at least:
less, while sums are below 3,000 times that product. (Sums of one sign have a larger bound.)

**Which GPUs.** Bulk copies and mbarriers are Hopper's, so this is no kernel for Ampere or Ada: the
product and the bytes would do there (sm_80; e4m3 sm_89), but loads by ``cp.async`` are another
ring, which ``kernels.ampere`` has.
"""

from numba_marlin.kernels.decode import multiply as halves
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.decode.load import load_verbs
from numba_marlin.kernels.decode.output import output_verbs
from numba_marlin.kernels.decode.schedule import schedule_verbs
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.w4a8.few_rows import int8
from numba_marlin.kernels.w4a8.few_rows.finish import finish_verbs


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, int32, float32 = lang.uint32, lang.int32, lang.float32
    shared_base = lang.shared_base
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=config.consumers)
    schedule = schedule_verbs(lang, config)
    produce = load_verbs(lang, config, ring, schedule)
    main_loop = {"int8": int8, "fp8": halves}[config.activations]
    multiply = main_loop.multiply_verbs(lang, config, ring)
    promoted, product_type = config.promoted, {"int8": int32, "fp8": float32}[config.activations]
    output = output_verbs(lang, config)
    finish = finish_verbs(lang, config, output)

    # as in ``decode``
    Thread = lang.record("Thread", "warp_n warp_k lane warp")
    Shared = lang.record("Shared", "base barriers")
    Epilogue = lang.record("BytesEpilogue", "c column_scales row_scales bias partials locks")

    @lang.device
    def finish_tile(acc, epilogue, exchange, item, sharers, thread, sizes):
        """As in ``decode``: accumulators into C, or into the workspace until the last block of the
        tile has come."""
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
                    output.apply_column_factors(own, epilogue.column_scales, tile, thread, sizes)
                finish(own, epilogue.row_scales, epilogue.bias, tile, thread, sizes)
                output.write_result(epilogue.c, own, tile, thread, sizes)

    @lang.device
    def consume(epilogue, shared, stripe, thread, sizes):
        """A consumer warp: the main loop over the steps of each item of the stripe, and the
        epilogue of the item."""
        acc = cuda.local.array(cfg.accumulators, float32)
        products = cuda.local.array(multiply.products_length, product_type)
        registers = multiply.Registers(
            acc,
            products if promoted else acc,
            cuda.local.array(cfg.weight_words, uint32),
            cuda.local.array(cfg.x_words, uint32),
            cuda.local.array(multiply.zeros_or_scales_length, uint32),
            cuda.local.array(multiply.minus_x_length, float32),
            multiply.reads_upper_first(thread.lane),
        )
        offsets = cuda.local.array(multiply.offsets_length, uint32)
        item_position, place = stripe.begin, ring.consumer_start()
        ptx.griddepcontrol_wait()  # the launch before may still use c and the workspace
        while item_position < stripe.end:
            item = schedule.item_at(item_position, stripe.end, sizes)
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

    def kernel(a, b, c, scales, zeros, bias, a_scales, partials, locks, m, n, k):
        base = shared_base()
        shared = Shared(base, base + cfg.barriers_at)
        number = ptx.tid_x()
        warp, lane = ptx.shfl_sync_idx(number // 32, 0), number % 32
        if number == 0:
            ring.initialise(shared.barriers)
        sizes = schedule.sizes_of(uint32(m), uint32(n), uint32(k), uint32(k))
        stripe = schedule.stripe_of(uint32(cuda.blockIdx.x), sizes)
        cuda.syncthreads()
        ptx.griddepcontrol_launch_dependents()
        if warp == cfg.consumers:
            if ptx.elect_sync():
                produce(a, b, scales, zeros, shared, stripe, sizes)
        else:
            thread = Thread(warp % cfg.warps_n, warp // cfg.warps_n, lane, warp)
            epilogue = Epilogue(c, scales, a_scales, bias, partials, locks)
            consume(epilogue, shared, stripe, thread, sizes)

    return kernel

"""The kernel of a mixture of experts with 8-bit activations: for every pair of a token and one of
its experts e, ``C[pair] = A[token] @ W[e]``, ragged over experts in one persistent launch, at the
8-bit rate of ``wgmma``.

Parameters, in this order; those that ``moe_wgmma`` has too are explained there.

a            address of the codes of x, int8 or e4m3 [m, k], or [pairs, k] with ``x_of_pairs``, k
             permuted within 16 (``layout.w4a8``); rows are ``a_stride`` bytes apart, a multiple of
             16, as the address is
b_map, s_map, z_map   tensor maps of all experts' weights, scales and zero points
c            address of [pairs, n] of the type of scales; with ``combine`` in fp32, not rounded;
             with ``activation`` [pairs, n / 2]
scales       address of the same scales, where there is one per column; bias: [E, n]
a_scales     float32, of the rows of x
pairs, offsets   int32, of the routing
n, k, a_stride   int32; n a multiple of 8, with ``activation`` of 128; k a multiple of 128

**What is whose.** The producer gathers rows of x as that of ``moe_wgmma`` does
(``moe_wgmma.load``): a row of a stage is 128 bytes in both, here of 128 numbers. The consumers'
main loop is that of ``kernels.w4a8`` (``multiply``), whose sums are exact in int8. Tiles are found
and rows scattered, or activated, as in ``moe_wgmma`` (``schedule``, ``output``). New is only how a
row's scale is found: by its place in the routing's list, a token's or a pair's (``row_scale``).

**The bits.** Tiles are whole: no blocks share one. So a pair's row has the bits of
``reference.activations.kernel_product`` in int8, whatever the other tokens are and the tile's shape
is. What stripes would gain for few tiles nobody knows yet.

**Turns** (``ordered``) take the named barriers 1 and 2, so warpgroups meet in the epilogue at 3 and
4.
"""

from numba_marlin.kernels.experts.moe_wgmma.kernel import fenced
from numba_marlin.kernels.experts.moe_wgmma.load import ARRIVALS, load_verbs
from numba_marlin.kernels.experts.moe_wgmma.output import output_verbs
from numba_marlin.kernels.experts.moe_wgmma.schedule import schedule_verbs
from numba_marlin.kernels.experts.tables import WORD_BYTES
from numba_marlin.kernels.hopper.shared import ALIGNMENT, WARPGROUP
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.w4a8.finish import scaling_verb
from numba_marlin.kernels.w4a8.multiply import multiply_verbs
from numba_marlin.kernels.w4a8.turns import MEETING, turn_verbs


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64 = lang.uint32, lang.uint64
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=ARRIVALS, consumers=4 * config.warpgroups)
    schedule = schedule_verbs(lang, config)
    load = load_verbs(lang, config, ring, schedule)
    multiply_item, turns, ordered = (
        multiply_verbs(lang, config, fenced(lang, ring)),
        turn_verbs(lang, config),
        config.ordered,
    )
    output = output_verbs(lang, config, schedule, MEETING)
    pairs_per_row = 1 if config.x_of_pairs else config.top_k
    moves_registers = config.consumer_registers is not None
    give_registers = ptx.setmaxnreg_dec(n=config.producer_registers)
    take_registers = ptx.setmaxnreg_inc(n=config.consumer_registers or 240)

    # as in ``kernels.w4a8``
    Thread = lang.record("Thread", "warpgroup number panel first_strip lane")
    Shared = lang.record("Shared", "base barriers")
    # in global memory: what the epilogue reads and writes. column_scales, bias: of one expert
    Result = lang.record("MoeBytesResult", "c column_scales row_scales bias pairs")

    @lang.device
    def row_scale(result, position):
        """Of the pair at a position of the routing's list."""
        pair = ptx.ld_global_b32(result.pairs + uint64(position) * WORD_BYTES)
        return ptx.ld_global_f32(result.row_scales + uint64(pair // pairs_per_row) * WORD_BYTES)

    scale = scaling_verb(lang, config, row_scale)

    @lang.device
    def own_thread():
        own = ptx.tid_x()
        warpgroup, number = own // WARPGROUP, own % WARPGROUP
        warp = number // 32
        first_strip = (warp // cfg.panels + warpgroup * cfg.warps_per_panel) * cfg.strips
        return Thread(warpgroup, number, warp % cfg.panels, first_strip, number % 32)

    @lang.device
    def of_expert(result, expert, sizes):
        n_packed = (sizes.n + 63) // 64 * 64
        return Result(
            result.c,
            result.column_scales + uint64(expert) * n_packed * 2,
            result.row_scales,
            result.bias + uint64(expert) * sizes.n * 2,
            result.pairs,
        )

    @lang.device
    def consume(shared, result, plan, sizes):
        """A consumer's thread: the main loop of each tile, and its epilogue."""
        thread = own_thread()
        place = ring.consumer_start()
        item = schedule.first_item(plan)
        if ordered:
            turns.open(thread.warpgroup)
        while item.tile != schedule.NO_TILE:
            place, sums = multiply_item(shared, place, item, thread)
            tile = schedule.tile_of(item, plan)
            own = of_expert(result, tile.expert, sizes)
            row = tile.row_first + thread.lane % 4 * 2
            column = schedule.panel_column(tile, thread.panel) + thread.first_strip * 16
            rows = tile.row_first + tile.rows
            acc = scale(sums, own, row, column, thread.lane, rows, sizes.n)
            output.write(acc, shared, own, tile, thread, sizes)
            item = schedule.next_item(plan, item)
        if ordered:
            turns.close(thread.warpgroup)

    def kernel(
        a,
        b_map,
        s_map,
        z_map,
        c,
        scales,
        bias,
        a_scales,
        pairs,
        offsets,
        n,
        k,
        a_stride,
    ):
        # rounded up: the language aligns to 128 bytes only, less than a swizzle's pattern
        base = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        shared = Shared(base, base + cfg.barriers_at)
        tables = schedule.Tables(base + cfg.table_at, base + cfg.offsets_at)
        number = ptx.tid_x()
        if number == 0:
            ring.initialise(shared.barriers)
        ptx.griddepcontrol_wait()
        if number < 32:
            schedule.count_row_blocks(offsets, tables.table, tables.offsets, number)
        cuda.syncthreads()
        ptx.griddepcontrol_launch_dependents()
        columns = uint32(n) // cfg.halves
        sizes = schedule.Sizes(uint32(n), uint32(k), columns, uint32(a_stride))
        plan = schedule.plan_of(sizes, tables)
        if number >= cfg.consumer_threads:
            if moves_registers:
                give_registers()
            maps = load.Maps(a, b_map, s_map, z_map)
            load.produce(a, pairs, shared, maps, plan, sizes, number - cfg.consumer_threads)
        else:
            if moves_registers:
                take_registers()
            consume(shared, Result(c, scales, a_scales, bias, pairs), plan, sizes)

    return kernel

"""The kernel of a mixture of experts for many tokens: for every pair of a token and one of its
experts e, ``C[pair] = A[token] @ W[e]``, ragged over experts in one persistent launch, by
``wgmma``.

Parameters, in this order. E experts; a pair is number token * top_k + slot (``formats.routing``).

a            address of [m, k] of ``dtype``, or [pairs, k] with ``x_of_pairs``; rows are
             ``a_stride`` elements apart; the address, and the distance of rows, are multiples of
             16 bytes
b_map, s_map, z_map   tensor maps (``tensor_maps``) of all experts' weights, scales and zero
             points, one expert's rows behind the other's; each as in ``wgmma``
c            address of [pairs, n] of ``dtype``; with ``combine`` in fp32, not rounded, for
             ``sum_experts``; with ``activation`` [pairs, n / 2], activation(gate) * up. Rows of
             pairs that are in no expert's list are not written
scales       address of the same scales, if there is one per column; factors, bias: [E, ...], each
             of an expert as in ``wgmma``
partials     workspace, fp32: partial results of tiles that blocks share
locks        workspace, int32, zero before and after: of the same tiles
pairs        int32, sorted by expert; offsets: int32 [E + 1], where each expert's pairs begin
n, k, a_stride   int32; n a multiple of 8, with ``activation`` of 128: gate's columns, then up's; k
             a multiple of 64. How many rows there are offsets[E] says

All memory may be written by the launch before, the routing too: nothing is read before
``griddepcontrol.wait``.

**What is wgmma's, and what is not.** The transposed product, warpgroups, the ring, the main loop,
the weights' way to fragments, waves and stripes of tiles, and the reduction of tiles that blocks
share are verbs of ``kernels.wgmma`` and ``kernels.hopper``, whose docs say what they are. A tile
belongs to one expert: which, and how many rows it has, each block finds out from the routing
(``schedule``), so that the host never waits and a CUDA graph captures a launch for every routing.
Rows of x are gathered where they lie, by all threads of the producer (``load``), so a stage's full
mbarrier waits for 128 more arrivals, and a consumer fences the asynchronous proxy behind it. Rows
of C are scattered, rounded or not, or activated (``output``).

**Reductions, and their order.** Within a tile those of ``wgmma``. With ``split`` the order depends
on where stripes cut the tile, so on the whole routing: the same input gives the same bits. Without,
it depends on k only.

**Rows that are not there** are multiplied all the same, with zeros: a short row block costs as much
as a whole one. ``choose`` weighs the height of tiles.
"""

from numba_marlin.kernels.experts.moe_wgmma.load import ARRIVALS, load_verbs
from numba_marlin.kernels.experts.moe_wgmma.output import output_verbs
from numba_marlin.kernels.experts.moe_wgmma.schedule import schedule_verbs
from numba_marlin.kernels.hopper.shared import ALIGNMENT, WARPGROUP
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.wgmma.tensor import tensor_verbs
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64 = lang.uint32, lang.uint64
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=ARRIVALS, consumers=4 * config.warpgroups)
    schedule = schedule_verbs(lang, config)
    load = load_verbs(lang, config, ring, schedule)
    multiply_stages = tensor_verbs(lang, config, fenced(lang, ring))
    output = output_verbs(lang, config, schedule)
    moves_registers = config.consumer_registers is not None
    give_registers = ptx.setmaxnreg_dec(n=config.producer_registers)
    take_registers = ptx.setmaxnreg_inc(n=config.consumer_registers or 240)
    factor_bytes = 4 if config.block_scaled else 2

    # as in ``kernels.wgmma``, of one k group
    Thread = lang.record("Thread", "warpgroup k_group number panel first_strip lane")
    Shared = lang.record("Shared", "base barriers")

    @lang.device
    def own_thread():
        own = ptx.tid_x()
        warpgroup, number = own // WARPGROUP, own % WARPGROUP
        warp = number // 32
        first_strip = (warp // cfg.panels + warpgroup * cfg.warps_per_panel) * cfg.strips
        return Thread(warpgroup, 0, number, warp % cfg.panels, first_strip, number % 32)

    @lang.device
    def of_expert(result, expert, sizes):
        n_packed = (sizes.n + 63) // 64 * 64
        return output.Result(
            result.c,
            result.column_scales + uint64(expert) * n_packed * factor_bytes,
            result.bias + uint64(expert) * sizes.n * 2,
            result.partials,
            result.locks,
            result.pairs,
        )

    @lang.device
    def consume(shared, result, plan, sizes):
        """A consumer's thread: the main loop of each item, and its epilogue."""
        thread = own_thread()
        place = ring.consumer_start()
        item = schedule.first_item(plan)
        while item.tile != schedule.NO_TILE:
            place, acc = multiply_stages(shared, place, item, thread)
            whole, acc = output.combine(acc, shared, result, item, plan, thread)
            if whole:
                tile = schedule.tile_of(item, plan)
                own = of_expert(result, tile.expert, sizes)
                acc = output.finish_columns(acc, own, item, plan, thread, sizes)
                output.write(acc, shared, own, tile, thread, sizes)
            item = schedule.next_item(plan, item)

    def moe_wgmma(
        a,
        b_map,
        s_map,
        z_map,
        c,
        scales,
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
            column_scales = factors if cfg.block_scaled else scales
            result = output.Result(c, column_scales, bias, partials, locks, pairs)
            consume(shared, result, plan, sizes)

    return moe_wgmma


def fenced(lang, ring):
    """The ring for consumers that multiply what ordinary copies have brought (``load``)."""
    ptx = lang.ptx

    @lang.device
    def wait_full(barriers, place):
        ring.wait_full(barriers, place)
        ptx.fence_proxy_async_shared()

    return lang.namespace(
        "ring",
        Place=ring.Place,
        wait_full=wait_full,
        release=ring.release,
        advance=ring.advance,
    )


def tensor_maps(config, m, n, k, a_stride):
    """-> {parameter: (matrix, TensorMap)}: those of ``kernels.wgmma``, with the rows of all experts
    behind each other. With ``activation`` a box has half a tile's columns, and one scale row."""
    n_packed, experts = ceil_div(n, 64) * 64, config.experts
    row = config.w_elements * n_packed  # of b, in uint64
    box = (config.stage_k16_rows, config.w_elements * config.w_box_columns)
    b_map = TensorMap("uint64", (experts * k // 16, row), (8 * row, 8), box, l2_promotion=256)
    groups = k // (16 * config.k16_per_scale_row) if config.grouped else 1
    shape = (experts * groups, n_packed)
    box = (1 if config.gated else config.scale_rows, config.half_columns)
    scales = TensorMap(config.dtype, shape, (2 * n_packed, 2), box, l2_promotion=128)
    if config.block_scaled:
        words = ceil_div(k, 32) * config.scale_words  # of a panel
        box = (config.half_panels, config.scale_rows * config.scale_words)
        shape = (experts * n_packed // 64, words)
        scales = TensorMap("int32", shape, (4 * words, 4), box, l2_promotion=128)
    zeros = ("scales", scales)  # a map must be passed, nobody reads it
    if config.zeros == "integer":
        codes = 32 // config.bits  # of a word
        shape, box = (shape[0], n_packed // codes), (config.scale_rows, config.tile_n // codes)
        words_map = TensorMap("int32", shape, (4 * shape[1], 4), box, l2_promotion=128)
        zeros = ("zeros", words_map)
    if config.zeros == "float16":
        box = (config.scale_rows, config.tile_n)
        zeros = (
            "zeros",
            TensorMap("float16", shape, (2 * n_packed, 2), box, l2_promotion=128),
        )
    return {"b_map": ("b", b_map), "s_map": ("scales", scales), "z_map": zeros}

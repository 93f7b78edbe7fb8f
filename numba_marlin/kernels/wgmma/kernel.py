"""The Hopper kernel for larger batches: ``wgmma`` on the transposed product, straight from Marlin's
bytes.

``C[m, n] = A[m, k] @ W[k, n]``; parameters: tensor maps (``tensor_maps``) of a [m, k], its rows
a_stride elements apart and 16-byte aligned, of c [m, n], and in Marlin's order of b int32 [k/16,
n_packed bits/2], scales [groups, n_packed], and zeros int32 [groups, n_packed bits/32] or float16
[groups, n_packed] (of the scales again, if there are none), n_packed = n completed to 64 (of FP4:
``formats.fp4_marlin``, with factors); c and scales once more as addresses; bias [n]; partials fp32
and locks int32 (``workspace_bytes``; locks zero before, zero again after); m, n, k, a_stride as
int32. m any, k a multiple of 16, n of 8.

Why it works without a relayout: ``wgmma`` takes its first operand from registers, 16 rows a warp.
Word j of a lane's 16-byte vector, dequantised and put in the order d0, d2, d1, d3, *is* that
operand for 16 columns of W: the kernel computes C^T = W^T X^T, and x, the second operand, comes
from shared memory as TMA laid it down.

The ideas, in the order in which the kernel reads:
- *Persistent blocks.* One block an SM. Tiles that fill whole waves are taken one after the other,
  in an order that keeps a wave's rows and columns in L2; the tiles left over are cut along k into
  equal stripes, one a block, so that all finish together.
- *Roles.* One thread of the last warpgroup keeps ``stages`` steps of x, weights and scales on their
  way; the other warpgroups multiply, each its own columns.
- *Dequantise behind the multiply.* While the tensor cores run one k16 row, the integer units spread
  the next one into other registers.
- *Fix-up without waiting.* Blocks that share a tile, as stripes cut it or as equal parts of it,
  leave fp32 partial tiles in the workspace; the last one to arrive adds them all, in the order of
  the blocks: no block waits for another, and the same input gives the same bits.
- *Launches that overlap.* Weights are on their way while the kernel before this one on the stream
  ends (``griddepcontrol``), and blocks begin on multiprocessors that its blocks have left. Nothing
  but weights is touched before that kernel is complete.
- *Output.* ``stmatrix`` transposes the accumulators into shared memory, each warp its own columns,
  and a tensor store carries them off while the next tile begins.
"""

from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.wgmma.config import (
    ALIGNMENT,
    PRODUCER_REGISTERS,
    STAGE_K,
    STAGE_ROWS,
    WARPGROUP,
)
from numba_marlin.kernels.wgmma.exchange import exchange_verbs
from numba_marlin.kernels.wgmma.load import load_verbs
from numba_marlin.kernels.wgmma.output import output_verbs
from numba_marlin.kernels.wgmma.schedule import NO_TILE, schedule_verbs
from numba_marlin.kernels.wgmma.tensor import tensor_verbs
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    ptx, uint32 = lang.ptx, lang.uint32
    shared_base = lang.shared_base
    WARPGROUPS, CONSUMERS, CLUSTER, WORDS, N_BLOCKS = (
        config.warpgroups,
        config.consumers,
        config.cluster,
        config.words,
        config.tile_n // 64,
    )
    BARRIERS, C_SHARED, FLAGS, block_scaled = (
        config.barriers_shared,
        config.c_shared,
        config.flags_shared,
        config.block_scaled,
    )
    pipeline = pipeline_verbs(lang, config.stages, producers=1, consumers=4 * WARPGROUPS)
    initialise, producer_start, consumer_start = (
        pipeline.initialise,
        pipeline.producer_start,
        pipeline.consumer_start,
    )
    schedule = schedule_verbs(lang, config)
    plan, first_item, next_item = schedule.plan, schedule.first_item, schedule.next_item
    load = load_verbs(lang, config, pipeline)
    fill_first, fill_stages = load.fill_first, load.fill_stages
    multiply_stages = tensor_verbs(lang, config, pipeline).multiply_stages
    exchange = exchange_verbs(lang, config)
    open_exchange, add_groups, add_blocks, close_exchange = (
        exchange.open_exchange,
        exchange.add_groups,
        exchange.add_blocks,
        exchange.close_exchange,
    )
    output = output_verbs(lang, config)
    combine, finish_columns, write_result, drain = (
        output.combine,
        output.finish_columns,
        output.write_result,
        output.drain,
    )
    MOVE_REGISTERS = config.consumer_registers is not None
    give_registers, take_registers = (
        ptx.setmaxnreg_dec(n=PRODUCER_REGISTERS),
        ptx.setmaxnreg_inc(n=config.consumer_registers or 240),
    )

    @lang.device
    def own_place():
        """(consumer warpgroup among those side by side, thread in it, its first word, its 64-column
        block, lane, its row of consumers)"""
        thread = ptx.tid_x()
        warpgroup, own = uint32(thread // uint32(WARPGROUP)), uint32(thread % uint32(WARPGROUP))
        column, k_group = (
            uint32(warpgroup % uint32(WARPGROUPS)),
            uint32(warpgroup // uint32(WARPGROUPS)),
        )
        warp = uint32(own // uint32(32))
        first_word = uint32(
            (warp // uint32(N_BLOCKS) + column * uint32(4 // N_BLOCKS)) * uint32(WORDS)
        )
        return (
            column,
            own,
            first_word,
            uint32(warp % uint32(N_BLOCKS)),
            uint32(own % uint32(32)),
            k_group,
        )

    @lang.device
    def produce(shared, maps, sizes):
        work = plan(sizes)
        place = producer_start()
        item = first_item(work)
        if item[0] != uint32(NO_TILE):
            place, item = fill_first(
                shared, shared + uint32(BARRIERS), place, item, work, maps, sizes
            )
        while item[0] != uint32(NO_TILE):
            place = fill_stages(shared, shared + uint32(BARRIERS), place, item, work, maps, sizes)
            item = next_item(work, item)

    @lang.device
    def consume(shared, c, c_map, scales, bias, partials, locks, sizes):
        lane_place = own_place()
        work = plan(sizes)
        place = consumer_start()
        item = first_item(work)
        turn = uint32(0)
        ptx.griddepcontrol_wait()  # c and the workspace may still be those of the kernel before
        while item[0] != uint32(NO_TILE):
            slot = place[0]
            place, sums = multiply_stages(
                shared, shared + uint32(BARRIERS), place, item[1], item[2], lane_place
            )
            sums = add_groups(sums, shared, turn, slot, item[2], lane_place)
            if lane_place[5] == uint32(0):
                if CLUSTER > 1:
                    add_blocks(sums, shared, turn, c, scales, bias, item, work, lane_place, sizes)
                else:
                    whole, sums = combine(
                        sums, shared + uint32(FLAGS), partials, locks, item, work, lane_place
                    )
                    if whole:
                        sums = finish_columns(sums, scales, bias, item, work, lane_place, sizes)
                        write_result(sums, shared + uint32(C_SHARED), c_map, item, work, lane_place)
            turn = uint32(turn + uint32(1))
            item = next_item(work, item)
        drain(lane_place)
        close_exchange(shared, turn)

    def kernel(
        a_map,
        b_map,
        s_map,
        c_map,
        c,
        scales,
        zeros,
        bias,
        partials,
        locks,
        m,
        n,
        k,
        a_stride,
        z_map,
        factors,
    ):
        sizes = (uint32(m), uint32(n), uint32(k))
        shared = uint32((shared_base() + uint32(ALIGNMENT - 1)) & uint32(2**32 - ALIGNMENT))
        if ptx.tid_x() == uint32(0):
            initialise(shared + uint32(BARRIERS))
        open_exchange(shared)
        ptx.griddepcontrol_launch_dependents()
        if ptx.tid_x() >= uint32(WARPGROUP * CONSUMERS):
            if MOVE_REGISTERS:
                give_registers()
            if ptx.tid_x() == uint32(WARPGROUP * CONSUMERS):
                produce(shared, (a_map, b_map, s_map, z_map), sizes)
        else:
            if MOVE_REGISTERS:
                take_registers()
            consume(
                shared, c, c_map, factors if block_scaled else scales, bias, partials, locks, sizes
            )

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """x in boxes of a tile's rows by one swizzle row; weights, 8 bytes for 4 bits a column and k16
    row, scales and zero points in boxes of a stage by the tile's columns, or half of them; c in
    boxes of a tile's rows by one warp's columns."""
    columns, n_packed, groups = (
        16 * config.words,
        ceil_div(n, 64) * 64,
        ceil_div(k, 16 * config.scale_blocks) if config.grouped else 1,
    )
    numbers, rows = config.bits // 4, config.groups_per_stage
    scales = TensorMap(
        config.dtype, (groups, n_packed), (2 * n_packed, 2), (rows, config.tile_n), 0, 128
    )
    if config.block_scaled:
        words_of_scales = groups * config.scale_words
        scales = TensorMap(
            "int32",
            (n_packed // 64, words_of_scales),
            (4 * words_of_scales, 4),
            (config.tile_n // 64, rows * config.scale_words),
            0,
            128,
        )
    words = 32 // config.bits
    zeros = {
        None: ("scales", scales),  # a map must be passed, nobody reads it
        "integer": (
            "zeros",
            TensorMap(
                "int32",
                (groups, n_packed // words),
                (4 * n_packed // words, 4),
                (rows, config.tile_n // words),
                0,
                128,
            ),
        ),
        "float16": (
            "zeros",
            TensorMap(
                "float16", (groups, n_packed), (2 * n_packed, 2), (rows, config.tile_n), 0, 128
            ),
        ),
    }[config.zeros]
    return {
        "a_map": (
            "a",
            TensorMap(config.dtype, (m, k), (2 * a_stride, 2), (config.tile_m, STAGE_K), 128, 256),
        ),
        "b_map": (
            "b",
            TensorMap(
                "uint64",
                (k // 16, numbers * n_packed),
                (8 * numbers * n_packed, 8),
                (STAGE_ROWS, numbers * config.w_box_columns),
                0,
                256,
            ),
        ),
        "s_map": ("scales", scales),
        "c_map": (
            "c",
            TensorMap(config.dtype, (m, n), (2 * n, 2), (config.tile_m, columns), 2 * columns, 0),
        ),
        "z_map": zeros,
    }

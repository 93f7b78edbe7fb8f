"""The Hopper kernel for larger batches: ``wgmma`` on the transposed product, straight from Marlin's bytes.

``C[m, n] = A[m, k] @ W[k, n]``; parameters: a_map and c_map, tensor maps of a [m, k] (rows a_stride elements apart, 16-byte aligned) and of
c [m, n]; b int32 [k/16, 2 n_packed] and scales [groups, n_packed] in Marlin's order, n_packed = n completed to 64; partials fp32 and locks int32
(``workspace_bytes``; locks zero before, zero again after); m, n, k, a_stride as int32. m any, k a multiple of 16, n of 8.

Why it works without a relayout: ``wgmma`` takes its first operand from registers, 16 rows a warp. Word j of a lane's 16-byte vector, dequantised and
put in the order d0, d2, d1, d3, *is* that operand for 16 columns of W: the kernel computes C^T = W^T X^T, and x, the second operand, comes
from shared memory as TMA laid it down.

The ideas, in the order in which the kernel reads:
- *Persistent blocks.* One block an SM. Tiles that fill whole waves are taken one after the other, in an order that keeps a wave's rows and columns
  in L2; the tiles left over are cut along k into equal stripes, one a block, so that all finish together.
- *Roles.* One thread of the last warpgroup keeps ``stages`` steps of x, weights and scales on their way; the other warpgroups multiply, each its own columns.
- *Dequantise behind the multiply.* While the tensor cores run one k16 row, the integer units spread the next one into other registers.
- *Fix-up without waiting.* Blocks that share a tile leave fp32 partial tiles in the workspace; the last one to arrive adds them all, in the order
  of the blocks: no block waits for another, and the same input gives the same bits.
- *Output.* ``stmatrix`` transposes the accumulators into shared memory, each warp its own columns, and a tensor store carries them off while the next tile begins.
"""
from numba_marlin.kernels.definition import KernelDefinition
from numba_marlin.kernels.pipeline import pipeline_verbs
from numba_marlin.kernels.wgmma_config import ALIGNMENT, STAGE_K, STAGE_ROWS, WARPGROUP, WgmmaConfig
from numba_marlin.kernels.wgmma_load import load_verbs
from numba_marlin.kernels.wgmma_output import output_verbs
from numba_marlin.kernels.wgmma_schedule import schedule_verbs
from numba_marlin.kernels.wgmma_tensor import tensor_verbs
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32 = lang.uint32
    shared_base = lang.shared_base
    CONSUMERS, STAGES, STAGE = config.warpgroups, config.stages, config.stage_bytes
    N_BLOCKS, WORDS, TILE_N = config.tile_n // 64, config.words, config.tile_n
    C_SHARED = STAGES * STAGE
    BARRIERS = C_SHARED + config.c_bytes
    FLAGS = config.shared_bytes - ALIGNMENT - 16
    pipeline = pipeline_verbs(lang, STAGES, producers=1, consumers=4 * CONSUMERS)
    initialise, producer_start, consumer_start = pipeline.initialise, pipeline.producer_start, pipeline.consumer_start
    schedule = schedule_verbs(lang, config)
    plan, first_item, next_item = schedule.plan, schedule.first_item, schedule.next_item
    fill_stages = load_verbs(lang, config, pipeline).fill_stages
    tensor = tensor_verbs(lang, config, pipeline)
    zero, multiply_stages = tensor.zero, tensor.multiply_stages
    output = output_verbs(lang, config)
    combine, scale_columns, write_result, drain = output.combine, output.scale_columns, output.write_result, output.drain
    MOVE_REGISTERS = CONSUMERS == 2
    give_registers, take_registers = ptx.setmaxnreg_dec(n=24), ptx.setmaxnreg_inc(n=240)

    @lang.device
    def own_place():
        """(consumer warpgroup, thread in it, its first word, its 64-column block, lane)"""
        thread = ptx.tid_x()
        warpgroup, own = uint32(thread // uint32(WARPGROUP)), uint32(thread % uint32(WARPGROUP))
        warp = uint32(own // uint32(32))
        first_word = uint32((warp // uint32(N_BLOCKS) + warpgroup * uint32(4 // N_BLOCKS)) * uint32(WORDS))
        return warpgroup, own, first_word, uint32(warp % uint32(N_BLOCKS)), uint32(own % uint32(32))

    @lang.device
    def produce(shared, a_map, b, scales, sizes):
        barriers = shared + uint32(BARRIERS)
        work = plan(sizes)
        place = producer_start()
        item = first_item(work)
        while item[2] != uint32(0):
            place = fill_stages(shared, barriers, place, item, work, a_map, b, scales, sizes)
            item = next_item(work, item)

    @lang.device
    def consume(shared, c_map, scales, partials, locks, sizes):
        barriers = shared + uint32(BARRIERS)
        lane_place = own_place()
        work = plan(sizes)
        place = consumer_start()
        item = first_item(work)
        while item[2] != uint32(0):
            place, sums = multiply_stages(shared, barriers, place, item[2], lane_place)
            whole, sums = combine(sums, shared + uint32(FLAGS), partials, locks, item, work, lane_place)
            if whole:
                sums = scale_columns(sums, scales, item, work, lane_place, sizes)
                write_result(sums, shared + uint32(C_SHARED), c_map, item, work, lane_place)
            item = next_item(work, item)
        drain(lane_place)

    def kernel(a_map, b, c_map, scales, zeros, bias, partials, locks, m, n, k, a_stride):
        sizes = (uint32(m), uint32(n), uint32(k))
        shared = uint32((shared_base() + uint32(ALIGNMENT - 1)) & uint32(2**32 - ALIGNMENT))
        if ptx.tid_x() == uint32(0):
            initialise(shared + uint32(BARRIERS))
        cuda.syncthreads()
        if ptx.tid_x() >= uint32(WARPGROUP * CONSUMERS):
            if MOVE_REGISTERS:
                give_registers()
            if ptx.tid_x() == uint32(WARPGROUP * CONSUMERS):
                produce(shared, a_map, b, scales, sizes)
        else:
            if MOVE_REGISTERS:
                take_registers()
            consume(shared, c_map, scales, partials, locks, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """x in boxes of a tile's rows by one swizzle row, c in boxes of a tile's rows by one warp's columns."""
    columns = 16 * config.words
    return {
        "a_map": ("a", TensorMap("float16", (m, k), (2 * a_stride, 2), (config.tile_m, STAGE_K), 128, 256)),
        "c_map": ("c", TensorMap("float16", (m, n), (2 * n, 2), (config.tile_m, columns), 2 * columns, 0)),
    }


KERNEL = KernelDefinition(
    name="wgmma",
    summary="the Hopper kernel for larger batches: TMA, wgmma with weights from registers, tiles shared along k",
    config_type=WgmmaConfig,
    parameters=(("a_map", "tensormap"), ("b", "u64"), ("c_map", "tensormap"), ("scales", "u64"), ("zeros", "u64"), ("bias", "u64"), ("partials", "u64"),
                ("locks", "u64"), ("m", "i32"), ("n", "i32"), ("k", "i32"), ("a_stride", "i32")),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    tensor_maps=tensor_maps,
    waits=False,
    min_arch="sm_90a",
)

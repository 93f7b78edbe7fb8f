"""The Hopper kernel for larger batches: ``wgmma`` on the transposed product, straight from Marlin's
bytes. ``C[m, n] = A[m, k] @ W[k, n]``.

Parameters: tensor maps (``tensor_maps``) of a [m, k] (called x; rows ``a_stride`` elements apart,
16-byte aligned), of c [m, n], and in Marlin's order of b int32 [k/16, n_packed bits/2], scales
[groups, n_packed], and zeros int32 [groups, n_packed bits/32] or float16 [groups, n_packed] (of the
scales again, if there are none); n_packed is n completed to 64. (Of FP4: ``formats.fp4_marlin``,
with factors.) c and scales once more as addresses; bias [n]; partials fp32 and locks int32
(``workspace_bytes``; locks zero before, zero again after); m, n, k, a_stride as int32. m any, k a
multiple of 16, n of 8.

**The idea.** ``wgmma`` (sm_90a: a warpgroup, four warps, multiplies m64 by k16) takes its first
operand, A, from registers, and its second, B, from shared memory. Weights must pass through
registers to be dequantised, so they must be the first: the kernel computes C^T = W^T x^T. Then no
byte of Marlin's layout has to move, dequantised weights never go back to shared memory, and x is
multiplied where TMA laid it down.

**Who does what.** Blocks are persistent, one per SM, and warpgroups specialised. The last one is
the producer: one thread of it copies (``load``), and it gives its registers up to the others
(``setmaxnreg``). The other ``warpgroups * k_groups`` are consumers: they dequantise, multiply all
rows of the tile (``tensor``), and write C (``output``). Side by side along n stand ``warpgroups``
of them. With ``k_groups=2`` there is a second row of as many; the rows take turns with the stages.
A consumer's share of the columns: in Marlin's bytes a lane's 16-byte vector belongs to a block of
64 columns, and has four words, each of 16 columns. A warp takes ``words`` words of one block. Its
r-th word, with those of the other three warps, is one m64 operand of ``wgmma``: 16 rows from each
warp, which is where the instruction wants them. So a warpgroup issues ``words`` products per k16
row, and has as many sets of tile_m / 2 accumulators per thread.

**What is in flight, and what guards a stage.** The ring has ``stages`` stages of 64 along k, and
runs on from tile to tile. A stage's *full* mbarrier completes when the bytes that the producer
announced have landed, its *empty* mbarrier when all consumer warps that use the stage have released
it, once its last product is done: that is while the next stage multiplies. ``RingPlace(stage,
parity)`` is a thread's place in the ring (``language.pipeline``). A consumer has two wgmma groups
in flight at most, of a k16 row each. While one multiplies, the integer units dequantise the next
row into other registers (``tensor``). Programmatic dependent launch (``griddepcontrol``): a
launch's blocks begin on SMs that the kernel before has left, and a ring full of weights is on its
way before that kernel has ended. Nothing but weights, scales and zero points is touched before it
is complete.

**How work is divided** (``schedule``). Tiles of C that fill whole waves are taken one after the
other, in an order that keeps a wave's rows and columns in L2. With ``split`` (stream-K) the tiles
left over are cut along k into equal stripes, one per block, so that all finish together. With
``parts`` (split-K), or ``cluster``, so many blocks share every tile, each an equal part of its k.

**Which k and n a nibble holds.** Lane 4g + t loads 16 bytes per k16 row, words j = 0 to 3. Nibble p
of word j is W[k, n] at k = 2t + p // 4 + 8 (p % 2), n = 16j + g + 8 (p // 2 % 2) of the block's 16
x 64. In W^T that is row g or g + 8 of 16, and column k. So nibbles (0, 4), (2, 6), (1, 5) and (3,
7) are, in this order, the four registers of this lane's A fragment of ``wgmma``: rows g, g + 8, g,
g + 8, columns 2t and 2t + 1, the last two with 8 more. (``expand`` gives d0 to d3 of nibbles (0,
4), (1, 5), (2, 6), (3, 7); the fragment is d0, d2, d1, d3.) 8-bit codes: ``weights``. FP4 numbers
stand in the same words (``formats.fp4_words``). Accumulator 4v + 2h + e of the lane is C[8v + 2t +
e, 16j + g + 8h].

**Where scales are applied.** Group scales multiply weights, in 16 bits, after the zero point is
subtracted (``weights``). With ``scaling="sums"`` weights stay integers, and a group's products are
scaled in fp32 when they are added to the tile's (``tensor``). Per-column scales, FP4's factor per
column, and the bias come in the epilogue, in fp32 (``columns``). FP4's block scales multiply
weights (``fp4``).

**Reductions, and their order.** Along k a consumer's accumulators add up in ``wgmma``. The second
row of consumers hands its own to the first through shared memory. Blocks of a cluster read each
other's through DSMEM, in the order of their ranks, and each finishes a share of the tile
(``exchange``). Other blocks that share a tile leave fp32 partial tiles in the workspace and count
themselves in; the last to come adds them all, its own too, in the order of the blocks (``output``).
No block waits for another there, and the order is fixed: the same input gives the same bits. Then
``stmatrix`` transposes the accumulators into shared memory, each warp its own columns, and a tensor
store carries them off while the next tile begins.

**Tails** need no code in the main loop: a tensor copy brings zeros for what lies outside of x, the
weights and their scales, and a tensor store clips C. Addresses in global memory, of scales, bias
and a cluster's pieces of C, are guarded by m and n.

**Shared memory** (offsets and a picture: ``shared``):

=================== ========================== ======================== ========================
where               what                         written by               read by
=================== ========================== ======================== ========================
stage, 0            x, rows of 128 bytes         TMA, swizzled            wgmma, by descriptor
stage, weights_at   four k16 rows of weights     TMA, a box or two        a lane: its words
stage, scales_at    scales of their groups       TMA                      lanes of column g
stage, zeros_at     zero points of the groups    TMA                      lanes of column g
block, result_at    the tile of C, by warps      stmatrix, swizzled       the tensor store
block, exchange_at  fp32 accumulators            consumers, blocks        consumers, the cluster
block, barriers_at  full and empty mbarriers     both sides               both sides
block, flags_at     how many blocks came, or 0   thread 0 of a warpgroup  its warpgroup
=================== ========================== ======================== ========================
"""

from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.wgmma.config import PRODUCER_REGISTERS
from numba_marlin.kernels.wgmma.exchange import exchange_verbs
from numba_marlin.kernels.wgmma.load import load_verbs
from numba_marlin.kernels.wgmma.output import output_verbs
from numba_marlin.kernels.wgmma.schedule import NO_TILE, schedule_verbs
from numba_marlin.kernels.wgmma.shared import ALIGNMENT, STAGE_K, STAGE_ROWS, WARPGROUP
from numba_marlin.kernels.wgmma.tensor import tensor_verbs
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    ptx, shared_base = lang.ptx, lang.shared_base
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=4 * config.warpgroups)
    schedule = schedule_verbs(lang, config)
    load = load_verbs(lang, config, ring)
    multiply_stages = tensor_verbs(lang, config, ring)
    exchange, output = exchange_verbs(lang, config), output_verbs(lang, config)
    in_cluster, moves_registers = config.cluster > 1, config.consumer_registers is not None
    give_registers = ptx.setmaxnreg_dec(n=PRODUCER_REGISTERS)
    take_registers = ptx.setmaxnreg_inc(n=config.consumer_registers or 240)

    # warpgroup: of the consumers side by side; k_group: their row; number: of the thread in its
    # warpgroup; block: of 64 columns of the tile; first_word: of the warp's, among the block's four
    Thread = lang.record("Thread", "warpgroup k_group number block first_word lane")
    # In shared memory: addresses of the ring of stages, which comes first, and of its barriers
    Shared = lang.record("Shared", "base barriers")
    # In global memory: what the epilogue reads and writes. scales: of columns, or FP4's factors
    Result = lang.record("Result", "c c_map scales bias partials locks")

    @lang.device
    def own_thread():
        """A consumer's."""
        number = ptx.tid_x() % WARPGROUP
        consumer, warp = ptx.tid_x() // WARPGROUP, number // 32
        warpgroup, k_group = consumer % cfg.warpgroups, consumer // cfg.warpgroups
        first_word = (warp // cfg.blocks_n + warpgroup * cfg.warps_per_block) * cfg.words
        return Thread(warpgroup, k_group, number, warp % cfg.blocks_n, first_word, number % 32)

    @lang.device
    def produce(shared, maps, sizes):
        """One thread: the stages of all items of this block."""
        plan = schedule.plan_of(sizes)
        place = ring.producer_start()
        item = schedule.first_item(plan)
        if item.tile != NO_TILE:
            place, item = load.fill_first(shared, place, item, plan, maps, sizes)
        while item.tile != NO_TILE:
            place = load.fill_stages(shared, place, item, plan, maps, sizes)
            item = schedule.next_item(plan, item)

    @lang.device
    def consume(shared, result, sizes):
        """A consumer's thread: the main loop of each item, and its epilogue."""
        thread = own_thread()
        plan = schedule.plan_of(sizes)
        place = ring.consumer_start()
        item = schedule.first_item(plan)
        turn = 0
        ptx.griddepcontrol_wait()  # c and the workspace may still be those of the kernel before
        while item.tile != NO_TILE:
            slot = place.stage
            place, acc = multiply_stages(shared, place, item, thread)
            acc = exchange.add_groups(acc, shared, turn, slot, item.steps, thread)
            if thread.k_group == 0:
                if in_cluster:
                    exchange.add_blocks(acc, shared, turn, result, item, plan, thread, sizes)
                else:
                    whole, acc = output.combine(acc, shared, result, item, plan, thread)
                    if whole:
                        acc = output.finish_columns(acc, result, item, plan, thread, sizes)
                        output.write_result(acc, shared, result, item, plan, thread)
            turn += 1
            item = schedule.next_item(plan, item)
        output.drain(thread)
        exchange.close_exchange(shared, turn)

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
        sizes = schedule.Sizes(m, n, k)
        base = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        shared = Shared(base, base + cfg.barriers_at)
        if ptx.tid_x() == 0:
            ring.initialise(shared.barriers)
        exchange.open_exchange(shared)
        ptx.griddepcontrol_launch_dependents()
        if ptx.tid_x() >= cfg.consumer_threads:
            if moves_registers:
                give_registers()
            if ptx.tid_x() == cfg.consumer_threads:
                produce(shared, load.Maps(a_map, b_map, s_map, z_map), sizes)
        else:
            if moves_registers:
                take_registers()
            column_factors = factors if cfg.block_scaled else scales
            result = Result(c, c_map, column_factors, bias, partials, locks)
            consume(shared, result, sizes)

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

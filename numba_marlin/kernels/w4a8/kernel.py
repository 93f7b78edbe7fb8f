"""W4A8 on Hopper: Marlin's bytes times 8-bit activations at the 8-bit rate of ``wgmma``.
``C[m, n] = A[m, k] @ W[k, n]``. The same weights, unmoved, that ``wgmma`` multiplies in 16 bits.

Parameters, in the signature's order:

a_map, b_map, s_map, c_map, z_map, o_map   tensor maps (``tensor_maps``) of
                   codes of x int8 or e4m3 [m, k], k permuted within 16 (``layout.w4a8``); b int32
                   [k/16, 2 n_packed] in Marlin's order; scales [groups, n_packed] of the type of c;
                   c [m, n]; zero points int32 [groups, n_packed / 8]; offsets of x, of the type of
                   c, [m, parts, P] (``layout.offsets``); the scales again where there are no
                   zero points, or no offsets
c, scales          addresses of the same; of scales, where there is one per column, or with offsets
bias               [n], of the type of c
a_scales           float32 [m], of the rows of x
partials, locks    workspace of tiles in parts (``parts_workspace``), fp32 (int32 where sums are)
                   and int32; locks are zero before and after
m, n, k            int32, at least 1; k a multiple of 16, n of 8

**The idea.** The transposed product and everything around it are those of ``kernels.wgmma``:
weights pass through registers as the operand A of ``wgmma``, x lies in shared memory as TMA laid it
down, one warpgroup copies, the others multiply. The ring, the producer, the order of tiles and the
store of C are the same device functions (``kernels.hopper``). What is new is between the load of a
word and the total (``multiply`` has the order of a round, ``elements`` what differs between int8
and e4m3):

    load        words of eight k16 rows, a stage: 128 of k, one row of x's swizzle in 8 bits
    dequantise  a word's 8 codes to bytes of x's type, less the zero point, exactly: 5 instructions
                in int8 and 10 in e4m3, 9 and 11 with zero points (``elements``). No 16-bit numbers,
                no scales. In e4m3 without zero points 5 instructions, and a byte is its code, or
                the code less 15; what that is too much x brings, as ``offsets``.
    multiply    ``wgmma`` m64nNk32: s8 times s8 into s32, exact; e4m3 times e4m3 into fp32, of whose
                bits tensor cores keep 13 (``reference.small_sums``)
    promote     a scale group's sums into fp32 totals. In e4m3 an FMA for each, and every 1,024 of k
                where there is one scale per column. In int8 three instructions: sums fit in 22
                bits, so that adding the bits of 1.5 * 2**23 makes a float of the integer, where
                ``cvt`` has a quarter of the rate or less.

With int8 and one scale per column sums are integers to the end, and no total stands beside them.

**Parts** (``parts``). Where tiles are fewer than SMs, so many blocks share each along k, and who
comes last adds up, as in ``kernels.wgmma`` (``hopper.output``): totals, or, where nothing is
promoted, the integers.

**The bits.** ``reference.activations`` has the order of fp32 operations, of parts too; in int8
results match it bit for bit, for every tile shape, and in e4m3 they are within its bound. Bytes
count in units of a power of two that the row's scale takes out: fma(16 D, s, 16 total) is 16 fma(D,
s, total), for no exponent here comes near the ends of fp32 (scales of x below 2**-122, of rows that
are all but zero in bfloat16, may lose bits).

**A step's time** (128 of k, two consumer warpgroups, so two warps a scheduler; instructions are
counted in the SASS; tensor cores at 4096 products a cycle and SM; cycles at 1.75 GHz of an H200,
sizes 4096 and 8192, 2026-11-29). Where sums are promoted neither issue slots nor tensor cores are
the limit, but each warpgroup's chain of one instruction after the other (``multiply`` has its
parts).

    tile       type, groups     instructions   issue   tensor cores   measured
    128 x 128  int8, 128        278            556     512            990 to 1,050
    64 x 256   int8, 128        324            648     512            1,110 to 1,150
    192 x 128  int8, 128        376            752     768            1,340 to 1,430
    128 x 256  int8, columns    127            254     1,024          1,060 to 1,170
    128 x 128  e4m3, 128        190            380     512            850 to 950
    64 x 256   e4m3, 128        276            552     512            1,100 to 1,120
    192 x 128  e4m3, 128        223            446     768            1,070 to 1,220
    192 x 128  e4m3, columns    220            440     768            1,020 to 1,090

Turns add five instructions. "columns": one scale per column.

Shared memory, at 128 bytes a cycle, is the next limit (reckoned; that a warp's load of words takes
four cycles, however little it takes of 16 bytes, is in the counters: ``hopper.shared``): wgmma
reads x once for each warpgroup and strip, and TMA writes the stage. 128 x 128 in int8 with one
scale per column, which promotes nothing, takes 600 to 632 cycles.

    tile        x    words   TMA   together   tensor cores
    128 x 128   256  256     194   706        512
    192 x 128   384  256     258   898        768
    64 x 256    256  256     196   708        512
    128 x 256   512  256     260   1,028      1,024

**With offsets** a step of 192 x 128 in e4m3 has 183 instructions, and takes 1,010 to 1,060 cycles
with groups of 128, where without it took 1,120 to 1,170 in the same rounds; 128 x 128 takes 790 to
810. What comes once a tile must not wait for memory: with loads of scales and of row scales that
waited one for the other the same took 1,130, and wherever a lane has a guard for each load the
assembler has six on their way (``offsets``, ``finish``).

A way out that was not tried: a lane whose strip is (g // 2 + q) % 4 in place of q finds its words
of 32 lanes in 32 banks, 64 cycles instead of 256. Rows of W^T in a fragment then are columns of all
four strips, which the epilogue has to sort.

Bare loops ran at 1,900 TFLOP/s (int8) without promotion, 1,110 (int8) and 1,290 (e4m3) with
promotion that nothing overlaps. ``experiments/23_w4a8`` has the times.
"""

from numba_marlin.kernels.hopper.load import load_verbs
from numba_marlin.kernels.hopper.output import output_verbs
from numba_marlin.kernels.hopper.schedule import NO_TILE, schedule_verbs
from numba_marlin.kernels.hopper.shared import ALIGNMENT, WARPGROUP
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.w4a8.config import STAGE_K
from numba_marlin.kernels.w4a8.finish import finish_verbs
from numba_marlin.kernels.w4a8.multiply import multiply_verbs
from numba_marlin.kernels.w4a8.offsets import offset_verbs
from numba_marlin.kernels.w4a8.turns import MEETING, turn_verbs
from numba_marlin.layout.offsets import OFFSET_STEP, offset_shape
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32 = lang.uint32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=4 * config.warpgroups)
    schedule = schedule_verbs(lang, config)
    load = load_verbs(lang, config, ring)
    multiply_item, turns, ordered = (
        multiply_verbs(lang, config, ring),
        turn_verbs(lang, config),
        config.ordered,
    )
    finish = finish_verbs(lang, config)
    output = output_verbs(lang, config, first_barrier=MEETING, integers=not config.promotes)
    offsets, with_offsets = offset_verbs(lang, config, ring), config.offsets
    moves_registers = config.consumer_registers is not None
    give_registers = ptx.setmaxnreg_dec(n=config.producer_registers)
    take_registers = ptx.setmaxnreg_inc(n=config.consumer_registers or 240)

    # as in ``kernels.wgmma``
    Thread = lang.record("Thread", "warpgroup number panel first_strip lane")
    Shared = lang.record("Shared", "base barriers")
    # in global memory: what the epilogue reads and writes
    Result = lang.record("Result", "c_map column_scales row_scales bias partials locks")

    @lang.device
    def own_thread():
        """-> Thread of a consumer."""
        own = ptx.tid_x()
        warpgroup, number = own // WARPGROUP, own % WARPGROUP
        warp = number // 32
        first_strip = (warp // cfg.panels + warpgroup * cfg.warps_per_panel) * cfg.strips
        return Thread(warpgroup, number, warp % cfg.panels, first_strip, number % 32)

    if config.parts > 1:

        @lang.device
        def for_the_warp(whole):
            """Whether any lane has all of the tile: all have, or none, as they read one word. But
            to ptxas they may differ, and as long as a branch depends on that the main loop has no
            uniform registers, and 7 instructions more a step. Of a vote it knows that it is one."""
            return ptx.vote_any(uint32(whole)) != 0
    else:

        @lang.device
        def for_the_warp(whole):
            return whole

    @lang.device
    def produce(shared, maps, offsets_map, sizes):
        """One thread: the stages of all tiles of this block."""
        plan = schedule.plan_of(sizes)
        place = ring.producer_start()
        item = schedule.first_item(plan)
        if item.tile != NO_TILE:
            place, item = load.fill_first(shared, place, item, plan, maps, sizes)
        while item.tile != NO_TILE:
            place = load.fill_stages(shared, place, item, plan, maps, sizes)
            if with_offsets:
                place = offsets.fill(shared, place, item, plan, offsets_map, sizes)
            item = schedule.next_item(plan, item)

    @lang.device
    def consume(shared, result, sizes):
        """A consumer's thread: the main loop of each tile, and its epilogue."""
        thread = own_thread()
        plan = schedule.plan_of(sizes)
        place = ring.consumer_start()
        item = schedule.first_item(plan)
        if ordered:
            turns.open(thread.warpgroup)
        ptx.griddepcontrol_wait()  # c may still be the kernel's before
        while item.tile != NO_TILE:
            tile = schedule.tile_of(item, plan)
            if with_offsets:
                own = offsets.scales_of(result.column_scales, tile, plan, thread, sizes)
                place, sums = multiply_item(shared, place, item, thread, own)
            else:
                place, sums = multiply_item(shared, place, item, thread)
            whole, sums = output.combine(sums, shared, result, item, plan, thread)
            if for_the_warp(whole):
                acc = finish(sums, result, tile, thread, sizes)
                output.write_result(acc, shared, result, item, plan, thread)
            item = schedule.next_item(plan, item)
        if ordered:
            turns.close(thread.warpgroup)
        output.drain(thread)

    def kernel(
        a_map,
        b_map,
        s_map,
        c_map,
        z_map,
        o_map,
        c,
        scales,
        bias,
        a_scales,
        partials,
        locks,
        m,
        n,
        k,
    ):
        sizes = schedule.Sizes(m, n, k)
        # rounded up: the language aligns to 128 bytes only, less than a swizzle's pattern
        base = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        shared = Shared(base, base + cfg.barriers_at)
        if ptx.tid_x() == 0:
            ring.initialise(shared.barriers)
        cuda.syncthreads()
        ptx.griddepcontrol_launch_dependents()
        if ptx.tid_x() >= cfg.consumer_threads:
            if moves_registers:
                give_registers()
            if ptx.tid_x() == cfg.consumer_threads:
                produce(shared, load.Maps(a_map, b_map, s_map, z_map), o_map, sizes)
        else:
            if moves_registers:
                take_registers()
            result = Result(c_map, scales, a_scales, bias, partials, locks)
            consume(shared, result, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """-> {parameter: (matrix, TensorMap)}. Boxes: of x, a tile's rows by 128 of k; of b (in uint64,
    of which a k16 row has one per column), a stage's k16 rows by the tile's columns; of scales and
    zero points, a stage's scale rows by the tile's columns; of c, the tile's rows by one warp's
    columns."""
    columns = ceil_div(n, 64) * 64
    rows = ceil_div(k, 16 * config.k16_per_scale_row) if config.grouped else 1
    a_map = TensorMap(
        "uint8", (m, k), (k, 1), (config.tile_m, STAGE_K), swizzle=128, l2_promotion=256
    )
    b_box = (config.stage_k16_rows, config.w_box_columns)
    b_map = TensorMap("uint64", (k // 16, columns), (8 * columns, 8), b_box, l2_promotion=256)
    c_box = (config.tile_m, 16 * config.strips)
    c_map = TensorMap(config.dtype, (m, n), (2 * n, 2), c_box, swizzle=config.result_row_bytes)
    s_box = (config.scale_rows, config.tile_n)
    s_map = TensorMap(config.dtype, (rows, columns), (2 * columns, 2), s_box, l2_promotion=128)
    z_map = ("scales", s_map)  # a map must be passed, nobody reads it
    if config.zeros is not None:
        z_box = (config.scale_rows, config.tile_n // 8)
        zeros = TensorMap("int32", (rows, columns // 8), (columns // 2, 4), z_box, l2_promotion=128)
        z_map = ("zeros", zeros)
    o_map = ("scales", s_map)
    if config.offsets:
        _, parts, length = offset_shape(m, k, config.dtype)
        across, o_box = parts * length, (config.tile_m, OFFSET_STEP)
        o_map = (
            "offsets",
            TensorMap(config.dtype, (m, across), (2 * across, 2), o_box, swizzle=128),
        )
    return {
        "a_map": ("a", a_map),
        "b_map": ("b", b_map),
        "s_map": ("scales", s_map),
        "c_map": ("c", c_map),
        "z_map": z_map,
        "o_map": o_map,
    }

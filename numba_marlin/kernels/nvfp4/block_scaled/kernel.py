"""Both operands block-scaled: ``D = activation(alpha * (A * SFA) @ (B * SFB)^T + beta * C + bias)``
of NVFP4 matrices, on Hopper, which has no FP4 tensor cores.

Parameters, in order (``_map``: a tensor map, made by ``tensor_maps``):

    a_map, b_map       A uint8 [m, k/2], B uint8 [n, k/2]; even k in the low nibble of a byte
    sfa_map, sfb_map   their scales, e4m3, one for 16 of k, in 128x4 order (formula: ``load``)
    c_map, d_map       C [m, n] if added and D [m, n], where D is float16 or bfloat16
    d                  address of D where it is float32 or block-scaled
    sfd                address of D's scales, 128x4 order, zeros before, where it is block-scaled
    bias, factors      addresses of float32 [n] and float32 [4] (``epilogue``)
    locks              address of the tile counter (``schedule``), int32, zero before and after
    m, n, k            int32

*Sizes.* m and k at least 1; k a multiple of 32, so that a row's k/2 bytes are a multiple of 16, as
tensor maps demand; n of 8 (16 where D is NVFP4, 32 where it is MX; twice that if it is gated, and D
then has n/2 columns). The host refuses all others with ValueError before it launches:
``problems.operands.BlockProblem``. So k = 0 never gets here; it would hang ``multiply_steps``.
*Tails* are computed: loads bring zeros for what lies outside A, B and their scales and count its
bytes too; stores leave out what lies outside D (``store``).
*Padding of scales.* If k % 64 = 32, the last 128x4 tile along k has two blocks that are in no
matrix but in memory. Their codes arrive as zeros, and 0 * NaN is NaN: this padding must not be NaN
(0x7f, 0xff), or whole rows or columns of D become NaN. ``api.block_scaled_matmul`` writes zeros
there for arrays on the host and asks for zeros on a device. For other k, and in rows of padding,
nothing that is stored depends on it.

*Roles.* The kernel is persistent and warp-specialised: min(SMs, tiles) blocks of 512 threads, one
per SM. A tile is tile_m rows of A by tile_n rows of B and all of k: no split-K, no stream-K, no
clusters, no multicast. Blocks take tiles in the order of ``schedule``. Roles are those of CUTLASS's
kernel for Blackwell and know of each other by pipelines only (rings of stages, ``pipeline_verbs``):

    role            threads             takes                   gives
    mma             warpgroups 0, 1     packed A, expanded B    accumulators in registers
                                                                (Blackwell: in tensor memory)
    epilogue        the mma warps       accumulators, C         D and its scales
    expand          warpgroup 2         packed B                B as fp16, 64 of k
                                                                (Blackwell: the tensor cores do it)
    main-loop load  384, one thread     A, B and their scales   packed stages, 128 of k
    scheduler       416, one thread     a counter               tile numbers, to all others
    epilogue load   448, one thread     C                       its tile, where D's will be

Warpgroup w multiplies tile_m / 2 rows, from w * tile_m / 2 on, by all columns; ``multiply`` goes on
from there. An expanded stage holds every other block of 16 of a packed stage's 128 k (``expand``).

*What guards a stage.* full: waited for before reading; empty: before overwriting.

    ring (stages)               full: arrivals               empty: arrivals, and when
    packed (stages)             loader + all its bytes       4 expand warps: the row is in registers
                                                             and half of it published; 8 mma warps:
                                                             product 7 is started, ``multiply``
    expanded (expanded_stages)  4 expand warps, fenced       8 mma warps: its last product has ended
    tile number (1)             scheduler                    12 warps, loader, loader of C: read
    C (1)                       loader + all its bytes       8 mma warps: D, which replaced C in
                                                             place, has been copied out

While the mma warps finish a tile, the other roles work on the next, one tile ahead at most (there
is one tile number at a time), until the rings are full.

*Determinism.* An element of D is summed in fp32 by one thread, along k in one order; no sums are
exchanged, no atomics touch D. Which block takes a tile varies, bits do not.

*Where else*: ``config`` has the map of shared memory and what limits stages; ``load`` the order of
scales; ``expand`` which k a nibble is; ``multiply`` the main loop; ``epilogue``, ``store`` and
``quantize`` the way to D.
"""

from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ALIGNMENT,
    BLOCK,
    BOX_COLUMNS,
    HELPER_REGISTERS,
    MULTIPLIERS,
    ROW_BYTES,
    SCALE_BYTES,
    SCALE_ROWS,
    WARPGROUP,
)
from numba_marlin.kernels.nvfp4.block_scaled.expand import E2M1_POWER, expand_verbs
from numba_marlin.kernels.nvfp4.block_scaled.load import load_verbs
from numba_marlin.kernels.nvfp4.block_scaled.multiply import multiply_verbs
from numba_marlin.kernels.nvfp4.block_scaled.schedule import NO_TILE, schedule_verbs
from numba_marlin.kernels.nvfp4.block_scaled.store import store_verbs
from numba_marlin.layout.block_scales import TILE_BYTES
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap

WARPS = WARPGROUP // 32  # of a warpgroup
# For ``declare``: both operands are multiplied as their values times 2**-14 (``expand``), so alpha
# in ``factors`` is the caller's times 2**28 (and both global scales).
OPERAND_POWER = 2 * E2M1_POWER
LOADER, SCHEDULER, SOURCE_LOADER = 0, 1, 2  # warps of the last warpgroup; warp 3 is idle


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    cfg = lang.constants(config)
    # producers, consumers: arrivals, one per warp or lone thread
    packed = pipeline_verbs(lang, config.stages, producers=1, consumers=WARPS * (MULTIPLIERS + 1))
    expanded = pipeline_verbs(
        lang, config.expanded_stages, producers=WARPS, consumers=WARPS * MULTIPLIERS
    )
    source = pipeline_verbs(lang, 1, producers=1, consumers=WARPS * MULTIPLIERS)
    # warps that multiply and that expand, the loader, the loader of C if there is one
    listeners = WARPS * (MULTIPLIERS + 1) + 1 + config.source
    schedule = schedule_verbs(lang, config, listeners)
    load = load_verbs(lang, config, schedule, packed, source)
    expand = expand_verbs(lang, config, schedule, packed, expanded)
    multiply = multiply_verbs(lang, config, packed, expanded)
    store = store_verbs(lang, config, schedule, source)
    give_most, give_some, take_registers = (
        ptx.setmaxnreg_dec(n=HELPER_REGISTERS),
        ptx.setmaxnreg_dec(n=config.expander_registers),
        ptx.setmaxnreg_inc(n=config.multiplier_registers),
    )

    Sizes = lang.record("Sizes", "m n k")

    # warpgroup in the block, warp in the warpgroup, lane in the warp
    Thread = lang.record("Thread", "warpgroup warp lane")

    # of an mma warp in the rings of packed and of expanded stages; the same class as ``multiply``'s
    Places = lang.record("Places", "packed expanded")

    Maps = lang.record("Maps", "a b sfa sfb")

    Outputs = lang.record("Outputs", "d_map d sfd bias factors")

    @lang.device
    def initialise(shared):
        packed.initialise(shared + cfg.packed_barriers)
        expanded.initialise(shared + cfg.expanded_barriers)
        if cfg.source:
            source.initialise(shared + cfg.source_barriers)
        schedule.initialise(shared + cfg.tile_barriers)

    @lang.device
    def help_others(shared, maps, c_map, counter, sizes):
        """The last warpgroup: one thread of a warp is a role."""
        warp = ptx.tid_x() // 32 % WARPS
        if ptx.tid_x() % 32 == 0:
            if warp == LOADER:
                load.load_operands(shared, maps, sizes)
            elif warp == SCHEDULER:
                schedule.hand_out_tiles(shared, counter, sizes)
            elif cfg.source and warp == SOURCE_LOADER:
                load.load_source(shared, c_map, sizes)

    @lang.device
    def thread_of(tid):
        return Thread(tid // WARPGROUP, tid // 32 % WARPS, tid % 32)

    @lang.device
    def multiply_tiles(shared, outputs, sizes):
        thread, steps = thread_of(ptx.tid_x()), schedule.counts(sizes).steps
        places = Places(packed.consumer_start(), expanded.consumer_start())
        source_place = source.consumer_start()
        number, word_place = schedule.fetch_together(shared, schedule.start(), thread.lane)
        while number != NO_TILE:
            places, sums = multiply.multiply_steps(shared, places, steps, thread)
            # Worked out anew from a number that the compiler cannot know to be the same: it would
            # else keep addresses made of ``thread`` in registers that the products need.
            own = thread_of(ptx.opaque_u32(ptx.tid_x()))
            corner = schedule.corner(number, sizes)
            source_place = store.epilogue(shared, sums, outputs, corner, source_place, sizes, own)
            number, word_place = schedule.fetch_together(shared, word_place, thread.lane)
        store.drain(thread)

    def kernel(a_map, b_map, sfa_map, sfb_map, c_map, d_map, d, sfd, bias, factors, locks, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        if ptx.tid_x() == 0:
            initialise(shared)
        cuda.syncthreads()
        # Registers: a block is launched with 65536 / 512 = 128 per thread; two warpgroups give some
        # up, and setmaxnreg_inc waits until there are enough for those that multiply (``config``).
        if ptx.tid_x() >= WARPGROUP * (MULTIPLIERS + 1):
            give_most()
            help_others(shared, Maps(a_map, b_map, sfa_map, sfb_map), c_map, locks, sizes)
        elif ptx.tid_x() >= WARPGROUP * MULTIPLIERS:
            give_some()
            expand.expand_tiles(shared, sizes)
        else:
            take_registers()
            multiply_tiles(shared, Outputs(d_map, d, sfd, bias, factors), sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """-> {parameter: (array that it maps, ``TensorMap``)}. a_stride: not used, A is contiguous.

    Boxes of A and B: a tile's rows by 64 bytes, 128 of k. B's are in the 64-byte swizzle, since
    each lane of ``expand`` reads a row; A's are plain, since a warp of ``multiply`` reads eight
    whole rows at once, 512 bytes that lie in one piece. Boxes of scales: two 128x4 tiles, 128 of k,
    by a tile for every 128 rows. Boxes of C: a tile's rows by 64 columns; of D: a warp's 16.
    """

    def codes(rows, tile_rows, swizzle):
        return TensorMap(
            "uint8",
            shape=(rows, k // 2),
            strides_bytes=(k // 2, 1),
            box=(tile_rows, ROW_BYTES),
            swizzle=swizzle,
            l2_promotion=256,
        )

    def scales(rows, tile_rows):
        # box: tiles along the rows, tiles along k
        box = ceil_div(tile_rows, SCALE_ROWS), SCALE_BYTES // TILE_BYTES
        return scales_map(rows, k // BLOCK, box)

    def numbers(columns, tile_rows):
        return TensorMap(
            config.result,
            shape=(m, columns),
            strides_bytes=(2 * columns, 2),
            box=(tile_rows, BOX_COLUMNS),
            swizzle=128,
        )

    maps = {
        "a_map": ("a", codes(m, config.tile_m, swizzle=0)),
        "b_map": ("b", codes(n, config.tile_n, swizzle=64)),
        "sfa_map": ("sfa", scales(m, config.tile_m)),
        "sfb_map": ("sfb", scales(n, config.tile_n)),
    }
    if config.kind != "halves":
        # a map must be passed, nobody reads it
        return {**maps, "c_map": maps["a_map"], "d_map": maps["a_map"]}
    c_map = ("c", numbers(n, config.tile_m)) if config.source else maps["a_map"]
    d_map = ("d", numbers(n // 2 if config.gated else n, 16))
    return {**maps, "c_map": c_map, "d_map": d_map}

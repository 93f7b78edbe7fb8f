"""Both operands block-scaled: ``D = activation(alpha * (A * SFA) @ (B * SFB)^T + beta * C + bias)``
of NVFP4 matrices, on Hopper, which has no FP4 tensor cores.

Parameters: tensor maps (``tensor_maps``) of a uint8 [m, k/2] and b uint8 [n, k/2], of sfa and sfb,
e4m3 in 128x4 order (``layout.block_scales``), of c and d where they have 16 bits; d again as an
address, and sfd, its scales in 128x4 order, zeros before, where it is block-scaled; bias float32
[n]; factors float32 [4] (``block_scaled_epilogue``); locks: a counter, int32, zero before and
after; m, n, k as int32. m any, k a multiple of 32, n of 8 (16 where D is NVFP4, 32 where it is MX;
twice that if it is gated).

The codes become halves times 2**-14, exactly (``block_scaled_expand``), so that alpha in
``factors`` is the caller's times 2**28 and both global scales.

Roles, as CUTLASS's kernel for Blackwell has them, a warp or a thread each, that know of each other
by pipelines only:

    role            who             takes                   gives
    scheduler       1 thread        a counter               tile numbers, to all others
    main-loop load  1 thread        A, B and their scales   packed stages, 128 of k
    expand          1 warpgroup     packed stages           B as halves, 64 of k
                    (Blackwell: the tensor cores do it)
    mma             2 warpgroups    packed A, expanded B    sums in registers
                    (Blackwell: in tensor memory)
    epilogue load   1 thread        C                       its tile, where D's will be
    epilogue        the mma warps   sums, C                 D and its scales

While the mma warps are in the epilogue of a tile, the others fill all stages of the next.
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
# the kernel multiplies numbers times 2**-14: alpha in ``factors`` has this power of two in it
OPERAND_POWER = 2 * E2M1_POWER
LOADER, SCHEDULER, SOURCE_LOADER = 0, 1, 2  # warps of the last warpgroup


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    cfg = lang.constants(config)
    packed = pipeline_verbs(lang, config.stages, producers=1, consumers=WARPS * (MULTIPLIERS + 1))
    expanded = pipeline_verbs(
        lang, config.expanded_stages, producers=WARPS, consumers=WARPS * MULTIPLIERS
    )
    source = pipeline_verbs(lang, 1, producers=1, consumers=WARPS * MULTIPLIERS)
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

    # warp: number in the warpgroup
    Thread = lang.record("Thread", "warpgroup warp lane")

    # in the rings of packed and of expanded stages
    Places = lang.record("Places", "packed expanded")

    Maps = lang.record("Maps", "a b sfa sfb")

    Outputs = lang.record("Outputs", "d_map d sfd bias factors")

    @lang.device
    def initialise(shared):
        packed.initialise(shared + cfg.barriers_shared)
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
    def thread_of(number):
        return Thread(number // WARPGROUP, number // 32 % WARPS, number % 32)

    @lang.device
    def multiply_tiles(shared, outputs, sizes):
        thread, steps = thread_of(ptx.tid_x()), schedule.counts(sizes).steps
        places = Places(packed.consumer_start(), expanded.consumer_start())
        source_place = source.consumer_start()
        number, following = schedule.fetch_together(shared, schedule.start(), thread.lane)
        while number != NO_TILE:
            places, sums = multiply.multiply_steps(shared, places, steps, thread)
            # made anew: addresses made of it would else be kept in registers that the products need
            own = thread_of(ptx.opaque_u32(ptx.tid_x()))
            corner = schedule.corner(number, sizes)
            source_place = store.epilogue(shared, sums, outputs, corner, source_place, sizes, own)
            number, following = schedule.fetch_together(shared, following, thread.lane)
        store.drain(thread)

    def kernel(a_map, b_map, sfa_map, sfb_map, c_map, d_map, d, sfd, bias, factors, locks, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        if ptx.tid_x() == 0:
            initialise(shared)
        cuda.syncthreads()
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
    """A and B in boxes of a tile's rows by 64 bytes, B's in the 64-byte swizzle; their scales in
    boxes of 1024 bytes, two tiles, by a row of tiles for every 128 rows; C in boxes of a tile's
    rows, D of a warp's 16 rows, by 64 columns."""

    def scales(rows, tile_rows):
        return scales_map(
            rows, k // BLOCK, (ceil_div(tile_rows, SCALE_ROWS), SCALE_BYTES // TILE_BYTES)
        )

    maps = {
        "a_map": (
            "a",
            TensorMap("uint8", (m, k // 2), (k // 2, 1), (config.tile_m, ROW_BYTES), 0, 256),
        ),
        "b_map": (
            "b",
            TensorMap("uint8", (n, k // 2), (k // 2, 1), (config.tile_n, ROW_BYTES), 64, 256),
        ),
        "sfa_map": ("sfa", scales(m, config.tile_m)),
        "sfb_map": ("sfb", scales(n, config.tile_n)),
    }
    if config.kind != "halves":
        # a map must be passed, nobody reads it
        return {**maps, "c_map": maps["a_map"], "d_map": maps["a_map"]}
    d_n = n // 2 if config.gated else n
    d_map = TensorMap(config.result, (m, d_n), (2 * d_n, 2), (16, BOX_COLUMNS), 128, 0)
    c_map = (
        ("c", TensorMap(config.result, (m, n), (2 * n, 2), (config.tile_m, BOX_COLUMNS), 128, 0))
        if config.source
        else maps["a_map"]
    )
    return {**maps, "c_map": c_map, "d_map": ("d", d_map)}

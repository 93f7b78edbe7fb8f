"""Both operands NVFP4: ``D = activation(alpha * A @ B^T + beta * C + bias)``, on Hopper, which has
no FP4 tensor cores. A is [m, k], B is [n, k] (W^T, where a kernel of packed weights has W [k, n]).

NVFP4: a number is an e2m1 code of 4 bits, times the e4m3 scale of its *scale block*, 16 along k in
a row (SFA and SFB are the matrices of these), times a global scale, one per matrix, which is in
alpha.

Parameters, in order. ``_map``: a tensor map (made by ``tensor_maps``), 128 bytes by value, which is
``const __grid_constant__ CUtensorMap`` in CUDA; in the kernel the name is their generic address, a
u64, so it may be passed on and stand in a record.

    a_map, b_map       codes: A uint8 [m, k/2], B uint8 [n, k/2]; even k in the low nibble of a byte
    sfa_map, sfb_map   SFA and SFB, a byte each, in 128x4 order (formula: ``nvfp4.load``)
    c_map, d_map       C [m, n] if it is added (the *source*) and has D's type, and D [m, n], where
                       D is float16 or bfloat16
    d                  address of D where it is float32 or block-scaled
    sfd                address of D's scales, where D is block-scaled, in 128x4 order; filled with
                       zeros before the launch, since the kernel writes no padding
    c                  address of C if it is added and has another type than D (``finish``)
    bias, factors      addresses of float32 [n] and float32 [4] (``finish``)
    locks              address of the tile counter (``schedule``), int32, zero before and after; the
                       host's name for the counters of any kernel, nothing is locked here
    m, n, k            int32

*Sizes.* m, n and k at least 1. k is a multiple of 32, so that a row's k/2 bytes are a multiple of
16, as tensor maps demand. n is a multiple of 8; of 16 where D is NVFP4, of 32 where it is MX; of
twice that if D is gated, and D then has n/2 columns. The host refuses all others with ValueError
before it launches (``problems.operands.BlockProblem``). So k = 0, which would hang
``multiply_steps``, never gets here.
*Tails* are computed: loads bring zeros for what lies outside A, B and their scales and count its
bytes too; stores leave out what lies outside D (``epilogue``).
*Padding of scales must not be NaN* (0x7f, 0xff) if k % 64 = 32. A 128x4 tile has four scale blocks,
64 of k: with k = 96, scale blocks 4 and 5 are in the second tile, which also has bytes for 6 and 7,
and loads bring those bytes. The codes they belong to arrive as zeros, but 0 * NaN is NaN, and a
whole row or column of D would be. ``api.block_scaled_matmul`` writes zeros there for arrays on the
host and asks for zeros on a device. All other padding may contain anything: what is computed with
it is not stored.

*Roles.* The kernel is persistent and warp-specialised: min(SMs, tiles) thread blocks of 512
threads, one per SM. A tile is tile_m rows of A by tile_n rows of B and all of k: no split-K, no
stream-K, no clusters, no multicast. Thread blocks take tiles in the order of ``schedule``. Roles
are those of CUTLASS's kernel for Blackwell and know of each other by pipelines only (rings of
stages, ``pipeline_verbs``):

    role: its function       threads            takes                 gives
    mma: multiply_steps      warpgroups 0, 1    packed A, expanded B  sums, in registers
                                                                      (Blackwell: tensor memory)
    epilogue: epilogue       the same           sums, C               D and its scales
    expand: expand_tiles     warpgroup 2        packed B              B as fp16, 64 of k
                                                                      (Blackwell: no such role)
    main-loop load:          384, one thread    A, B, SFA, SFB        packed stages, 128 of k
      load_operands
    scheduler:               416, one thread    the tile counter      tile numbers, to all others
      hand_out_tiles
    epilogue load:           448, one thread    C                     its tile, where D's will be
      load_source

Mma warpgroup w multiplies rows w * tile_m / 2 to (w + 1) * tile_m / 2 - 1 of the tile by all
columns; ``multiply`` goes on from there. Packed step s of a tile, 128 of k, takes packed stage s
and two expanded stages, 2 s and 2 s + 1, each of which holds four of its eight scale blocks
(``expand``). (Stages are counted from the tile's start here; the rings go on from tile to tile.)

*What guards a stage.* full: waited for before reading; empty: before overwriting. An arrival comes
from lane 0 of a warp, for the whole warp, or from a role's one thread.

    ring: its stages    full: arrivals             empty: arrivals, and when each comes
    packed:             loader + all its bytes     4 expand warps: when the first of the stage's
      ``stages``                                   two expanded stages has been published
                                                   8 mma warps: when product 7 of the step has been
                                                   issued (it reads A from registers)
    expanded:           4 expand warps, fenced     8 mma warps: when its last product has ended
      ``expanded_stages``
    tile number: 1      scheduler                  8 mma and 4 expand warps, loader, loader of C:
                                                   when they have read the number
    C: 1                loader of C + all its      8 mma warps: when D, which replaced C in place,
                        bytes                      has been copied out of shared memory
    D without C (the    none: each warp stores,    none: in the next epilogue lane 0 of the same
      default): no ring and copies out, its rows   warp waits until its tensor stores have read
                        only                       those rows (``free_output``), then a warp sync

Both give a packed stage back long after they read it. *Mma*: A's codes and scales of step s go to
registers in the middle of step s - 1, but stage s is given back at the end of step s (``multiply``
says why), so in the second half of a step they hold two packed stages. *Expand*: its row of B is in
registers before it waits for an empty expanded stage, but it gives the packed stage back behind
that wait. This costs nothing: the mma warps give the same stage back later in any case, behind
products of its second expanded stage, which is published after this release.

Proxy fences: ordinary stores that wgmma or a tensor store reads (B as fp16; D's tile) are fenced
before the arrival, or the store. The other direction needs none. In a ring, what was read is in
registers, or its wgmma has been waited for, before its warp arrives on the empty barrier, and who
overwrites has waited for that barrier; D's tile without C is overwritten by the warp that has
itself waited for its tensor stores (``cp.async.bulk.wait_group.read``).

*The roles beside each other*, in step s, when the rings are full, with 4 packed and 3 expanded
stages. (With S and E: the loader fills packed stage s + S - 1, and expand is E - 1 expanded stages
ahead of the one that is multiplied, but never past 2 s + 2 S - 1, since the mma warps hold packed
stage s: more than 2 S + 1 expanded stages are of no use.)

    role              first half of step s               second half
    mma               products 0 .. 3, B from            products 4 .. 7, B from expanded 2 s + 1; A
                      expanded 2 s                       of packed s + 1 goes into registers
    expand            B of packed s + 1 to expanded      B of packed s + 1 to expanded 2 s + 3
                      2 s + 2
    main-loop load    packed s + 3 is on its way (from the end of step s - 1); s + 2 is there

*Epilogues.* Both mma warpgroups work on one tile (CUTLASS: cooperative, not ping-pong), so both are
in its epilogue at about the same time, and tensor cores are idle then; the others go on until their
rings are full with the next tile's stages.

*Who is ahead of whom.* The loader is at most ``stages`` packed stages ahead, expand at most
``expanded_stages`` expanded ones, both across the ends of tiles: while the mma warps finish a tile,
the others fill their rings with the next. They are one tile ahead at most, since there is one tile
number at a time and the mma warps read it too.

*Determinism.* An element of D is summed in an fp32 accumulator of one thread, step after step, in a
step k16 slice after k16 slice (``expand`` says which k these are): one order for all
configurations, in a slice wgmma's own. No sums are exchanged, no atomics touch D. Which thread
block takes a tile varies, bits do not.

*Where else*: ``config`` has the map of shared memory, its swizzles, and what limits stages;
``load`` the loads of operands and of C; ``expand`` which k a nibble is; ``multiply`` the main loop;
``epilogue`` the way to D, with ``finish`` (its arithmetic) and ``quantize`` (block-scaled D);
``choose`` measured times. Outside of this folder: ``nvfp4.schedule``, ``nvfp4.load`` and
``nvfp4.result_codes``, shared with other kernels of two such operands; ``language.pipeline``
(rings), ``language.tile_order``, ``language.tuples``; nothing of ``kernels.dequantize``, whose
modules, one named ``expand`` too, are for packed weights. ``ptx.NAME`` is the instruction in
ptx/NAME.ptx.
"""

from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ALIGNMENT,
    LOAD_REGISTERS,
    MMA_WARPGROUPS,
    PANEL_COLUMNS,
    ROW_BYTES,
    SCALE_BLOCK,
    SCALE_BYTES,
    SCALE_ROWS,
    WARPGROUP_THREADS,
)
from numba_marlin.kernels.nvfp4.block_scaled.epilogue import epilogue_verbs
from numba_marlin.kernels.nvfp4.block_scaled.expand import E2M1_POWER, expand_verbs
from numba_marlin.kernels.nvfp4.block_scaled.load import load_verbs
from numba_marlin.kernels.nvfp4.block_scaled.multiply import multiply_verbs
from numba_marlin.kernels.nvfp4.schedule import NO_TILE, schedule_verbs
from numba_marlin.layout.block_scales import TILE_BYTES
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap

GROUP_WARPS = WARPGROUP_THREADS // 32  # warps of a warpgroup
MMA_WARPS = GROUP_WARPS * MMA_WARPGROUPS
# For ``declare``: both operands are multiplied as their values times 2**-14 (``expand``), so alpha
# in ``factors`` is the caller's times 2**28 and both global scales.
OPERAND_POWER = 2 * E2M1_POWER
# warps of the last warpgroup, one thread of each; warp 3 is idle
MAIN_LOOP_LOAD, SCHEDULER, EPILOGUE_LOAD = 0, 1, 2


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    cfg = lang.constants(config)
    # producers, consumers: arrivals, one per warp or lone thread
    packed = pipeline_verbs(lang, config.stages, producers=1, consumers=MMA_WARPS + GROUP_WARPS)
    expanded = pipeline_verbs(
        lang, config.expanded_stages, producers=GROUP_WARPS, consumers=MMA_WARPS
    )
    # C's, the *source*; made but not used where the flag ``config.source_tiles`` is False
    source_ring = pipeline_verbs(lang, 1, producers=1, consumers=MMA_WARPS)
    # mma and expand warps, the loader, the loader of C if there is one
    listeners = MMA_WARPS + GROUP_WARPS + 1 + config.source_tiles
    schedule = schedule_verbs(lang, config, listeners)
    load = load_verbs(lang, config, schedule, packed, source_ring)
    expand = expand_verbs(lang, config, schedule, packed, expanded)
    multiply = multiply_verbs(lang, config, packed, expanded)
    write = epilogue_verbs(lang, config, source_ring)
    drop_to_load_registers, drop_to_expand_registers, rise_to_mma_registers = (
        ptx.setmaxnreg_dec(n=LOAD_REGISTERS),
        ptx.setmaxnreg_dec(n=config.expander_registers),
        ptx.setmaxnreg_inc(n=config.mma_registers),
    )

    Sizes = lang.record("Sizes", "m n k")

    # warpgroup in the thread block, warp in the warpgroup, lane in the warp
    Thread = lang.record("Thread", "warpgroup warp lane")

    # A place is (stage, parity), where a role stands in a ring (``pipeline``): here an mma warp's,
    # in the rings of packed and of expanded stages. The same class as ``multiply``'s.
    Places = lang.record("Places", "packed expanded")

    Maps = lang.record("Maps", "a b sfa sfb")

    Outputs = lang.record("Outputs", "d_map d sfd c bias factors")

    @lang.device
    def initialise(shared):
        packed.initialise(shared + cfg.packed_barriers)
        expanded.initialise(shared + cfg.expanded_barriers)
        if cfg.source_tiles:
            source_ring.initialise(shared + cfg.source_barriers)
        schedule.initialise(shared + cfg.tile_barriers)

    @lang.device
    def load_or_schedule(shared, maps, c_map, counter, sizes):
        """The last warpgroup: lane 0 of each warp is a role, or idle."""
        warp = ptx.tid_x() // 32 % GROUP_WARPS
        if ptx.tid_x() % 32 == 0:
            if warp == MAIN_LOOP_LOAD:
                load.load_operands(shared, maps, sizes)
            elif warp == SCHEDULER:
                schedule.hand_out_tiles(shared, counter, sizes)
            elif cfg.source_tiles and warp == EPILOGUE_LOAD:
                load.load_source(shared, c_map, sizes)

    @lang.device
    def thread_of(tid):
        return Thread(tid // WARPGROUP_THREADS, tid // 32 % GROUP_WARPS, tid % 32)

    @lang.device
    def multiply_tiles(shared, outputs, sizes):
        """The mma warps: tile after tile, main loop and epilogue. State: number: the tile;
        tile_place, places, source_place: in the rings of tile numbers, of packed and expanded
        stages, and of C."""
        thread, steps = thread_of(ptx.tid_x()), schedule.counts(sizes).steps
        places = Places(packed.consumer_start(), expanded.consumer_start())
        source_place = source_ring.consumer_start()
        number, tile_place = schedule.fetch_together(shared, schedule.start(), thread.lane)
        while number != NO_TILE:
            places, sums = multiply.multiply_steps(shared, places, steps, thread)
            # Equal to ``thread``, but the compiler cannot know it (``opaque_u32`` returns what it
            # is given, and hides that): it would else keep addresses made of ``thread`` in
            # registers that the products need.
            again = thread_of(ptx.opaque_u32(ptx.tid_x()))
            corner = schedule.corner(number, sizes)
            source_place = write.epilogue(shared, sums, outputs, corner, source_place, sizes, again)
            number, tile_place = schedule.fetch_together(shared, tile_place, thread.lane)
        write.drain(thread)

    def kernel(
        a_map, b_map, sfa_map, sfb_map, c_map, d_map, d, sfd, c, bias, factors, locks, m, n, k
    ):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        if ptx.tid_x() == 0:
            initialise(shared)
        cuda.syncthreads()
        # Registers: a thread block is launched with 65536 / 512 = 128 per thread. (The compiler
        # declares the 512 threads of ``declare``, .maxntid, and of a kernel with setmaxnreg ptxas
        # then gives each thread its share of an SM's registers.) Two warpgroups drop to fewer;
        # setmaxnreg_inc waits until that has left enough for the mma warps, which take no more than
        # the rest (``config.mma_registers``).
        if ptx.tid_x() >= WARPGROUP_THREADS * (MMA_WARPGROUPS + 1):
            drop_to_load_registers()
            load_or_schedule(shared, Maps(a_map, b_map, sfa_map, sfb_map), c_map, locks, sizes)
        elif ptx.tid_x() >= WARPGROUP_THREADS * MMA_WARPGROUPS:
            drop_to_expand_registers()
            expand.expand_tiles(shared, sizes)
        else:
            rise_to_mma_registers()
            multiply_tiles(shared, Outputs(d_map, d, sfd, c, bias, factors), sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """-> {parameter: (array that it maps, ``TensorMap``)}. a_stride: not used, A is contiguous; all
    kernels' functions of this name have it.

    Boxes of A and B: a tile's rows by 64 bytes, 128 of k. B's are in the 64-byte swizzle, since
    each lane of ``expand`` reads a row; A's are plain, since a warp of ``multiply`` reads eight
    whole rows at once, 512 bytes that lie in one piece. Boxes of scales: two 128x4 tiles, 128 of k,
    by a tile for every 128 rows. Boxes of C: a panel, a tile's rows by 64 columns; of D: a warp's
    16 rows of a panel.
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
        return scales_map(rows, k // SCALE_BLOCK, box)

    def halves(columns, tile_rows):
        return TensorMap(
            config.result,
            shape=(m, columns),
            strides_bytes=(2 * columns, 2),
            box=(tile_rows, PANEL_COLUMNS),
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
    c_map = ("c", halves(n, config.tile_m)) if config.source_tiles else maps["a_map"]
    d_map = ("d", halves(n // 2 if config.gated else n, 16))
    return {**maps, "c_map": c_map, "d_map": d_map}

"""The consumers of the Hopper kernel (``wgmma``): weights from shared memory to registers to the tensor cores.

``sums``: a tuple with, for each word that a warp takes, the accumulators of one m64 block of the instruction: 64 columns of W, 16 of them this warp's, by
tile_m rows of x. A k16 row of a stage is one wgmma group; two groups are in flight at most, so there are two sets of weight registers.
``lane_place``: (consumer warpgroup among those side by side, thread in it, its first word, its 64-column block, lane, its row of consumers).
"""
from types import SimpleNamespace

from numba_marlin.kernels.expand import expand_verbs
from numba_marlin.kernels.wgmma_config import STAGE_ROWS

DESCRIPTOR_HIGH = (1 << 62) | (64 << 32) | (1 << 16)  # 128-byte swizzle; eight rows are 1024 bytes apart (layout.wgmma.descriptor)
ROW_DESCRIPTORS = 2  # 32 bytes, a k16 row, in the descriptor's units of 16


def tensor_verbs(lang, config, pipeline):
    """-> namespace with ``zero() -> sums`` and ``multiply_stages(shared, barriers, place, steps, lane_place) -> (place, sums)``"""
    ptx, uint32, uint64 = lang.ptx, lang.uint32, lang.uint64
    expand = expand_verbs(lang, config.dtype, bits=4, origin=8)
    times, wgmma_of_type = {"float16": (ptx.mul_f16x2, ptx.wgmma_m64k16_f32_f16_rs), "bfloat16": (ptx.mul_bf16x2, ptx.wgmma_m64k16_f32_bf16_rs)}[config.dtype]
    wait_full, release, advance = pipeline.wait_full, pipeline.release, pipeline.advance
    K_GROUPS, WARPGROUPS = config.k_groups, config.warpgroups
    WORDS, STAGE, W_SHARED, W_ROW = config.words, config.stage_bytes, config.x_stage_bytes, config.w_row_bytes
    S_SHARED, S_ROW = W_SHARED + STAGE_ROWS * W_ROW, config.s_row_bytes
    ACCUMULATORS, grouped, GROUP_ROWS = config.tile_m // 2, config.grouped, min(STAGE_ROWS, config.group_blocks) if config.grouped else STAGE_ROWS
    wgmma = wgmma_of_type(n=config.tile_m)
    zeros, keep_sums, keep_fragment = ptx.zero_f32(width=ACCUMULATORS), ptx.keep_f32(width=ACCUMULATORS), ptx.keep_u32(width=4)
    wait_for_last_but_one, wait_for_all = ptx.wgmma_wait_group(n=1), ptx.wgmma_wait_group(n=0)

    @lang.device
    def fragment(word, scale):
        """One word -> the four registers of an A fragment, scaled; scale: that of column g and, above it, that of column g + 8."""
        d0, d1, d2, d3 = expand(word)
        if grouped:
            low, high = ptx.both_low_f16x2(scale), ptx.both_high_f16x2(scale)
            return times(d0, low), times(d2, high), times(d1, low), times(d3, high)
        return d0, d2, d1, d3

    @lang.device
    def no_fragment():
        return uint32(0), uint32(0), uint32(0), uint32(0)

    # one, two or four words: tuples of different lengths are different types

    if WORDS == 1:
        load_word = ptx.ld_shared_b32

        @lang.device
        def zero():
            return (zeros(),)

        @lang.device
        def no_weights():
            return (no_fragment(),)

        @lang.device
        def load(address):
            return (load_word(address),)

        @lang.device
        def spread(words, scales):
            return (fragment(words[0], scales[0]),)

        @lang.device
        def multiply(sums, a, descriptor):
            return (wgmma(sums[0], a[0], descriptor, uint32(1)),)

        @lang.device
        def keep(sums):
            return (keep_sums(sums[0]),)

        @lang.device
        def keep_weights(a):
            keep_fragment(a[0])
    elif WORDS == 2:
        load = ptx.ld_shared_v2_b32

        @lang.device
        def zero():
            return zeros(), zeros()

        @lang.device
        def no_weights():
            return no_fragment(), no_fragment()

        @lang.device
        def spread(words, scales):
            return fragment(words[0], scales[0]), fragment(words[1], scales[1])

        @lang.device
        def multiply(sums, a, descriptor):
            return wgmma(sums[0], a[0], descriptor, uint32(1)), wgmma(sums[1], a[1], descriptor, uint32(1))

        @lang.device
        def keep(sums):
            return keep_sums(sums[0]), keep_sums(sums[1])

        @lang.device
        def keep_weights(a):
            keep_fragment(a[0])
            keep_fragment(a[1])
    else:
        load = ptx.ld_shared_v4_b32

        @lang.device
        def zero():
            return zeros(), zeros(), zeros(), zeros()

        @lang.device
        def no_weights():
            return no_fragment(), no_fragment(), no_fragment(), no_fragment()

        @lang.device
        def spread(words, scales):
            return fragment(words[0], scales[0]), fragment(words[1], scales[1]), fragment(words[2], scales[2]), fragment(words[3], scales[3])

        @lang.device
        def multiply(sums, a, descriptor):
            first = wgmma(sums[0], a[0], descriptor, uint32(1)), wgmma(sums[1], a[1], descriptor, uint32(1))
            return first + (wgmma(sums[2], a[2], descriptor, uint32(1)), wgmma(sums[3], a[3], descriptor, uint32(1)))

        @lang.device
        def keep(sums):
            return keep_sums(sums[0]), keep_sums(sums[1]), keep_sums(sums[2]), keep_sums(sums[3])

        @lang.device
        def keep_weights(a):
            keep_fragment(a[0])
            keep_fragment(a[1])
            keep_fragment(a[2])
            keep_fragment(a[3])

    @lang.device
    def start(sums, a, descriptor):
        """A k16 row goes to the tensor cores."""
        ptx.wgmma_fence()
        sums = multiply(sums, a, descriptor)
        ptx.wgmma_commit_group()
        return sums

    @lang.device
    def scales_of(stage, row, lane_place):
        own = lane_place[3] * uint32(128) + lane_place[4] // uint32(4) * uint32(16) + lane_place[2] * uint32(4)
        return load(stage + uint32(S_SHARED + row // GROUP_ROWS * S_ROW) + own)

    @lang.device
    def skip_foreign(place, remaining, lane_place):
        """Past the stage of the other row of consumers, if this is one. (There is an even number of stages: each row has its own.)"""
        if K_GROUPS == 2 and remaining != uint32(0) and uint32(place[0] % uint32(2)) != lane_place[5]:
            return advance(place), uint32(remaining - uint32(1))
        return place, remaining

    @lang.device
    def multiply_stages(shared, barriers, place, steps, lane_place):
        """``steps`` stages of the ring, one after the other. When it returns, nothing is in flight and all of them are released."""
        own = uint32(W_SHARED) + lane_place[3] * uint32(512) + lane_place[4] * uint32(16) + lane_place[2] * uint32(4)
        leader = lane_place[4] == uint32(0)
        sums = zero()
        last = no_weights()
        before = place
        place, remaining = skip_foreign(place, steps, lane_place)
        begun = False
        while remaining != uint32(0):
            wait_full(barriers, place)
            stage = shared + place[0] * uint32(STAGE)
            descriptor = uint64(uint32(stage & uint32(0x3FFFF)) >> uint32(4)) | uint64(DESCRIPTOR_HIGH)
            w0, w1 = load(stage + own), load(stage + own + uint32(W_ROW))
            w2, w3 = load(stage + own + uint32(2 * W_ROW)), load(stage + own + uint32(3 * W_ROW))
            s0 = scales_of(stage, 0, lane_place) if grouped else w0
            s2 = scales_of(stage, 2, lane_place) if GROUP_ROWS == 2 else s0
            a0 = spread(w0, s0)
            sums = start(sums, a0, descriptor)
            wait_for_last_but_one()
            keep_weights(last)
            if leader and begun:
                release(barriers, before)
            a1 = spread(w1, s0)
            sums = start(sums, a1, descriptor + uint64(ROW_DESCRIPTORS))
            wait_for_last_but_one()
            keep_weights(a0)
            a2 = spread(w2, s2)
            sums = start(sums, a2, descriptor + uint64(2 * ROW_DESCRIPTORS))
            wait_for_last_but_one()
            keep_weights(a1)
            last = spread(w3, s2)
            sums = start(sums, last, descriptor + uint64(3 * ROW_DESCRIPTORS))
            wait_for_last_but_one()
            keep_weights(a2)
            before, begun = place, True
            place, remaining = skip_foreign(advance(place), uint32(remaining - uint32(1)), lane_place)
        wait_for_all()
        keep_weights(last)
        if leader and begun:
            release(barriers, before)
        return place, keep(sums)

    return SimpleNamespace(zero=zero, multiply_stages=multiply_stages)

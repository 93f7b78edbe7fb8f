"""Both operands block-scaled, few rows of A: ``D = activation(alpha * (A * SFA) @ (B * SFB)^T +
beta * C + bias)`` of NVFP4 matrices as fast as B comes from memory. sm_90a.

Parameters: tensor maps (``tensor_maps``) of a uint8 [m, k/2] and b uint8 [n, k/2] (k contiguous, of
a byte's two codes the low nibble first), of sfa and sfb, an e4m3 scale for every 16 of k, in 128x4
order (``layout.block_scales``); addresses of c and d [m, n], bias float32 [n] and factors float32
[2]: alpha, with both global scales in it and 2**28, since codes become halves times 2**-14 in both
operands, and beta; m, n, k as int32. m is any; k is a multiple of 32 (TMA wants rows of 16 bytes),
n of 8 (here 4 would do, for vectors of four columns). The host checks both: ``problems.operands``.

**The idea.** With few rows the time depends on B: 4.5 bits an element, read once. So tensor cores
multiply B by A: the 16 rows of ``mma.m16n8k16`` are rows of B, its 8 columns are *tokens*, rows of
A; what PTX calls A is B here. Both operands go from shared memory into registers packed, 16 bytes
per lane, and become halves there: nothing expanded is stored. Every warp expands all tokens of the
tile, which costs an eighth of its work on B for 8 of them, half of it for 32.

**Who does what.** A thread block has 128 rows of B (columns of D) and ``tokens`` rows of A:
blockIdx.x is split * column tile + rank, blockIdx.y the tile of tokens. k goes in steps of 256, a
stage each. The ``split`` blocks that are neighbours in x are a cluster and share a tile's k: rank r
has ceil(steps / split) steps from r times as many on, the last ranks fewer, or none, and then add
zeros. In a block (``warp_n`` = warp % 2, ``warp_k`` = warp // 2):

    role      who                what
    load      lane 0 of the      fills stages: B, A and their scales
              last warp
    multiply  2 * k_warps warps  64 rows of B, number warp_n, by all tokens; of k a *slice*: every
                                 (k_warps / 2)th stage of the block's from number warp_k // 2 on,
                                 and of each the *run* of 128 k number warp_k % 2
    epilogue  the same           adds up slices and ranks, writes D

**In flight.** Up to ``stages`` stages; where they lie and how many there may be: ``config``. Before
a warp reads one it waits for *full*: the load thread's arrival and the bytes of its four copies.
Before the load thread overwrites one it waits for *empty*: 4 arrivals, one from each warp that
reads it (two of warp_n by two runs), made when all that the warp wants is in registers, before it
is multiplied. So a warp's products overlap with copies and with other warps; its own reads of
shared memory are not overlapped with its own products.

**A round of a warp**: wait; 8 rows of B and tokens / 8 of A, 16 bytes of codes and two scales each;
release; then eight products of k16, the first four with the first scale of each row, the others
with the second. In each product a lane expands its tokens first, then the rows of each m16 tile
just before ``mma`` takes them.

**Which k and n.** Lane 4 g + t takes 32 codes of each of its rows: nibble p of word w is

    k = 256 step + 128 (warp_k % 2) + 32 t + 8 w + p      (steps counted from k = 0)
    n = tile.column + 64 warp_n + 8 i + row_of(g)         i = 0 .. 7
    token = tile.token + 8 j + row_of(g)                  j = 0 .. tokens / 8 - 1

The codes of words 0 and 1 have the row's scale 2 t of the run, those of words 2 and 3 scale
2 t + 1. A product takes four nibbles of a word, in the same places in A and in B, so the sum over k
is complete and no shuffle is needed: (1, 5, 3, 7), then (0, 4, 2, 6), as k = 2 t, 2 t + 1, 2 t + 8
and 2 t + 9 of the ``mma``. A code becomes a half by moving bits: its exponent and significand at
bits 9 to 11 are the number times 2**-14 (``block_scaled.expand``). Times its scale, in both
operands, it is still exact: six significant bits.

**Banks.** Rows of codes are 128 bytes, in TMA's 128-byte swizzle: 16-byte chunk c of row r lies at
chunk c ^ (r % 8). Eight lanes at a time load 16 bytes: t = 0 .. 3 of two neighbouring g, whose rows
``row_of`` puts 4 apart, so they touch chunks 0 .. 7, all 32 banks. Sums: ``config.PITCH``. Scales
do conflict: lanes t and t + 2 read words 512 bytes apart, one bank, so a load of them takes two
wavefronts, not one. That is 1 of 6 wavefronts of the main loop. It matters little: with 8 tokens a
warp's run takes 54 wavefronts, but some 540 instructions, which are 135 cycles of an SM's four
schedulers (modelled: experiments/11_block_scaled).

**Reductions.** Slices are added in shared memory, then ranks through distributed shared memory,
both from first to last in fp32 (``output``): the same input gives the same bits.

**Tails.** TMA gives zeros outside of a matrix and outside of its tiles of scales, and a code 0 adds
0. Only if k % 64 is 32 are there scales beyond k inside a tile: the host
must make that padding 0 (``api.block_scaled_matmul``), since 0 times NaN is NaN. Rows of A beyond m
and of B beyond n give sums that are not stored.

**State of the main loop.** Load: ``place`` (stage and parity in the ring), ``step`` (of 256 k, from
k = 0). Multiply: ``place``, ``own_step`` (of 256 k, from the item's first), ``acc`` (``output`` has
its index), and ``operands``, which is dead between rounds.

**Programmatic dependent launch** (``griddepcontrol``): blocks start and set up barriers while the
kernel before ends, and read nothing before it has.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_decode.config import (
    ALIGNMENT,
    COLUMNS,
    M16_TILES,
    RUNS,
    SCALED,
    STAGE_K,
    STAGE_READERS,
    STAGE_ROW,
    STAGE_SCALE_TILES,
    WARP_COLUMNS,
    WARPS_N,
)
from numba_marlin.kernels.nvfp4.block_decode.output import output_verbs
from numba_marlin.kernels.nvfp4.block_scaled.expand import number_verbs
from numba_marlin.layout.block_scales import (
    LANE_BYTES,
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_MAP_WIDTH,
    TILE_ROWS,
)
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, int32, float32 = lang.uint32, lang.int32, lang.float32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=STAGE_READERS)
    numbers, output = number_verbs(lang), output_verbs(lang, config)
    times, matmul = ptx.mul_f16x2, ptx.mma_m16n8k16_f32_f16

    Sizes = lang.record("Sizes", "m n k")

    # of D: its first row, a token (row of A), and its first column, a row of B
    Tile = lang.record("Tile", "token column")

    # what a block does: a tile of D; rank: the block's in its cluster; of the steps of 256 k, the
    # first that is the block's, counted from k = 0, and how many are
    WorkItem = lang.record("WorkItem", "tile rank first_step steps")

    # warp_n: which 64 rows of B; warp_k: which slice of k; row = row_of(lane // 4): which of every
    # eight rows, of B and of A; t = lane % 4: which 32 codes of a run
    Thread = lang.record("Thread", "warp_n warp_k row t")

    Maps = lang.record("Maps", "a b sfa sfb")

    Outputs = lang.record("Outputs", "c d bias factors")

    # a lane's registers in a round, u32 arrays. i: one of its 8 rows of B, or of its tokens / 8 of
    # A. words [i][4]: codes; pairs [i]: both scales, as f16x2; scales [i]: the one in use, in both
    # halves of the register; fragments [n8 tile][2]: tokens, expanded, of one k16
    Operands = lang.record(
        "Operands", "b_words a_words b_pairs a_pairs b_scales a_scales fragments"
    )

    @lang.device
    def load_stages(shared, maps, item):
        """One thread. Maps of A and B count x in bytes, those of scales in 8 bytes and y in tiles
        of 128 rows."""
        barriers, tile = shared + cfg.barriers_shared, item.tile
        place, step = ring.producer_start(), item.first_step
        while step < item.first_step + item.steps:
            ring.wait_empty(barriers, place)
            ring.expect(barriers, place, cfg.stage_bytes)
            stage, full = shared + place.stage * cfg.stage_bytes, ring.full(barriers, place)
            x, scale_x = int32(step * STAGE_ROW), int32(step * (STAGE_SCALE_TILES * TILE_MAP_WIDTH))
            # (to, map, x, y, barrier that counts the bytes)
            ptx.cp_async_bulk_tensor_2d_g2s(stage, maps.b, x, int32(tile.column), full)
            ptx.cp_async_bulk_tensor_2d_g2s(
                stage + cfg.sfb_shared, maps.sfb, scale_x, int32(tile.column // TILE_ROWS), full
            )
            ptx.cp_async_bulk_tensor_2d_g2s(
                stage + cfg.a_shared, maps.a, x, int32(tile.token), full
            )
            ptx.cp_async_bulk_tensor_2d_g2s(
                stage + cfg.sfa_shared, maps.sfa, scale_x, int32(tile.token // TILE_ROWS), full
            )
            place = ring.advance(place)
            step += 1

    @lang.device
    def fetch(words, pairs, i, codes_at, scales_at):
        """The lane's 32 codes of row i, from 16 bytes of shared memory, and their two scales."""
        v = ptx.ld_shared_v4_b32(codes_at)
        for w in range(4):
            words[4 * i + w] = v[w]
        pairs[i] = ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales_at))

    def multiply_k16(number):
        """-> device function (acc, operands) that multiplies 16 of the run's k, product number 0 to
        7: four nibbles of word ``number // 2`` of every lane's codes. Odd nibbles for an even
        number: any order will do that both operands share."""
        # first: nibbles 1 and 5, second: 3 and 7; or 0 and 4, 2 and 6; as halves times 2**-14
        halves_of = numbers.even_nibbles if number % 2 else numbers.odd_nibbles
        word = number // 2

        @lang.device
        def multiply(acc, operands):
            fragments = operands.fragments
            for j in range(cfg.n8_tiles):
                h, s = halves_of(operands.a_words[4 * j + word]), operands.a_scales[j]
                fragments[2 * j], fragments[2 * j + 1] = times(h.first, s), times(h.second, s)
            for tile in range(M16_TILES):
                # of the tile's 16 rows of B the lane has two, 8 apart
                i = 2 * tile
                upper = halves_of(operands.b_words[4 * i + word])
                lower = halves_of(operands.b_words[4 * i + 4 + word])
                s, s_lower = operands.b_scales[i], operands.b_scales[i + 1]
                b = (
                    times(upper.first, s),
                    times(lower.first, s_lower),
                    times(upper.second, s),
                    times(lower.second, s_lower),
                )
                for j in range(cfg.n8_tiles):
                    o = 4 * (cfg.n8_tiles * tile + j)
                    d = matmul(
                        b,
                        (fragments[2 * j], fragments[2 * j + 1]),
                        (acc[o], acc[o + 1], acc[o + 2], acc[o + 3]),
                    )
                    for r in range(4):
                        acc[o + r] = d[r]

        return multiply

    k16_0, k16_1, k16_2, k16_3, k16_4, k16_5, k16_6, k16_7 = map(multiply_k16, range(8))

    def use_scales(one_twice):
        """-> device function that takes one scale of each pair into use"""

        @lang.device
        def take(operands):
            for i in range(cfg.b_rows):
                operands.b_scales[i] = one_twice(operands.b_pairs[i])
            for j in range(cfg.n8_tiles):
                operands.a_scales[j] = one_twice(operands.a_pairs[j])

        return take

    # of f16x2, the low or the high half in both halves: scales of words 0 and 1, and 2 and 3
    use_first_scales, use_second_scales = (
        use_scales(ptx.both_low_f16x2),
        use_scales(ptx.both_high_f16x2),
    )

    @lang.device
    def multiply_stages(acc, shared, item, thread):
        """The warp's rows of B by all tokens, over its slice of the block's k."""
        barriers = shared + cfg.barriers_shared
        operands = Operands(
            b_words=cuda.local.array(cfg.b_words, uint32),
            a_words=cuda.local.array(cfg.a_words, uint32),
            b_pairs=cuda.local.array(cfg.b_rows, uint32),
            a_pairs=cuda.local.array(cfg.n8_tiles, uint32),
            b_scales=cuda.local.array(cfg.b_rows, uint32),
            a_scales=cuda.local.array(cfg.n8_tiles, uint32),
            fragments=cuda.local.array(cfg.fragment_words, uint32),
        )
        run, token, t = thread.warp_k % RUNS, item.tile.token, thread.t
        # Row number thread.row of a matrix; rows 8 further on have the same swizzle.
        codes = thread.row * STAGE_ROW + (((run * 4 + t) ^ thread.row) << 4)
        # Scales are u8 [tile, 64 of k][row % 32][row // 32][4, each of 16 k]; t's two are scales
        # 2 t and 2 t + 1 of the run's 8.
        scales = (run * 2 + t // 2) * TILE_BYTES + thread.row * LANE_BYTES + t % 2 * 2
        b_codes = codes + thread.warp_n * (WARP_COLUMNS * STAGE_ROW)
        b_scales = cfg.sfb_shared + scales + thread.warp_n * (WARP_COLUMNS // 32 * TILE_BLOCKS)
        a_codes = cfg.a_shared + codes
        # 8, 16 or 32 tokens from a multiple of as many on: they share row // 32
        a_scales = (
            cfg.sfa_shared
            + scales
            + token % 32 * LANE_BYTES
            + token % TILE_ROWS // 32 * TILE_BLOCKS
        )
        own_step = thread.warp_k // RUNS
        # The first step lies in the stage of its number, in the ring's first round: parity 0. From
        # there on the warp goes by stages_at_once, and meets the same stages in every round.
        place = ring.Place(own_step, 0)
        while own_step < item.steps:
            ring.wait_full(barriers, place)
            stage = shared + place.stage * cfg.stage_bytes
            for i in range(cfg.b_rows):
                fetch(
                    operands.b_words,
                    operands.b_pairs,
                    i,
                    stage + b_codes + 8 * STAGE_ROW * i,
                    stage + b_scales + (8 * LANE_BYTES * (i % 4) + TILE_BLOCKS * (i // 4)),
                )
            for j in range(cfg.n8_tiles):
                fetch(
                    operands.a_words,
                    operands.a_pairs,
                    j,
                    stage + a_codes + 8 * STAGE_ROW * j,
                    stage + a_scales + 8 * LANE_BYTES * j,
                )
            ptx.bar_warp_sync(ALL_LANES)  # all lanes have read
            if thread.row == 0 and t == 0:
                ring.release(barriers, place)
            use_first_scales(operands)
            k16_0(acc, operands)
            k16_1(acc, operands)
            k16_2(acc, operands)
            k16_3(acc, operands)
            use_second_scales(operands)
            k16_4(acc, operands)
            k16_5(acc, operands)
            k16_6(acc, operands)
            k16_7(acc, operands)
            for _ in range(cfg.stages_at_once):
                place = ring.advance(place)
            own_step += cfg.stages_at_once

    @lang.device
    def row_of(g):
        """Of every eight rows the one that lanes 4 g .. 4 g + 3 have: 0, 4, 1, 5, 2, 6, 3, 7. Rows
        of neighbouring g are four apart, so that eight lanes that load at once meet different
        banks of the swizzle. For mma it is row g (or column g): ``output`` undoes that."""
        return (g & 1) << 2 | g >> 1

    @lang.device
    def own_item(sizes):
        """As many steps for every rank of the cluster, but the last ones get what is left, which
        may be none."""
        block = uint32(cuda.blockIdx.x)
        rank = block % cfg.split
        tile = Tile(uint32(cuda.blockIdx.y) * cfg.tokens, block // cfg.split * COLUMNS)
        steps = (sizes.k + (STAGE_K - 1)) // STAGE_K
        most = (steps + (cfg.split - 1)) // cfg.split
        first = min(rank * most, steps)
        return WorkItem(tile, rank, first, min(steps - first, most))

    def kernel(a_map, b_map, sfa_map, sfb_map, c, d, bias, factors, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        item = own_item(sizes)
        if ptx.tid_x() == 0:
            ring.initialise(shared + cfg.barriers_shared)
        cuda.syncthreads()
        ptx.griddepcontrol_wait()  # both operands may be what the kernel before has just written
        # Safe anywhere, for the next kernel waits likewise until this one is complete. Before the
        # wait it would let three launches onto the GPU, whose blocks pile up where there is room
        # first: 20 us, not 13, at m = 1 and 8192 x 8192 (experiments/11_block_scaled).
        ptx.griddepcontrol_launch_dependents()
        if warp == cfg.consumers:
            if lane == 0:
                load_stages(shared, Maps(a_map, b_map, sfa_map, sfb_map), item)
        else:
            acc = cuda.local.array(cfg.sums, float32)
            for i in range(cfg.sums):
                acc[i] = float32(0)
            thread = Thread(warp % WARPS_N, warp // WARPS_N, row_of(lane // 4), lane % 4)
            multiply_stages(acc, shared, item, thread)
            output.leave_sums(acc, shared, thread)
            output.write_out(shared, Outputs(c, d, bias, factors), item, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of the tile's rows by 128 bytes, in the 128-byte swizzle; scales in boxes of
    a stage's tiles (``layout.block_scales.tensor_map``: in tiles, rows by k). ``a_stride`` is for
    kernels whose A may be a slice."""

    def matrix(rows, box_rows):
        return TensorMap(
            "uint8",
            (rows, k // 2),
            (k // 2, 1),
            (box_rows, STAGE_ROW),
            swizzle=STAGE_ROW,
            l2_promotion=256,
        )

    def scales(rows):
        return scales_map(rows, k // SCALED, (1, STAGE_SCALE_TILES))

    return {
        "a_map": ("a", matrix(m, config.tokens)),
        "b_map": ("b", matrix(n, COLUMNS)),
        "sfa_map": ("sfa", scales(m)),
        "sfb_map": ("sfb", scales(n)),
    }

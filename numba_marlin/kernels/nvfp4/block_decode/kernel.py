"""Both operands block-scaled, few rows of A: ``D = activation(alpha * (A * SFA) @ (B * SFB)^T +
beta * C + bias)`` of NVFP4 matrices as fast as B comes from memory. sm_90a.

Parameters: tensor maps (``tensor_maps``) of a uint8 [m, k/2] and b uint8 [n, k/2] (k contiguous, of
a byte's two codes the low nibble first), of sfa and sfb, an e4m3 scale for every 16 of k, in 128x4
order (``layout.block_scales``); addresses of c and d [m, n], bias float32 [n] and factors float32
[4], of which the last two are for ``block_scaled``: alpha, which contains both global scales and
2**28, to undo 2**-14 in each operand (**Halves**), and beta; m, n, k as int32. m is any; k is a
multiple of 32 (TMA wants rows of 16 bytes), n of 8 (here 4 would do, for vectors of four columns).
The host checks both: ``problems.operands``.

**The idea.** With few rows the time depends on B: 4.5 bits an element, read once. So tensor cores
multiply B by A: the 16 rows of ``mma.m16n8k16`` are rows of B, its 8 columns are *tokens*, rows of
A; what PTX calls A is B here. Both operands go from shared memory into registers packed, 16 bytes
per lane, and become halves there: nothing expanded is stored. Every warp expands all tokens of the
tile beside its 64 rows of B: an eighth more to expand with 8 tokens, half more with 32.

**Who does what.** A thread block has 128 rows of B (columns of D) and ``tokens`` rows of A:
blockIdx.x is split * column tile + rank, blockIdx.y the tile of tokens. k goes in steps of 256, a
stage each. The ``split`` blocks that are neighbours in x are a cluster and share a tile's k: rank r
has the ceil(steps / split) steps from r * ceil(steps / split) on, so the last ranks have fewer, or
none, and then add zeros. A warp's share of the block's k is called its *slice*: of every
(k_warps / 2)th stage one half, 128 of k, called a *run*. In a block (``warp_n`` = warp % 2,
``warp_k`` = warp // 2):

    role      who                what
    load      lane 0 of the      fills stages: B, A and their scales
              last warp
    multiply  2 * k_warps warps  64 rows of B, number warp_n, by all tokens, over slice warp_k: of
                                 the block's steps, number 0, 1, ..., those whose number modulo
                                 k_warps / 2 is warp_k // 2, and of each the run warp_k % 2
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

**Which k and n.** Lane 4 g + t takes 32 codes of each of its rows, 16 bytes as they lie in memory:
nibble p = 0 .. 7 (lowest first) of word w = 0 .. 3 is

    k = 256 step + 128 (warp_k % 2) + 32 t + 8 w + p      (steps counted from k = 0)
    n = tile.column + 64 warp_n + 8 i + row_of(g)         i = 0 .. 7: m16 tile i // 2, half i % 2
    token = tile.token + 8 j + row_of(g)                  j = 0 .. tokens / 8 - 1: n8 tile j

The codes of words 0 and 1 have the row's scale 2 t of the run, those of words 2 and 3 scale
2 t + 1. A product takes four nibbles of a word, in the same places in A and in B, so the sum over k
is complete and no shuffle is needed: (1, 5, 3, 7), then (0, 4, 2, 6), as k = 2 t, 2 t + 1, 2 t + 8
and 2 t + 9 of the ``mma``.

**Halves.** A code becomes a half by moving bits: its sign at bit 15, its exponent and significand
at bits 9 to 11 are the number times 2**-14 (``block_scaled.expand``). Times its scale, in both
operands, it is still exact: six significant bits, below 1/4, and a multiple of 0.5 * 2**-14 * 2**-9
= 2**-24, the last place of a subnormal half (2**-9 is e4m3's; neither ``mul`` nor ``mma`` flushes).

**Banks.** Rows of codes are 128 bytes, in TMA's 128-byte swizzle: 16-byte chunk c of row r lies at
chunk c ^ (r % 8). Eight lanes at a time load 16 bytes: t = 0 .. 3 of g = 2 a and 2 a + 1, whose
rows ``row_of`` makes a and a + 4, so they touch chunks 0 .. 7, all 32 banks. Sums: ``output``.
Scales do conflict: lanes t and t + 2 read words 512 bytes apart, one bank, so a load of them takes
two wavefronts, not one: for a row 6 with its codes' 4, not 5. It matters little. With 8 tokens a
warp's run reads 9 rows a lane, 54 wavefronts, and expands 36 words of codes with 15 instructions
each (11 for eight halves, 4 to multiply by scales): 540, loads and ``mma`` not counted. In a cycle
an SM's shared memory serves one wavefront and its four schedulers issue four instructions, one
each of four warps: 54 cycles against 135 (modelled: experiments/11_block_scaled).

**Reductions.** Slices are added in shared memory, then ranks through distributed shared memory,
both from first to last in fp32 (``output``): the same input gives the same bits.

**Tails.** TMA gives zeros outside of a matrix, and outside of the scales, which are stored as whole
tiles of 128 rows by four (64 of k); a code 0 adds 0. Only if k % 64 is 32 are there scales beyond k
inside a tile: the host must make that padding 0 (``api.block_scaled_matmul``), since 0 times NaN is
NaN. Rows of A beyond m and of B beyond n give sums that are not stored.

**State of the main loop.** Load: ``place`` (stage and parity in the ring), ``step`` (of 256 k, from
k = 0). Multiply: ``place``, ``own_step`` (of 256 k, from the block's first step), ``acc``
(``output`` has its index), and ``operands``, which is dead between rounds.

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
    # block's first, counted from k = 0, and how many are its
    WorkItem = lang.record("WorkItem", "tile rank first_step steps")

    # warp_n: which 64 rows of B; warp_k: which slice of k; row = row_of(lane // 4): which of every
    # eight rows, of B and of A; t = lane % 4: which 32 codes of a run
    Thread = lang.record("Thread", "warp_n warp_k row t")

    Maps = lang.record("Maps", "a b sfa sfb")

    Outputs = lang.record("Outputs", "c d bias factors")

    # a lane's registers in a round, u32 arrays, [i] for its 8 rows of B, [j] for its tokens / 8 of
    # A: words [4]: codes; scale_pairs: both scales as f16x2, that of words 0 and 1 in the low half;
    # scales: the one in use, in both halves; fragments [j][2]: tokens, expanded, of one k16
    Operands = lang.record(
        "Operands", "b_words a_words b_scale_pairs a_scale_pairs b_scales a_scales fragments"
    )

    @lang.device
    def load_stages(shared, maps, item):
        """One thread. x is innermost, along k: in bytes for A and B, in 8 bytes for scales, so 64
        to a tile of scales; y is in rows, for scales in tiles of 128 rows."""
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
    def fetch(words, scale_pairs, i, codes_at, scales_at):
        """The lane's 32 codes of row i, from 16 bytes of shared memory, and their two scales."""
        v = ptx.ld_shared_v4_b32(codes_at)
        for w in range(4):
            words[4 * i + w] = v[w]
        scale_pairs[i] = ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(scales_at))

    def multiply_k16(number):
        """-> device function (acc, operands) that multiplies 16 of the run's k, product number 0 to
        7: four nibbles of word ``number // 2`` of every lane's codes. Odd nibbles for an even
        number: any order will do that both operands share."""
        # of a word as it lies in memory (``block_scaled.expand``), two f16x2, times 2**-14:
        # .first has nibble 1 in the low half and 5 in the high one, .second 3 and 7;
        # even_nibbles 0 and 4, 2 and 6
        halves_of = numbers.even_nibbles if number % 2 else numbers.odd_nibbles
        word = number // 2

        @lang.device
        def multiply(acc, operands):
            fragments = operands.fragments
            for j in range(cfg.n8_tiles):
                h, s = halves_of(operands.a_words[4 * j + word]), operands.a_scales[j]
                fragments[2 * j], fragments[2 * j + 1] = times(h.first, s), times(h.second, s)
            for m16 in range(M16_TILES):
                # of the m16 tile's 16 rows of B the lane has two, 8 apart: i and i + 1
                i = 2 * m16
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
                    o = 4 * (cfg.n8_tiles * m16 + j)
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
                operands.b_scales[i] = one_twice(operands.b_scale_pairs[i])
            for j in range(cfg.n8_tiles):
                operands.a_scales[j] = one_twice(operands.a_scale_pairs[j])

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
            b_scale_pairs=cuda.local.array(cfg.b_rows, uint32),
            a_scale_pairs=cuda.local.array(cfg.n8_tiles, uint32),
            b_scales=cuda.local.array(cfg.b_rows, uint32),
            a_scales=cuda.local.array(cfg.n8_tiles, uint32),
            fragments=cuda.local.array(cfg.fragment_words, uint32),
        )
        run, token, t = thread.warp_k % RUNS, item.tile.token, thread.t
        # Offsets in a stage, in bytes. Of row thread.row of a matrix chunk 4 run + t, in the
        # swizzle; rows 8 further on have the same swizzle.
        codes = thread.row * STAGE_ROW + (((run * 4 + t) ^ thread.row) << 4)
        # Scales are u8 [tile, 64 of k][row % 32][row // 32][4, each of 16 k]; t's two, scales 2 t
        # and 2 t + 1 of the run's 8, are bytes 2 (t % 2) and the next of tile 2 run + t // 2.
        scales = (run * 2 + t // 2) * TILE_BYTES + thread.row * LANE_BYTES + (t % 2) * 2
        b_codes = codes + thread.warp_n * (WARP_COLUMNS * STAGE_ROW)
        b_scales = cfg.sfb_shared + scales + thread.warp_n * (WARP_COLUMNS // 32 * TILE_BLOCKS)
        a_codes = cfg.a_shared + codes
        # A tile of 8, 16 or 32 tokens begins at a multiple of its size: its tokens have the same
        # row // 32.
        a_scales = (
            cfg.sfa_shared
            + scales
            + token % 32 * LANE_BYTES
            + token % TILE_ROWS // 32 * TILE_BLOCKS
        )
        own_step = thread.warp_k // RUNS
        # The first step lies in the stage of its number (below k_warps / 2, so there is one), in
        # the ring's first lap: parity 0. From there on the warp goes by stages_at_once, and meets
        # the same stages in every round.
        place = ring.Place(own_step, 0)
        while own_step < item.steps:
            ring.wait_full(barriers, place)
            stage = shared + place.stage * cfg.stage_bytes
            for i in range(cfg.b_rows):
                fetch(
                    operands.b_words,
                    operands.b_scale_pairs,
                    i,
                    stage + b_codes + 8 * STAGE_ROW * i,
                    stage + b_scales + (8 * LANE_BYTES * (i % 4) + TILE_BLOCKS * (i // 4)),
                )
            for j in range(cfg.n8_tiles):
                fetch(
                    operands.a_words,
                    operands.a_scale_pairs,
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
        """Of every eight rows the one that lanes 4 g .. 4 g + 3 have: 0, 4, 1, 5, 2, 6, 3, 7 for
        g = 0 .. 7, so that eight lanes that load at once have two rows four apart, in different
        banks of the swizzle. For mma it is row g (or column g): ``output`` undoes that."""
        return (g & 1) << 2 | g >> 1

    @lang.device
    def own_item(sizes):
        """The same number of steps for every rank of the cluster, but the last ones get what is
        left, which may be none."""
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
        # Safe anywhere, for the next kernel waits likewise until this one is complete. But placed
        # before the wait it would let the next one's blocks come while the one before still runs:
        # the blocks of three launches would share the SMs, and pile up on those that have room
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
    a stage's tiles (``layout.block_scales.tensor_map``: in tiles, rows by k). ``a_stride``: unused,
    for kernels whose A may be a slice."""

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

"""Both operands block-scaled, few rows of A: ``D = activation(alpha * (A * SFA) @ (B * SFB)^T +
beta * C + bias)`` of NVFP4 matrices as fast as B comes from memory. sm_90a.

Parameters: tensor maps (``tensor_maps``) of a uint8 [m, k/2] and b uint8 [n, k/2], of sfa and sfb,
e4m3 in 128x4 order (``layout.block_scales``); c and d [m, n]; bias float32 [n]; factors float32
[2]: alpha, with both global scales and this kernel's powers of two in it, and beta; m, n, k as
int32. m any, k a multiple of 32, n of 8.

With few rows B is what takes time: 4.5 bits an element, once. So tensor cores multiply B by A, not
A by B: ``mma.sync``, whose 16 rows are B's and whose 8 columns are tokens. Both operands go from
shared memory into registers packed, 16 bytes a lane, and become halves there
(``block_scaled_expand``: the same order of k in both, no shuffle, nothing expanded is stored). A
warp has 64 rows of B and all tokens, so that expanding the tokens, which every warp does, costs an
eighth of the rest for 8 of them, half for 32.

    role        who                 takes                    gives
    load        one thread          A, B and their scales    stages, 256 of k
    multiply    2 x k_warps warps   a stage's half, 128 k    sums in registers
    epilogue    the same            all sums of a column     D

Launches overlap (``griddepcontrol``): blocks come and make ready while the kernel before ends, and
read nothing before it has.

Shares of k are added up in shared memory, those of a cluster's blocks through each other's, in an
order that is always the same.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_decode.config import (
    CHUNKS,
    COLUMNS,
    ROW_WARPS,
    SCALE_BYTES,
    STAGE_K,
    STAGE_ROW,
    WARP_BLOCKS,
    WARP_COLUMNS,
)
from numba_marlin.kernels.nvfp4.block_decode.output import output_verbs
from numba_marlin.kernels.nvfp4.block_scaled.config import ALIGNMENT, BLOCK
from numba_marlin.kernels.nvfp4.block_scaled.expand import number_verbs
from numba_marlin.layout.block_scales import TILE_BYTES, TILE_ROWS
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, int32, float32 = lang.uint32, lang.int32, lang.float32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=ROW_WARPS * CHUNKS)
    numbers, output = number_verbs(lang), output_verbs(lang, config)
    times, matmul = ptx.mul_f16x2, ptx.mma_m16n8k16_f32_f16

    Sizes = lang.record("Sizes", "m n k")

    # of D: its first row (of A), its first column (row of B)
    Tile = lang.record("Tile", "token column")

    # a tile and, of its steps along k, those of block number ``rank`` of the cluster
    WorkItem = lang.record("WorkItem", "tile rank first_step steps")

    # warp_n: which 64 rows of B are the warp's; warp_k: which share of k; row: the lane's of eight
    # rows; t: its share of 128 of k, of four
    Thread = lang.record("Thread", "warp_n warp_k row t")

    Maps = lang.record("Maps", "a b sfa sfb")

    Outputs = lang.record("Outputs", "c d bias factors")

    # in a lane's registers, of each row that it has a share of: four words of codes and both scales
    # as a pair of halves; the scale that is being used, twice; fragments: of A, expanded
    Operands = lang.record(
        "Operands", "b_words a_words b_pairs a_pairs b_scales a_scales fragments"
    )

    @lang.device
    def load_stages(shared, maps, item):
        barriers, tile = shared + cfg.barriers_shared, item.tile
        place, step = ring.producer_start(), item.first_step
        while step < item.first_step + item.steps:
            ring.wait_empty(barriers, place)
            ring.expect(barriers, place, cfg.stage_bytes)
            stage, full = shared + place.stage * cfg.stage_bytes, ring.full(barriers, place)
            x, scale_x = int32(step * STAGE_ROW), int32(step * (SCALE_BYTES // 8))
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
    def fetch(words, pairs, i, row, row_scales):
        """A lane's share of a row, 32 codes, and its two scales."""
        v = ptx.ld_shared_v4_b32(row)
        for w in range(4):
            words[4 * i + w] = v[w]
        pairs[i] = ptx.cvt_rn_f16x2_e4m3x2(ptx.ld_shared_b16(row_scales))

    def multiply_row(row):
        """-> device function that multiplies 16 of k: a word of every share, its odd nibbles or its
        even ones."""
        halves_of, word = (numbers.even_nibbles if row % 2 else numbers.odd_nibbles), row // 2

        @lang.device
        def multiply(acc, operands):
            fragments = operands.fragments
            for j in range(cfg.token_blocks):
                h, s = halves_of(operands.a_words[4 * j + word]), operands.a_scales[j]
                fragments[2 * j], fragments[2 * j + 1] = times(h.first, s), times(h.second, s)
            for i in range(WARP_BLOCKS):
                above = halves_of(operands.b_words[8 * i + word])
                below = halves_of(operands.b_words[8 * i + 4 + word])
                s, s_below = operands.b_scales[2 * i], operands.b_scales[2 * i + 1]
                b = (
                    times(above.first, s),
                    times(below.first, s_below),
                    times(above.second, s),
                    times(below.second, s_below),
                )
                for j in range(cfg.token_blocks):
                    o = 4 * (cfg.token_blocks * i + j)
                    d = matmul(
                        b,
                        (fragments[2 * j], fragments[2 * j + 1]),
                        (acc[o], acc[o + 1], acc[o + 2], acc[o + 3]),
                    )
                    for r in range(4):
                        acc[o + r] = d[r]

        return multiply

    row0, row1, row2, row3, row4, row5, row6, row7 = (multiply_row(row) for row in range(8))

    def scales_of(half):
        """-> device function that takes those of the first or the second block of every share"""

        @lang.device
        def take(operands):
            for i in range(cfg.b_rows):
                operands.b_scales[i] = half(operands.b_pairs[i])
            for j in range(cfg.token_blocks):
                operands.a_scales[j] = half(operands.a_pairs[j])

        return take

    first_scales, second_scales = scales_of(ptx.both_low_f16x2), scales_of(ptx.both_high_f16x2)

    @lang.device
    def multiply_stages(acc, shared, item, thread):
        """The warp's share of the block's k."""
        barriers = shared + cfg.barriers_shared
        operands = Operands(
            b_words=cuda.local.array(cfg.b_words, uint32),
            a_words=cuda.local.array(cfg.a_words, uint32),
            b_pairs=cuda.local.array(cfg.b_rows, uint32),
            a_pairs=cuda.local.array(cfg.token_blocks, uint32),
            b_scales=cuda.local.array(cfg.b_rows, uint32),
            a_scales=cuda.local.array(cfg.token_blocks, uint32),
            fragments=cuda.local.array(cfg.fragment_words, uint32),
        )
        chunk, token, t = thread.warp_k % CHUNKS, item.tile.token, thread.t
        share = thread.row * STAGE_ROW + ((chunk * 4 + t ^ thread.row) << 4)
        # Scales in 128x4 order: those of the next row are 16 bytes behind, those of the row 32
        # behind 4 bytes.
        scale = (chunk * 2 + t // 2) * TILE_BYTES + thread.row * 16 + t % 2 * 2
        b_share = share + thread.warp_n * (WARP_COLUMNS * STAGE_ROW)
        b_scale = cfg.sfb_shared + scale + thread.warp_n * 8
        a_share = cfg.a_shared + share
        a_scale = cfg.sfa_shared + scale + token % 32 * 16 + token % TILE_ROWS // 32 * 4
        step = thread.warp_k // CHUNKS
        # a stage always has the same warps: in the first round those of its number
        place = ring.Place(step, 0)
        while step < item.steps:
            ring.wait_full(barriers, place)
            stage = shared + place.stage * cfg.stage_bytes
            for i in range(cfg.b_rows):
                fetch(
                    operands.b_words,
                    operands.b_pairs,
                    i,
                    stage + b_share + 8 * STAGE_ROW * i,
                    stage + b_scale + (128 * (i % 4) + 4 * (i // 4)),
                )
            for j in range(cfg.token_blocks):
                fetch(
                    operands.a_words,
                    operands.a_pairs,
                    j,
                    stage + a_share + 8 * STAGE_ROW * j,
                    stage + a_scale + 128 * j,
                )
            ptx.bar_warp_sync(ALL_LANES)
            if thread.row == 0 and t == 0:
                ring.release(barriers, place)
            first_scales(operands)
            row0(acc, operands)
            row1(acc, operands)
            row2(acc, operands)
            row3(acc, operands)
            second_scales(operands)
            row4(acc, operands)
            row5(acc, operands)
            row6(acc, operands)
            row7(acc, operands)
            for _ in range(cfg.stages_at_once):
                place = ring.advance(place)
            step += cfg.stages_at_once

    @lang.device
    def row_of(g):
        """Of eight rows the one that lanes 4 g .. 4 g + 3 have: rows of neighbouring g are four
        apart, so that eight lanes that load at once meet different banks of the swizzle."""
        return (g & 1) << 2 | g >> 1

    @lang.device
    def own_item(sizes):
        """An equal share of k for every block of the cluster, or what is left."""
        block = uint32(cuda.blockIdx.x)
        rank = block % cfg.split
        tile = Tile(uint32(cuda.blockIdx.y) * cfg.tokens, block // cfg.split * COLUMNS)
        steps = (sizes.k + (STAGE_K - 1)) // STAGE_K
        share = (steps + (cfg.split - 1)) // cfg.split
        first = min(rank * share, steps)
        return WorkItem(tile, rank, first, min(steps - first, share))

    def kernel(a_map, b_map, sfa_map, sfb_map, c, d, bias, factors, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        item = own_item(sizes)
        if ptx.tid_x() == 0:
            ring.initialise(shared + cfg.barriers_shared)
        cuda.syncthreads()
        ptx.griddepcontrol_wait()  # both operands may be what the kernel before has just written
        ptx.griddepcontrol_launch_dependents()
        if warp == cfg.consumers:
            if lane == 0:
                load_stages(shared, Maps(a_map, b_map, sfa_map, sfb_map), item)
        else:
            acc = cuda.local.array(cfg.sums, float32)
            for i in range(cfg.sums):
                acc[i] = float32(0)
            thread = Thread(warp % ROW_WARPS, warp // ROW_WARPS, row_of(lane // 4), lane % 4)
            multiply_stages(acc, shared, item, thread)
            output.leave_sums(acc, shared, thread)
            output.write_out(shared, Outputs(c, d, bias, factors), item, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of 128 bytes of a block's rows, in the 128-byte swizzle; scales in boxes of
    those of a stage."""

    def matrix(rows, box):
        return TensorMap("uint8", (rows, k // 2), (k // 2, 1), (box, STAGE_ROW), STAGE_ROW, 256)

    def scales(rows):
        return scales_map(rows, k // BLOCK, (1, SCALE_BYTES // TILE_BYTES))

    return {
        "a_map": ("a", matrix(m, config.tokens)),
        "b_map": ("b", matrix(n, COLUMNS)),
        "sfa_map": ("sfa", scales(m)),
        "sfb_map": ("sfb", scales(n)),
    }

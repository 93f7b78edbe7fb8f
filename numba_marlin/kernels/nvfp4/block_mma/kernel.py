"""Block-scaled tensor cores without tensor memory: ``mma.sync`` with block scales. sm_120a
(RTX 50).

``D[m, n] = alpha * (A * SFA) @ (B * SFB)^T``; parameters: tensor maps (``tensor_maps``) of a uint8
[m, k/2] and b uint8 [n, k/2] (k contiguous; of two FP4 in a byte the low nibble comes first), of
sfa and sfb, their scales in 128x4 order (``layout.block_scales``); d [m, n] and alpha, float32 [1],
which contains both global scales, as addresses; m, n, k as int32. m is any; k is a multiple of 32
(TMA wants rows of 16 bytes), n of 8 (an even n would do here). The host checks both:
``problems.operands``.

**Who does what.** A thread block multiplies one tile of 128 x 128 of D by all of k; no cluster, no
split of k. Blocks are numbered down the rows of tiles first. Warps 0 to 7 multiply, 32 x 64 of the
tile each (``warp_m`` = warp // 2, ``warp_n`` = warp % 2); lane 0 of warp 8 loads.

**In flight.** A ring of ``stages`` stages of 256 k; what lies in one: ``config``. Before a warp
reads one it waits for *full*: the load thread's arrival and the bytes of its four tensor copies.
Before the load thread overwrites one it waits for *empty*: 8 arrivals, one from each warp that
multiplies, after its last read of the stage. So products overlap with copies and with other warps.
Within a warp each *k64 step*, a quarter of a stage, loads all it needs and then issues its 16
products; whether the next step's loads begin earlier is left to the assembler.

**Which k and n.** FP4 fragments have the layout of fragments of bytes, or of halves seen as bytes,
so ``ldmatrix`` fetches them: a row of its 8 x 16 bytes is 32 codes. Nibble p of a register of lane
4 g + t is, in k64 step q of step s (of 256 k),

    k = 256 s + 64 q + 32 h + 8 t + p
    a[4 i + 2 h + u]   row tile.row + 32 warp_m + 16 i + 8 u + g of A; i, u, h = 0, 1
    b[2 j + h]         row tile.column + 64 warp_n + 8 j + g of B; j = 0 .. 7

**Scales.** For each row and k64 step, a word in a tile of scales: four scales of 16 (nvfp4), or two
of 32 and the two of the next step (mxfp4). Each lane loads three: lane 4 g + t for A's row 8 t + g
of the warp's 32, and for B's rows 8 t + g and 32 + 8 t + g of its 64. The tensor core applies them.
A product is told which lanes have its words: thread-id-a i means lanes 4 g + 2 i (row g) and
4 g + 2 i + 1 (row g + 8), thread-id-b j % 4 means lanes 4 g + j % 4 (column g).

**Banks.** Rows of codes are 128 bytes, in TMA's 128-byte swizzle: 16-byte chunk c of row r lies at
chunk c ^ (r % 8), so the eight rows of an ``ldmatrix`` touch all 32 banks. Words of scales do
conflict: neighbouring rows are 16 bytes apart, so 32 rows meet in 8 banks. A k64 step of a warp
takes 24 wavefronts for codes, 4 for scales of A (1 without conflicts) and 8 for B's pairs (2): a
quarter of all are conflicts (counted in experiments/12_blackwell too).

**Sums** stay in registers over all of k, in order of k: the same input gives the same bits. From
there they are multiplied by alpha, rounded and stored, two columns at a time: no staging, a quad
writes 16 bytes (32 of float32) of a row.

**Tails.** TMA gives zeros outside of a matrix and outside of its tiles of scales, and a code 0 adds
0. Only if k % 64 is 32 (mxfp4: if k % 128 is not 0) are there scales beyond k inside a tile: the
host must make that padding 0 (``api.block_scaled_matmul``), since 0 times NaN is NaN. Sums of rows
beyond m and columns beyond n are not stored.

**State of the main loop.** Load: ``place`` (stage and parity in the ring), ``step`` (of 256 k).
Multiply: the same two, and ``sums``, a tuple of 64 floats: 4 of each product 8 i + j.

No GPU that has this instruction has run this kernel; the PTX machine has, under the assumptions of
``emulator.tensor.block_scales``.
"""

from numba_marlin.hardware.limits import ALL_LANES
from numba_marlin.kernels.language.pipeline import pipeline_verbs
from numba_marlin.kernels.nvfp4.block_mma.config import (
    ALIGNMENT,
    CONSUMERS,
    K64_STEPS,
    STAGE_K,
    STAGE_ROW,
    TILE,
    WARP_COLUMNS,
    WARP_ROWS,
    WARPS_N,
)
from numba_marlin.layout.block_scales import (
    LANE_BYTES,
    TILE_BLOCKS,
    TILE_BYTES,
    TILE_MAP_WIDTH,
    TILE_ROWS,
)
from numba_marlin.layout.block_scales import tensor_map as scales_map
from numba_marlin.layout.tensor_map import TensorMap

# of mma.m16n8k64 in a warp's 32 x 64: a product for each of one with each of the other
M16_TILES, N8_TILES = WARP_ROWS // 16, WARP_COLUMNS // 8
PRODUCTS = M16_TILES * N8_TILES
PRODUCT_SUMS = 4  # a lane's, of 16 x 8


def make(lang, config):
    cuda, ptx, shared_base = lang.cuda, lang.ptx, lang.shared_base
    uint32, uint64, int32 = lang.uint32, lang.uint64, lang.int32
    cfg = lang.constants(config)
    ring = pipeline_verbs(lang, config.stages, producers=1, consumers=CONSUMERS)
    zeros = ptx.zero_f32(width=PRODUCT_SUMS * PRODUCTS)  # a function: () -> tuple
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32

    Sizes = lang.record("Sizes", "m n k")

    # of D: first row and first column of the block's tile
    Tile = lang.record("Tile", "row column")

    # of D: row and column of a lane's first sum
    Corner = lang.record("Corner", "row column")

    # warp_m, warp_n: which 32 rows and which 64 columns of the tile are the warp's
    Thread = lang.record("Thread", "warp_m warp_n lane")

    Maps = lang.record("Maps", "a b sfa sfb")

    # d: address; factor: alpha's value
    Output = lang.record("Output", "d factor")

    # a lane's registers in a k64 step, tuples of u32: a [m16 tile][4], b [n8 tile][2]; sfa: a word
    # of scales; sfb: two, for the first and for the last four n8 tiles
    Operands = lang.record("Operands", "a b sfa sfb")

    @lang.device
    def load_tile(shared, maps, tile, steps):
        """One thread. Maps of A and B count x in bytes, those of scales in 8 bytes and y in tiles
        of 128 rows. (``_cta``: ptxas for sm_120 makes a check at run time of the other form.)"""
        barriers = shared + cfg.barriers_shared
        place, step = ring.producer_start(), 0
        while step < steps:
            ring.wait_empty(barriers, place)
            ring.expect(barriers, place, cfg.stage_bytes)
            stage, full = shared + place.stage * cfg.stage_pitch, ring.full(barriers, place)
            x, scale_x = int32(step * STAGE_ROW), int32(step * (cfg.scale_tiles * TILE_MAP_WIDTH))
            # (to, map, x, y, barrier that counts the bytes)
            ptx.cp_async_bulk_tensor_2d_g2s_cta(stage, maps.a, x, int32(tile.row), full)
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + cfg.b_shared, maps.b, x, int32(tile.column), full
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + cfg.sfa_shared, maps.sfa, scale_x, int32(tile.row // TILE_ROWS), full
            )
            ptx.cp_async_bulk_tensor_2d_g2s_cta(
                stage + cfg.sfb_shared, maps.sfb, scale_x, int32(tile.column // TILE_ROWS), full
            )
            place = ring.advance(place)
            step += 1

    @lang.device
    def fetch(codes, row, chunk):
        """Four matrices of 8 rows by 16 bytes, of A or B at ``codes``, as ldmatrix takes them:
        lanes 8 i .. 8 i + 7 name the rows of matrix i, each its row and which 16 bytes of it."""
        return ptx.ldmatrix_x4(codes + row * STAGE_ROW + ((chunk ^ (row & 7)) << 4))

    def products_from(first, count, byte):
        """-> device function (sums of products number first to first + count - 1, operands) ->
        sums. Product N8_TILES * i + j is of m16 tile i and n8 tile j. By halves down to one, since
        a tuple can only be cut by constants (``language.tuples``) and an array of sums might leave
        the registers."""
        if count > 1:
            half = count // 2
            own = PRODUCT_SUMS * half
            low, high = (
                products_from(first, half, byte),
                products_from(first + half, count - half, byte),
            )

            @lang.device
            def both(sums, operands):
                return low(sums[:own], operands) + high(sums[own:], operands)

            return both
        i, j = divmod(first, N8_TILES)
        lanes = {"thread_a": i, "thread_b": j % 4}  # that have the scales
        multiply = (
            ptx.mma_m16n8k64_f32_mxf4nvf4_4x(**lanes)
            if config.format == "nvfp4"
            else ptx.mma_m16n8k64_f32_mxf4_2x(byte=byte, **lanes)
        )
        a_start, a_stop, b_start, b_stop, word = 4 * i, 4 * i + 4, 2 * j, 2 * j + 2, j // 4

        @lang.device
        def one(sums, operands):
            return multiply(
                operands.a[a_start:a_stop],
                operands.b[b_start:b_stop],
                sums,
                operands.sfa,
                operands.sfb[word],
            )

        return one

    def step_verb(byte):
        """-> device function of a k64 step whose scales begin with that byte of their words."""
        multiply = products_from(0, PRODUCTS, byte)

        @lang.device
        def multiply_step(sums, stage, k64, thread):
            """Number k64 of the stage, 0 to 3: all fragments and scales, then 16 products."""
            lane = thread.lane
            # matrices: rows 0 to 7 and 8 to 15 of the first 32 k, then of the other 32
            row = thread.warp_m * WARP_ROWS + lane % 16
            chunk = lane // 16 + 2 * k64
            a = fetch(stage, row, chunk) + fetch(stage, row + 16, chunk)
            # matrices: rows 0 to 7 of B, both 32 of k, then rows 8 to 15
            column = thread.warp_n * WARP_COLUMNS + lane // 16 * 8 + lane % 8
            chunk = lane // 8 % 2 + 2 * k64
            b_codes = stage + cfg.b_shared
            b = (
                fetch(b_codes, column, chunk)
                + fetch(b_codes, column + 16, chunk)
                + fetch(b_codes, column + 32, chunk)
                + fetch(b_codes, column + 48, chunk)
            )
            # Scales are u8 [tile along k][row % 32][row // 32][TILE_BLOCKS].
            g, t = lane // 4, lane % 4
            scale_tile = k64 * cfg.k64_scales // TILE_BLOCKS
            scales = stage + scale_tile * TILE_BYTES + (t * 8 + g) * LANE_BYTES
            sfa = ptx.ld_shared_b32(scales + cfg.sfa_shared + thread.warp_m * TILE_BLOCKS)
            sfb = ptx.ld_shared_v2_b32(scales + cfg.sfb_shared + thread.warp_n * (2 * TILE_BLOCKS))
            return multiply(sums, Operands(a, b, sfa, sfb))

        return multiply_step

    multiply_even = step_verb(0)
    # mxfp4: of a word, even k64 steps take bytes 0 and 1, odd ones bytes 2 and 3
    multiply_odd = multiply_even if config.format == "nvfp4" else step_verb(2)

    @lang.device
    def multiply_stages(shared, steps, thread):
        barriers = shared + cfg.barriers_shared
        place, sums, step = ring.consumer_start(), zeros(), 0
        while step < steps:
            ring.wait_full(barriers, place)
            stage = shared + place.stage * cfg.stage_pitch
            for pair in range(K64_STEPS // 2):
                sums = multiply_even(sums, stage, 2 * pair, thread)
                sums = multiply_odd(sums, stage, 2 * pair + 1, thread)
            ptx.bar_warp_sync(ALL_LANES)  # all lanes have read
            if thread.lane == 0:
                ring.release(barriers, place)
            place = ring.advance(place)
            step += 1
        return sums

    @lang.device
    def store_pair(d, row, column, left, right, sizes):
        """Two columns, both inside of D or both outside: n is even."""
        if row < sizes.m and column < sizes.n:
            address = d + (uint64(row) * sizes.n + column) * cfg.result_bytes
            if cfg.result_bytes == 2:
                ptx.st_global_b32(address, pair_of(left, right))
            else:
                ptx.st_global_v2_f32(address, (left, right))

    def stores_from(first, count):
        """-> device function (sums of products number first to first + count - 1, output, corner,
        sizes), by halves like ``products_from``"""
        if count > 1:
            half = count // 2
            own = PRODUCT_SUMS * half
            low, high = stores_from(first, half), stores_from(first + half, count - half)

            @lang.device
            def both(sums, output, corner, sizes):
                low(sums[:own], output, corner, sizes)
                high(sums[own:], output, corner, sizes)

            return both
        i, j = divmod(first, N8_TILES)
        down, across = 16 * i, 8 * j

        @lang.device
        def one(sums, output, corner, sizes):
            """Two neighbours of row g, two of row g + 8."""
            row, column, factor = corner.row + down, corner.column + across, output.factor
            store_pair(output.d, row, column, sums[0] * factor, sums[1] * factor, sizes)
            store_pair(output.d, row + 8, column, sums[2] * factor, sums[3] * factor, sizes)

        return one

    store = stores_from(0, PRODUCTS)

    @lang.device
    def own_tile(sizes):
        """Down the rows first: neighbouring blocks share their columns' rows of B. ``config.grid``
        has no more blocks than tiles."""
        row_tiles = (sizes.m + (TILE - 1)) // TILE
        block = uint32(cuda.blockIdx.x)
        return Tile(block % row_tiles * TILE, block // row_tiles * TILE)

    def kernel(a_map, b_map, sfa_map, sfb_map, d, alpha, m, n, k):
        sizes = Sizes(m, n, k)
        shared = (shared_base() + (ALIGNMENT - 1)) & (2**32 - ALIGNMENT)  # rounded up
        warp, lane = ptx.tid_x() // 32, ptx.tid_x() % 32
        tile, steps = own_tile(sizes), (sizes.k + (STAGE_K - 1)) // STAGE_K
        if ptx.tid_x() == 0:
            ring.initialise(shared + cfg.barriers_shared)
        cuda.syncthreads()
        if warp == CONSUMERS:
            if lane == 0:
                load_tile(shared, Maps(a_map, b_map, sfa_map, sfb_map), tile, steps)
        else:
            thread = Thread(warp // WARPS_N, warp % WARPS_N, lane)
            sums = multiply_stages(shared, steps, thread)
            corner = Corner(
                tile.row + thread.warp_m * WARP_ROWS + lane // 4,
                tile.column + thread.warp_n * WARP_COLUMNS + lane % 4 * 2,
            )
            store(sums, Output(d, ptx.ld_global_f32(alpha)), corner, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes, in the 128-byte swizzle; scales in boxes of a
    stage's tiles (``layout.block_scales.tensor_map``: in tiles, rows by k). ``a_stride`` is for
    kernels whose A may be a slice."""

    def matrix(rows):
        return TensorMap(
            "uint8",
            (rows, k // 2),
            (k // 2, 1),
            (TILE, STAGE_ROW),
            swizzle=STAGE_ROW,
            l2_promotion=256,
        )

    def scales(rows):
        return scales_map(rows, k // config.scaled, (1, config.scale_tiles))

    return {
        "a_map": ("a", matrix(m)),
        "b_map": ("b", matrix(n)),
        "sfa_map": ("sfa", scales(m)),
        "sfb_map": ("sfb", scales(n)),
    }

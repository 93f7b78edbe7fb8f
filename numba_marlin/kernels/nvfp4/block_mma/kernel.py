"""Block-scaled tensor cores without tensor memory: ``mma.sync`` with block scales. sm_120a
(RTX 50).

``D[m, n] = alpha * (A * SFA) @ (B * SFB)^T``; parameters: tensor maps (``tensor_maps``) of a uint8
[m, k/2] and b uint8 [n, k/2] (k contiguous; of two FP4 in a byte the low nibble comes first), of
sfa and sfb, their scales in 128x4 order (``layout.block_scales``); d [m, n] and alpha, float32 [1],
which contains both global scales, as addresses; m, n, k as int32. m is any; k is a multiple of 32
(TMA wants rows of 16 bytes), n of 8 (an even n would do here). The host checks both:
``problems.operands``.

**Who does what.** A thread block multiplies one tile of 128 x 128 of D by all of k; no cluster, no
split of k. blockIdx.x runs along m first, so that blocks that run at the same time read the same
rows of B. Warps 0 to 7 multiply, 32 x 64 of the tile each (``warp_m`` = warp // 2, ``warp_n`` =
warp % 2); lane 0 of warp 8 loads.

**In flight.** A ring of ``stages`` stages of 256 k; what lies in one, and why there are two:
``config``. Before a warp reads one it waits for *full*: the load thread's arrival and the bytes of
its four tensor copies. Before the load thread overwrites one it waits for *empty*: 8 arrivals, one
from each warp that multiplies, made after it has issued the products of the stage's last 64 of k.
So products overlap with copies and with other warps.

A stage is multiplied in four *k64 steps*, number q = 0 .. 3: each loads all it needs, then issues
its 16 products, number 8 i + j = 0 .. 15 of m16 tile i and n8 tile j, in this order. Whether the
next step's loads begin earlier is left to the assembler.

**Which k and n.** FP4 fragments have the layout of fragments of bytes, or of halves seen as bytes,
so ``ldmatrix`` fetches them: a row of its 8 x 16 bytes is 32 codes. Nibble p (0 .. 7, lowest first)
of a register of lane 4 g + t (g = 0 .. 7, t = 0 .. 3) is, in k64 step q of step s (of 256 k),

    k = 256 s + 64 q + 32 h + 8 t + p                                      h = 0, 1
    a[4 i + 2 h + u]   row tile.row + 32 warp_m + 16 i + 8 u + g of A      i, u = 0, 1
    b[2 j + h]         row n = tile.column + 64 warp_n + 8 j + g of B      j = 0 .. 7

**Scales.** For each row and k64 step, four bytes of a tile of scales, a word: four scales of 16
(nvfp4); or two of 32 for an even step (bytes 0, 1) and two for the odd step after it (bytes 2, 3),
so that both load the same word (mxfp4). Each lane loads three: lane 4 g + t for A's row 8 t + g of
the warp's 32, and for B's rows 8 t + g and 32 + 8 t + g of its 64. The tensor core applies them. A
product is told which lanes have its words, by two immediates of ``mma`` (PTX: thread-id-a,
thread-id-b):
``thread_a`` = i means lanes 4 g + 2 i (row g) and 4 g + 2 i + 1 (row g + 8), ``thread_b`` = j % 4
means lanes 4 g + j % 4 (column g).

**Banks.** Rows of codes are 128 bytes, in TMA's 128-byte swizzle: 16-byte chunk c of row r lies at
chunk c ^ (r % 8), so the eight rows of an ``ldmatrix`` touch all 32 banks. Words of scales do
conflict. Row 8 t + g lies at byte 16 (8 t + g), so the four t of a g meet in one bank. A's load, 4
bytes a lane, takes 4 wavefronts (1 without conflicts). B's takes 8 (not 2): loads of 8 bytes a lane
go by half warps, g = 0 .. 3 and 4 .. 7, each with the four t of a g in one pair of banks. With 24
for codes these are 36 for a k64 step of a warp, of which 9, a quarter, are conflicts (so counted in
experiments/12_blackwell).

**Sums** stay in registers over all of k, in order of k: the same input gives the same bits. From
there they are multiplied by alpha, rounded and stored, two columns at a time, without staging: the
four lanes of a g write 16 bytes (32 of float32) of a row, so of 16 bits half a sector of 32 bytes.

**Tails.** TMA gives zeros outside of a matrix, and outside of the scales, which are stored as whole
tiles of 128 rows by four; a code 0 adds 0. Only if k, a multiple of 32, is none of 64 (mxfp4: of
128) are there scales beyond k inside a tile: the host must make that padding 0
(``api.block_scaled_matmul``), since 0 times NaN is NaN. Sums of rows beyond m and columns beyond n
are not stored.

**State of the main loop.** Load: ``place`` (stage and parity in the ring), ``step`` (of 256 k, from
k = 0). Multiply: the same two, and ``sums``, a tuple of 64 floats: 4 of each product 8 i + j,
[0, 1] of row g, columns 2 t and 2 t + 1, [2, 3] of row g + 8.

No GPU that has this instruction has run this kernel; the PTX machine has. It assumes an order and a
rounding of the sum within a product, which PTX leaves open (``emulator.tensor.block_scales``).
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
    # (left, right) -> a register of two 16-bit numbers, left in the low half (PTX names it last)
    pair_of = ptx.cvt_rn_bf16x2_f32 if config.result == "bfloat16" else ptx.cvt_rn_f16x2_f32

    Sizes = lang.record("Sizes", "m n k")

    # of D: first row and first column of the block's tile
    Tile = lang.record("Tile", "row column")

    # of D: row and column of a lane's first sum, of product 0
    LaneCorner = lang.record("LaneCorner", "row column")

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
        """One thread. x is innermost, along k: in bytes for A and B, in 8 bytes for scales, so 64
        to a tile of scales; y is in rows, for scales in tiles of 128 rows. (``_cta`` names this
        block's shared memory, .shared::cta. With the usual .shared::cluster ptxas for sm_120 adds
        a check at run time, a call.)"""
        barriers = shared + cfg.barriers_shared
        place, step = ring.producer_start(), 0
        while step < steps:
            ring.wait_empty(barriers, place)
            ring.expect(barriers, place, cfg.stage_bytes)
            stage, full = shared + place.stage * cfg.stage_bytes, ring.full(barriers, place)
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
        lanes 8 x .. 8 x + 7 name the rows of matrix x, register x of the result, each its row in
        the stage and which 16 bytes of it. (``codes`` is a multiple of 1024, so the swizzle's row
        % 8 is that of the row in the stage.)"""
        return ptx.ldmatrix_x4(codes + row * STAGE_ROW + ((chunk ^ (row & 7)) << 4))

    def products_from(first, count, byte):
        """-> device function (sums of products number first to first + count - 1, operands) ->
        sums. Product N8_TILES * i + j is of m16 tile i and n8 tile j. By halves down to one, since
        a tuple can only be cut by constants (``language.tuples``), and since an array of sums might
        leave the registers: libnvvm of CUDA 13.0 leaves some loops around loops rolled for sm_120
        (``compiler.language``, Constants)."""
        if count > 1:
            half = count // 2
            low_sums = PRODUCT_SUMS * half  # of the first half of the products
            low, high = (
                products_from(first, half, byte),
                products_from(first + half, count - half, byte),
            )

            @lang.device
            def both(sums, operands):
                return low(sums[:low_sums], operands) + high(sums[low_sums:], operands)

            return both
        i, j = divmod(first, N8_TILES)  # the only product left
        lanes = {"thread_a": i, "thread_b": j % 4}  # that have the scales
        multiply_one = (
            ptx.mma_m16n8k64_f32_mxf4nvf4_4x(**lanes)
            if config.format == "nvfp4"
            else ptx.mma_m16n8k64_f32_mxf4_2x(byte=byte, **lanes)
        )
        a_start, a_stop, b_start, b_stop, word = 4 * i, 4 * i + 4, 2 * j, 2 * j + 2, j // 4

        @lang.device
        def one(sums, operands):
            # (A, B, C, scales of A, scales of B) -> D
            return multiply_one(
                operands.a[a_start:a_stop],
                operands.b[b_start:b_stop],
                sums,
                operands.sfa,
                operands.sfb[word],
            )

        return one

    def k64_step(byte):
        """-> device function of a k64 step whose scales begin with that byte of their words (for
        mxfp4; with nvfp4 a product takes the whole word, and ``byte`` is not used)."""
        multiply_all = products_from(0, PRODUCTS, byte)

        @lang.device
        def multiply_step(sums, stage, q, thread):
            """Number q of the stage, 0 to 3: all fragments and scales, then 16 products."""
            lane = thread.lane
            # matrices: rows 0 to 7 and 8 to 15 of the first 32 k, then of the other 32, which are
            # a[4 i] to a[4 i + 3]; the second fetch is i = 1
            a_row = thread.warp_m * WARP_ROWS + lane % 16
            a_chunk = lane // 16 + 2 * q
            a = fetch(stage, a_row, a_chunk) + fetch(stage, a_row + 16, a_chunk)
            # matrices: rows 0 to 7 of B, first and other 32 of k, then rows 8 to 15: b[2 j] to
            # b[2 j + 3], of two n8 tiles. A row of B is a column of D.
            b_row = thread.warp_n * WARP_COLUMNS + lane // 16 * 8 + lane % 8
            b_chunk = lane // 8 % 2 + 2 * q
            b_codes = stage + cfg.b_shared
            b = (
                fetch(b_codes, b_row, b_chunk)
                + fetch(b_codes, b_row + 16, b_chunk)
                + fetch(b_codes, b_row + 32, b_chunk)
                + fetch(b_codes, b_row + 48, b_chunk)
            )
            # Scales are u8 [tile along k][row % 32][row // 32][TILE_BLOCKS]. Of the lane's rows
            # row % 32 is 8 t + g; row // 32 is warp_m, and for B 2 warp_n and 2 warp_n + 1, two
            # words side by side.
            g, t = lane // 4, lane % 4
            scale_tile = q * cfg.k64_scales // TILE_BLOCKS  # q for nvfp4, q // 2 for mxfp4
            scales = stage + scale_tile * TILE_BYTES + (t * 8 + g) * LANE_BYTES
            sfa = ptx.ld_shared_b32(scales + cfg.sfa_shared + thread.warp_m * TILE_BLOCKS)
            sfb = ptx.ld_shared_v2_b32(scales + cfg.sfb_shared + thread.warp_n * (2 * TILE_BLOCKS))
            return multiply_all(sums, Operands(a, b, sfa, sfb))

        return multiply_step

    # of k64 steps 0 and 2 of a stage, and of 1 and 3
    multiply_even = k64_step(0)
    # mxfp4: of a word, even k64 steps take bytes 0 and 1, odd ones bytes 2 and 3
    multiply_odd = multiply_even if config.format == "nvfp4" else k64_step(2)

    @lang.device
    def multiply_stages(shared, steps, thread):
        barriers = shared + cfg.barriers_shared
        place, sums, step = ring.consumer_start(), zeros(), 0
        while step < steps:
            ring.wait_full(barriers, place)
            stage = shared + place.stage * cfg.stage_bytes
            for half in range(K64_STEPS // 2):
                sums = multiply_even(sums, stage, 2 * half, thread)
                sums = multiply_odd(sums, stage, 2 * half + 1, thread)
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
            low_sums = PRODUCT_SUMS * half
            low, high = stores_from(first, half), stores_from(first + half, count - half)

            @lang.device
            def both(sums, output, corner, sizes):
                low(sums[:low_sums], output, corner, sizes)
                high(sums[low_sums:], output, corner, sizes)

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
        """Along m first: see the docstring. ``config.grid`` has no more blocks than tiles."""
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
            corner = LaneCorner(
                tile.row + thread.warp_m * WARP_ROWS + lane // 4,
                tile.column + thread.warp_n * WARP_COLUMNS + lane % 4 * 2,
            )
            store(sums, Output(d, ptx.ld_global_f32(alpha)), corner, sizes)

    return kernel


def tensor_maps(config, m, n, k, a_stride):
    """A and B in boxes of a tile's rows by 128 bytes, in the 128-byte swizzle; scales in boxes of a
    stage's tiles (``layout.block_scales.tensor_map``: in tiles, rows by k). ``a_stride``: unused,
    for kernels whose A may be a slice."""

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

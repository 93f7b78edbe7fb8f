"""Rung 2: shared memory and tensor cores. A block of four warps makes a 16 x 64 tile of C, one k
step of 64 at a time.

The one new idea: the packed word *is* a tensor-core fragment. A lane loads its four words from
shared memory, spreads each into the B operand of two ``mma.m16n8k16`` (16 columns), and never looks
up where a weight belongs. Loading and multiplying take turns (two barriers a step); hiding one
behind the other is the next rung. Rows of A are padded by 16 bytes, which makes the eight rows that
a phase of ``ldmatrix`` reads start in eight different groups of banks.

Parameters and shapes as in ``naive``. Group scales multiply the fp16 weights (one fp16 rounding), a
per-column scale the fp32 sum.
"""

from dataclasses import dataclass

from numba_marlin.kernels.dequantize.verbs import number_verbs
from numba_marlin.kernels.language.about import About, Trial
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.language.definition import KernelDefinition, Takes, ceil_div

THREADS = 128
TILE_M, TILE_N, TILE_K = 16, 64, 64
A_ROW_BYTES = TILE_K * 2 + 16  # padded
A_BYTES = TILE_M * A_ROW_BYTES
B_ROW_BYTES = TILE_N * 16 // 2  # one row of 16 k x 64 n: 512 bytes
B_BYTES = TILE_K // 16 * B_ROW_BYTES


@dataclass(frozen=True)
class TiledConfig:
    """group_size: weights along k that share a scale, a multiple of 16; -1 for one scale a
    column."""

    group_size: int = 128

    def __post_init__(self):
        if self.group_size != -1 and (self.group_size < 16 or self.group_size % 16):
            raise ValueError(
                f"group_size={self.group_size} must be -1 or a positive multiple of 16"
            )


def make(lang, config):
    cuda, ptx = lang.cuda, lang.ptx
    uint32, uint64, float32 = lang.uint32, lang.uint64, lang.float32
    verbs = number_verbs(lang)
    dequantize, scale_pair = verbs.dequantize, verbs.scale_pair
    grouped = config.group_size != -1
    group_rows = config.group_size // 16 if grouped else 1

    @lang.device
    def load_tile(a, b, a_shared, b_shared, thread, row_first, col_first, k_first, m, n, k):
        """Global to shared: a thread moves 16 bytes of A (zeros outside the matrix) and 16 bytes of
        B."""
        row, chunk = thread // uint32(8), thread % uint32(8)
        k_here = k_first + uint32(8) * chunk
        values = (uint32(0), uint32(0), uint32(0), uint32(0))
        if row_first + row < m and k_here < k:
            values = ptx.ld_global_v4_b32(
                a + (uint64(row_first + row) * uint64(k) + uint64(k_here)) * uint64(2)
            )
        ptx.st_shared_v4_b32(a_shared + row * uint32(A_ROW_BYTES) + chunk * uint32(16), values)
        k_row, word = thread // uint32(32), thread % uint32(32) * uint32(4)
        if k_first + uint32(16) * k_row < k:
            index = uint64(k_first // uint32(16) + k_row) * uint64(uint32(2) * n) + uint64(
                uint32(2) * col_first + word
            )
            ptx.st_shared_v4_b32(
                b_shared + thread * uint32(16), ptx.ld_global_v4_b32(b + index * uint64(4))
            )

    @lang.device
    def multiply_row(frag_c, a_shared, b_shared, k_row, warp, lane, scale):
        """16 rows of k: this warp's 16 columns are the B operands of two tensor-core
        instructions."""
        frag_a = ptx.ldmatrix_x4(
            a_shared
            + lane % uint32(16) * uint32(A_ROW_BYTES)
            + k_row * uint32(32)
            + lane // uint32(16) * uint32(16)
        )
        word = ptx.ld_shared_b32(
            b_shared + k_row * uint32(B_ROW_BYTES) + lane * uint32(16) + warp * uint32(4)
        )
        for half in range(2):
            frag_b = dequantize(word >> uint32(8 * half))
            if grouped:
                frag_b = scale_pair(
                    frag_b, ptx.both_low_f16x2(scale) if half == 0 else ptx.both_high_f16x2(scale)
                )
            o = 4 * half
            d = ptx.mma_m16n8k16_f32_f16(
                frag_a, frag_b, (frag_c[o], frag_c[o + 1], frag_c[o + 2], frag_c[o + 3])
            )
            for r in range(4):
                frag_c[o + r] = d[r]

    @lang.device
    def write_result(c, frag_c, scales, row_first, col_first, warp, lane, m, n):
        """Straight from the fragments: lane 4g + t holds columns 2t, 2t + 1 of rows g and g + 8 of
        each 16 x 8 half."""
        for half in range(2):
            col_half = uint32(16) * warp + uint32(8 * half)
            col = col_first + col_half + lane % uint32(4) * uint32(2)
            scale_low = float32(1)
            scale_high = float32(1)
            # Marlin's order inside 32 columns: lane t finds its pairs of the four n8 halves side by
            # side
            if not grouped:
                index = (
                    col_first
                    + col_half // uint32(32) * uint32(32)
                    + lane % uint32(4) * uint32(8)
                    + col_half // uint32(8) % uint32(4) * uint32(2)
                )
                pair = ptx.ld_global_b32(scales + uint64(index) * uint64(2))
                scale_low = ptx.cvt_f32_f16_low(pair)
                scale_high = ptx.cvt_f32_f16_high(pair)
            for below in range(2):
                row = row_first + lane // uint32(4) + uint32(8 * below)
                if row < m:
                    o = 4 * half + 2 * below
                    value = ptx.cvt_rn_f16x2_f32(frag_c[o] * scale_low, frag_c[o + 1] * scale_high)
                    ptx.st_global_b32(
                        c + (uint64(row) * uint64(n) + uint64(col)) * uint64(2), value
                    )

    def tiled(a, b, c, scales, m, n, k):
        a_shared = lang_shared_base()
        b_shared = a_shared + uint32(A_BYTES)
        thread = uint32(cuda.threadIdx.x)
        warp, lane = thread // uint32(32), thread % uint32(32)
        col_first = uint32(cuda.blockIdx.x) * uint32(TILE_N)
        row_first = uint32(cuda.blockIdx.y) * uint32(TILE_M)
        rows, width, depth = uint32(m), uint32(n), uint32(k)
        frag_c = cuda.local.array(8, float32)
        for i in range(8):
            frag_c[i] = float32(0)
        scale = uint32(0)
        k_first = uint32(0)
        while k_first < depth:
            load_tile(
                a, b, a_shared, b_shared, thread, row_first, col_first, k_first, rows, width, depth
            )
            cuda.syncthreads()
            for k_row in range(TILE_K // 16):
                k_here = k_first + uint32(16 * k_row)
                if k_here < depth:
                    # lane 4g + t needs the scales of columns g and g + 8: side by side in Marlin's
                    # order
                    if grouped:
                        index = uint64(k_here // uint32(16 * group_rows)) * uint64(width) + uint64(
                            col_first + lane // uint32(4) * uint32(8) + warp * uint32(2)
                        )
                        scale = ptx.ld_global_b32(scales + index * uint64(2))
                    multiply_row(frag_c, a_shared, b_shared, uint32(k_row), warp, lane, scale)
            cuda.syncthreads()
            k_first += uint32(TILE_K)
        write_result(c, frag_c, scales, row_first, col_first, warp, lane, rows, width)

    lang_shared_base = lang.shared_base
    return tiled


KERNEL = KernelDefinition(
    name="tiled",
    summary="shared memory and mma.sync, no pipeline",
    rung=20,
    config_type=TiledConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
        ("c", "u64"),
        ("scales", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: A_BYTES + B_BYTES,
    grid=lambda config, m, n, k, sms: (n // TILE_N, ceil_div(m, TILE_M), 1),
    min_arch="sm_80",
    takes=Takes(group_sizes=None),
    order_of_sums=lambda config: "one k16 row after the other",
    chooser=ChooseTypes(
        TiledConfig, "tensor cores and shared memory, no pipeline: the rung below, to compare with"
    ),
    about=About(
        sections={
            "copy": ("load_tile",),
            "multiply": ("multiply_row",),
            "write": ("write_result",),
        },
        trials=(Trial(config=TiledConfig(64), sizes=(20, 128, 128), group_size=64, places=(1, 2)),),
    ),
)

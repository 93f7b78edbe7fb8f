"""The sizes of ``decode``: what can be chosen, and what follows from it. Where things lie in shared
memory, and in how many bytes: ``shared``. Pure."""

from dataclasses import dataclass

from numba_marlin.kernels.decode.shared import WARP_VECTOR_BYTES, ZERO_BYTES, SharedMemory
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div, check_codes

COLUMNS = 64  # of C, to a consumer warp: the width of a block of Marlin's layout
# Rows of a tile of C. 32 rows are 64 accumulators per lane and 64 more of a group; with some types
# they spill already (``choose``).
BATCHES = (8, 16, 24, 32)


@dataclass(frozen=True)
class DecodeConfig(SharedMemory):
    """What can be chosen; the properties follow from it."""

    #: rows of a tile of C, padded: 8, 16, 24 or 32; more rows of x (m) are more tiles
    batch: int = 8
    #: consumer warps side by side along n, with 64 columns each
    warps_n: int = 4
    #: consumer warps that share columns and divide the k of a stage among them
    warps_k: int = 2
    #: depth of a stage along k
    stage_k: int = 128
    #: stages of the ring in shared memory: 2 or more, as many as fit (``shared_limit``), in no
    #: relation to anything else
    stages: int = 5
    #: size of a group in k16 rows (a group: weights of one column that share a scale): 2, 4, 8 or
    #: 16, with FP4 1 or 2; or -1, one scale per column. ``check_codes`` refuses others. (Marlin's
    #: word, which all kernels have; no other "block" is 16 of k.)
    group_blocks: int = 8
    #: k need not fill whole stages, nor n whole tiles
    ragged: bool = False
    #: blocks of a launch per SM
    blocks_per_sm: int = 1
    #: blocks that an SM must have room for, which bounds shared memory (``shared_limit``) and
    #: registers (launch bounds: 65536 // (threads * resident) per thread, in steps of 8). More than
    #: ``blocks_per_sm`` if blocks of the next launch are to copy weights while this one ends
    resident: int = 2
    #: stripes are whole tiles, so that blocks share none: no stream-K, no workspace
    whole: bool = False
    #: of a, c and bias: "float16" or "bfloat16"
    dtype: str = "float16"
    #: of scales: "float16" or "bfloat16"; "e5m3" with FP4
    scale_dtype: str = "float16"
    #: a bias is added at the end
    bias: bool = False
    #: of a code: 4 or 8
    bits: int = 4
    #: zero points: None (codes are symmetric), "integer" (packed like codes) or "float16"
    zeros: str | None = None
    #: "integer", or "e2m1" for block-scaled FP4 of groups of 16 or 32 (``formats.fp4_marlin``)
    codes: str = "integer"

    def __post_init__(self):
        if self.batch not in BATCHES:
            raise ValueError(f"batch={self.batch} must be one of {BATCHES}")
        if self.warps_n not in (1, 2, 4, 8, 16):
            raise ValueError(f"warps_n={self.warps_n} must be 1, 2, 4, 8 or 16")
        if self.warps_k not in (1, 2, 4, 8):
            raise ValueError(f"warps_k={self.warps_k} must be 1, 2, 4 or 8")
        # Only warps_k > 1 needs named barriers (``output``), one for each of then at most 8 warp_n
        if self.consumers > 16:
            raise ValueError(f"warps_n * warps_k={self.consumers} must be at most 16")
        if self.stage_k not in (64, 128, 256, 512):
            raise ValueError(f"stage_k={self.stage_k} must be 64, 128, 256 or 512")
        if self.rows_per_warp < 2:
            raise ValueError(
                f"stage_k={self.stage_k} must be at least {32 * self.warps_k}:"
                f" warps_k={self.warps_k}, and a warp loads activations 32 deep"
            )
        if self.stages < 2:
            raise ValueError(
                f"stages={self.stages} must be at least 2: with one nothing is copied while it is"
                " multiplied"
            )
        check_codes(self)
        if not 1 <= self.blocks_per_sm <= self.resident <= 4:
            raise ValueError(
                f"blocks_per_sm={self.blocks_per_sm} must be 1 to resident={self.resident}, and"
                " that at most 4"
            )
        scale_types = ("e5m3",) if self.block_scaled else ("float16", "bfloat16")
        for name, allowed in (
            ("dtype", ("float16", "bfloat16")),
            ("scale_dtype", scale_types),
            ("bits", (4, 8)),
            ("zeros", tuple(ZERO_BYTES)),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {allowed}")
        if self.shared_bytes > self.shared_limit:
            raise TooMuchSharedMemory(
                f"{self} needs {self.shared_bytes} bytes of shared memory, must be at most"
                f" {self.shared_limit}"
            )

    # ---- warps and tiles ----

    @property
    def consumers(self):
        """Consumer warps."""
        return self.warps_n * self.warps_k

    @property
    def threads(self):
        """Of a block: the consumer warps, and one producer warp."""
        return 32 * (self.consumers + 1)

    @property
    def columns(self):
        """Of a tile of C."""
        return COLUMNS * self.warps_n

    @property
    def n8_blocks(self):
        """n8 blocks of a tile: its rows in steps of 8, the n of the transposed product."""
        return self.batch // 8

    @property
    def stage_rows(self):
        """k16 rows of a stage."""
        return self.stage_k // 16

    @property
    def rows_per_warp(self):
        """k16 rows of a stage that a warp multiplies."""
        return self.stage_rows // self.warps_k

    # ---- scales and zero points ----

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def block_scaled(self):
        return self.codes == "e2m1"

    @property
    def has_column_factors(self):
        """Whether the epilogue multiplies columns by a factor each: per-column scales, or FP4's
        factors."""
        return self.block_scaled or not self.grouped

    @property
    def promoted(self):
        """Whether a group has accumulators of its own, which are worked on before they are added
        to those of the tile: scaled, or rid of zero points."""
        return self.grouped and not self.block_scaled or self.zeros == "float16"

    @property
    def k16_rows_per_scale_row(self):
        """k16 rows per row of scales: those of a group (-1 with per-column scales, where nobody
        divides by it). FP4's scales lie in rows for 32 of k, whatever the group size."""
        return 2 if self.block_scaled else self.group_blocks

    @property
    def k16_rows_per_sum(self):
        """k16 rows whose products a warp adds up before it promotes them: those of a group, or of
        its part of a stage. (Used where ``promoted``, and for groups of zero points.)"""
        if not self.grouped:
            return self.rows_per_warp
        return min(self.rows_per_warp, self.k16_rows_per_scale_row)

    @property
    def order_of_sums(self):
        """Key of the order in which products are added up: configurations with equal keys give a
        row of C the same bits, whatever m and the grid (``KernelDefinition.order_of_sums``, which
        the batch-invariant mode asks). None where there is no such key: where blocks share a tile
        the order depends on where stripes cut it, so on m, n and the grid."""
        return (
            f"whole tiles, warps_k={self.warps_k}, stage_k={self.stage_k}" if self.whole else None
        )

    # ---- registers of a lane, in the main loop ----

    @property
    def product_dtype(self):
        """Of weights and x as they are multiplied."""
        return self.dtype

    @property
    def accumulators(self):
        """[16-column block][n8 block][4]."""
        return 16 * self.n8_blocks

    @property
    def two_pairs(self):
        """Whether a warp has registers for two pairs of k16 rows, one of which is fetched while the
        other multiplies; if not, for a single k16 row."""
        return self.batch <= 16

    @property
    def pairs(self):
        """Pairs of k16 rows of a stage that a warp multiplies."""
        return self.rows_per_warp // 2

    @property
    def pairs_per_sum(self):
        """``k16_rows_per_sum`` in pairs."""
        return max(1, self.k16_rows_per_sum // 2)

    @property
    def row_words(self):
        """A lane's words of packed weights of a k16 row: 16 x 64 codes of ``bits`` bits are 32
        bits words, ``bits`` for each of 32 lanes."""
        return self.bits

    @property
    def weight_words(self):
        """[slot][row_words]; a slot is the registers of a k16 row; there are four, or one."""
        return (4 if self.two_pairs else 1) * self.row_words

    @property
    def x_words_per_n8(self):
        """Words of x for each n8 block: two for each slot."""
        return 8 if self.two_pairs else 2

    @property
    def x_words(self):
        """[n8 block][slot][2]."""
        return self.x_words_per_n8 * self.n8_blocks

    # ---- registers of a lane, in the epilogue ----

    @property
    def owners(self):
        """Warps of the same columns that finish them: they share out the four 16-column blocks that
        64 columns are, so 4 at most; the warps from warp_k = owners on finish none."""
        return min(4, self.warps_k)

    @property
    def own_column_blocks(self):
        """16-column blocks that a warp finishes."""
        return 4 // self.owners

    @property
    def vectors(self):
        """Vectors of four accumulators that a lane finishes: [16-column block][n8 block]."""
        return self.own_column_blocks * self.n8_blocks

    @property
    def own_floats(self):
        return 4 * self.vectors

    @property
    def own_bytes(self):
        """Of the accumulators that a warp finishes."""
        return self.vectors * WARP_VECTOR_BYTES

    # ---- global memory: bytes ----

    @property
    def weight_column_bytes(self):
        """Of one column of a k16 row of packed weights, 16 weights: 8 or 16."""
        return self.warp_row_bytes // COLUMNS

    @property
    def scale_column_bytes(self):
        """Of one column of a row of scales."""
        return self.scale_bytes // COLUMNS

    # ---- launch ----

    def steps(self, m, n, k):
        """Steps of a launch (``schedule``): those of all tiles, which the blocks share."""
        return ceil_div(k, self.stage_k) * ceil_div(n, self.columns) * ceil_div(m, self.batch)

    def grid(self, m, n, k, sms):
        """(blocks, 1, 1) for a device of that many SMs."""
        steps = self.steps(m, n, k)
        blocks = min(
            sms * self.blocks_per_sm, steps // ceil_div(k, self.stage_k) if self.whole else steps
        )
        # numbers of steps are 32 bits in the kernel and go up to ``steps``: a little to spare
        if steps + blocks > 2**32:
            raise ValueError(
                f"m={m}, n={n}, k={k} are {steps} steps for {blocks} blocks, must be 2**32 at most"
                " together: the kernel counts in 32 bits"
            )
        return (blocks, 1, 1)

    @property
    def partial_bytes(self):
        """Of the partial results of one tile, which a block may leave: those of its owners, which
        are the first warps_n * owners warps, and have own_bytes each."""
        return self.batch * self.columns * 4

    def workspace_bytes(self, m, n, k, sms):
        """(bytes of partial results, bytes of locks). A block leaves partial results of two tiles
        at most, the one its stripe begins in and the one it ends in. A lock for each consumer warp,
        of which only owners' are used: each counts for itself (``output.count_in``)."""
        blocks = self.grid(m, n, k, sms)[0]
        return 2 * blocks * self.partial_bytes, blocks * self.consumers * 4

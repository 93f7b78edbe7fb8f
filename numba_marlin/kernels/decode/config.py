"""The sizes of ``decode``: what can be chosen, what follows from it, and where things lie in shared
memory. Pure.

Shared memory, in bytes. It holds the ring of stages, behind it what warps of the same columns tell
each other in the epilogue, and last the two mbarriers of every stage::

    0                                        exchange_at               barriers_at    shared_bytes
    | stage 0 | stage 1 | ... | stages - 1   | accumulators: [warps_n] | [stages]     |
    |         |         |     |              | [owners][warps_k - 1]   | full, empty  |
    |         |         |     |              | [vectors][lane][4] fp32 | 8 bytes each |

A stage holds stage_k rows of W for the columns of a tile, with what dequantises them, and the same
stage_k columns of x for the rows of a tile::

    0                     scales_at              zeros_at             x_at        stage_bytes
    | packed weights      | scales               | zero points        | x         | gap |
    | [stage_rows]        | [scale_rows]         | [zero_rows]        | [batch]   | to  |
    | [warps_n][row_bytes]| [warps_n][scale_bytes] [warps_n][zero_bytes] [x_pitch] | 128 |

Scales of FP4 lie as [warps_n][scale_rows][scale_bytes]. A row of x is followed by 16 bytes of
nothing, which shift each row by four banks: the eight rows that a phase of ``ldmatrix`` reads then
touch every bank once.
"""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div, check_codes
from numba_marlin.kernels.language.pipeline import barrier_bytes

COLUMNS = 64  # of C, to a consumer warp: the width of a Marlin block
SCALE_BYTES = 128  # bytes of the scales of one group for 64 columns
BLOCK_SCALE_BYTES = {1: 128, 2: 64}  # of FP4's for 64 columns and 32 of k; key: ``group_blocks``
# bytes of the zero points of one group for 64 columns; of "integer", for each bit of a code
ZERO_BYTES = {None: 0, "integer": 8, "float16": 128}
VECTOR_BYTES = 512  # four fp32 accumulators of each lane of a warp
X_PADDING = 16  # bytes between rows of x in shared memory
ALIGNMENT = 128  # of a stage
BATCHES = (8, 16, 24, 32)  # more take more registers than there are


@dataclass(frozen=True)
class DecodeConfig:
    """What can be chosen; the properties follow from it."""

    #: rows of a tile of C: 8, 16, 24 or 32
    batch: int = 8
    #: consumer warps side by side along n, with 64 columns each
    warps_n: int = 4
    #: consumer warps that share columns and divide the k of a stage among them
    warps_k: int = 2
    #: depth of a stage along k: what a step of the main loop multiplies
    stage_k: int = 128
    #: stages of the ring in shared memory, 2 or more
    stages: int = 5
    #: k16 rows that share a scale; -1: one scale per column
    group_blocks: int = 8
    #: k need not fill whole stages, nor n whole tiles
    ragged: bool = False
    #: blocks of a launch per SM
    blocks_per_sm: int = 1
    #: blocks that an SM must have room for; more than ``blocks_per_sm`` if those of the next launch
    #: are to copy weights meanwhile
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
                f"stages={self.stages} must be at least 2: one is used while another fills"
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
    def batch_blocks(self):
        """n8 blocks of the transposed product: x in steps of 8 rows."""
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
    def column_factors(self):
        """Whether the accumulators of a column are multiplied by something of the column's."""
        return self.block_scaled or not self.grouped

    @property
    def promoted(self):
        """Whether a group has accumulators of its own, which are worked on before they are added
        to those of the tile: scaled, or rid of zero points."""
        return self.grouped and not self.block_scaled or self.zeros == "float16"

    @property
    def scale_blocks(self):
        """k16 rows per row of scales. FP4's scales lie in rows for 32 of k, whatever the block."""
        return 2 if self.block_scaled else self.group_blocks

    @property
    def rows_per_scale(self):
        """k16 rows that a warp multiplies before it scales their sum."""
        return min(self.rows_per_warp, self.scale_blocks) if self.grouped else self.rows_per_warp

    @property
    def order_of_sums(self):
        """Which k16 rows each warp adds up; where blocks share a tile that depends on where it is
        cut, so on all tiles there are."""
        return (
            f"whole tiles, warps_k={self.warps_k}, stage_k={self.stage_k}" if self.whole else None
        )

    # ---- shared memory: a stage ----

    @property
    def row_bytes(self):
        """Of packed weights: 16 of k times 64 columns, 16 or 32 bytes per lane."""
        return 128 * self.bits

    @property
    def weight_row_bytes(self):
        """From a k16 row of a stage to the next."""
        return self.warps_n * self.row_bytes

    @property
    def scale_bytes(self):
        """Of a row of scales for 64 columns."""
        return BLOCK_SCALE_BYTES[self.group_blocks] if self.block_scaled else SCALE_BYTES

    @property
    def scale_rows(self):
        """Rows of scales of a stage; a stage that ends within a group has its scales all the
        same."""
        return max(1, self.stage_rows // self.scale_blocks) if self.grouped else 0

    @property
    def scale_row_bytes(self):
        """From a row of scales to the next: FP4's of 64 columns lie one behind the other."""
        return self.scale_bytes if self.block_scaled else self.warps_n * self.scale_bytes

    @property
    def scale_warp_bytes(self):
        """From the scales of 64 columns to those of the next."""
        return self.scale_rows * self.scale_bytes if self.block_scaled else self.scale_bytes

    @property
    def zero_bytes(self):
        """Of a group's zero points for 64 columns."""
        return ZERO_BYTES[self.zeros] * (self.bits if self.zeros == "integer" else 1)

    @property
    def zero_rows(self):
        """Groups whose zero points a stage has: those of columns too, as products cannot wait for
        them."""
        return max(1, self.scale_rows) if self.zeros else 0

    @property
    def zero_row_bytes(self):
        """From a row of zero points to the next."""
        return self.warps_n * self.zero_bytes

    @property
    def x_pitch(self):
        """From a row of x to the next."""
        return 2 * self.stage_k + X_PADDING

    @property
    def scales_at(self):
        """Where the scales begin in a stage: behind the weights."""
        return self.stage_rows * self.weight_row_bytes

    @property
    def zeros_at(self):
        """Where the zero points begin in a stage."""
        return self.scales_at + self.scale_rows * self.warps_n * self.scale_bytes

    @property
    def x_at(self):
        """Where the activations begin in a stage."""
        return self.zeros_at + self.zero_rows * self.zero_row_bytes

    @property
    def stage_bytes(self):
        return ALIGNMENT * ceil_div(self.x_at + self.batch * self.x_pitch, ALIGNMENT)

    # ---- shared memory: a block ----

    @property
    def exchange_at(self):
        """Where warps of the same columns tell each other their accumulators."""
        return self.stages * self.stage_bytes

    @property
    def exchange_bytes(self):
        return self.warps_n * self.owners * (self.warps_k - 1) * self.own_bytes

    @property
    def barriers_at(self):
        """Where the two mbarriers of every stage begin."""
        return self.exchange_at + self.exchange_bytes

    @property
    def shared_bytes(self):
        return self.barriers_at + barrier_bytes(self.stages)

    @property
    def shared_limit(self):
        """Shared memory that a block may have on Hopper if ``resident`` blocks fit on an SM."""
        return HOPPER.shared_bytes_per_sm // self.resident - SYSTEM_SHARED_BYTES

    # ---- registers of a lane, in the main loop ----

    @property
    def accumulators(self):
        """[16-column block][n8 block][4]."""
        return 16 * self.batch_blocks

    @property
    def two_pairs(self):
        """Whether a warp holds two pairs of k16 rows, one on its way while the other multiplies, or
        a single row."""
        return self.batch <= 16

    @property
    def pairs(self):
        """Pairs of k16 rows of a stage that a warp multiplies."""
        return self.rows_per_warp // 2

    @property
    def pairs_per_scale(self):
        return max(1, self.rows_per_scale // 2)

    @property
    def row_words(self):
        """Words of packed weights of a k16 row."""
        return self.bits

    @property
    def weight_words(self):
        """[k16 row that the warp holds][row_words]."""
        return (4 if self.two_pairs else 1) * self.row_words

    @property
    def x_row_words(self):
        """Words of x for each n8 block: two of each k16 row that the warp holds."""
        return 8 if self.two_pairs else 2

    @property
    def x_words(self):
        """[n8 block][k16 row that the warp holds][2]."""
        return self.x_row_words * self.batch_blocks

    # ---- registers of a lane, in the epilogue ----

    @property
    def owners(self):
        """Warps of the same columns that finish them: they share out four 16-column blocks."""
        return min(4, self.warps_k)

    @property
    def own_blocks(self):
        """16-column blocks that a warp finishes."""
        return 4 // self.owners

    @property
    def vectors(self):
        """Vectors of four accumulators that a lane finishes: [16-column block][n8 block]."""
        return self.own_blocks * self.batch_blocks

    @property
    def own_floats(self):
        return 4 * self.vectors

    @property
    def own_bytes(self):
        """Of the accumulators that a warp finishes."""
        return self.vectors * VECTOR_BYTES

    # ---- global memory: bytes of a column ----

    @property
    def weight_column_bytes(self):
        """Of 16 rows of packed weights."""
        return self.row_bytes // COLUMNS

    @property
    def scale_column_bytes(self):
        return self.scale_bytes // COLUMNS

    # ---- launch ----

    def steps(self, m, n, k):
        """Stages of all tiles together: what the grid shares out."""
        return ceil_div(k, self.stage_k) * ceil_div(n, self.columns) * ceil_div(m, self.batch)

    def grid(self, m, n, k, sms):
        """(blocks, 1, 1) for a device of that many SMs."""
        steps = self.steps(m, n, k)
        blocks = min(
            sms * self.blocks_per_sm, steps // ceil_div(k, self.stage_k) if self.whole else steps
        )
        if steps + blocks > 2**32:
            raise ValueError(
                f"m={m}, n={n}, k={k} are {steps} stages for {blocks} blocks, must be 2**32 at most"
                " together: the kernel counts in 32 bits"
            )
        return (blocks, 1, 1)

    @property
    def partial_bytes(self):
        """What a block may leave of one tile."""
        return self.batch * self.columns * 4

    def workspace_bytes(self, m, n, k, sms):
        """(bytes of partial results, bytes of locks). A block leaves partial results of two tiles
        at most, the one its stripe begins in and the one it ends in; each warp of a shared tile
        counts for itself."""
        blocks = self.grid(m, n, k, sms)[0]
        return 2 * blocks * self.partial_bytes, blocks * self.consumers * 4

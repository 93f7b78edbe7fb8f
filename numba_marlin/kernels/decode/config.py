"""The sizes of the decode kernel (``decode``): what can be chosen, and what follows from it.
Pure."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div, check_codes
from numba_marlin.kernels.language.pipeline import barrier_bytes

COLUMNS = 64  # of C, to a consumer warp: the width of a Marlin block
SCALE_BYTES = 128  # of a group's scales for 64 columns
BLOCK_SCALE_BYTES = {1: 128, 2: 64}  # of FP4's for 64 columns and 32 rows, by k16 rows of a block
# of its zero points; integers: for each bit of a code
ZERO_BYTES = {None: 0, "integer": 8, "float16": 128}
VECTOR_BYTES = 512  # four fp32 accumulators of each lane of a warp
# bytes that shift each row of activations by four banks: ldmatrix then touches every bank once
X_PADDING = 16
ALIGNMENT = 128  # of a stage
BATCHES = (8, 16, 24, 32)  # more take more registers than there are


@dataclass(frozen=True)
class DecodeConfig:
    """batch: rows of C in a tile; warps_n x warps_k consumer warps, each with 64 columns and its
    part of a stage's k; stage_k: k of a stage; stages: in the ring; group_blocks: k16 rows that
    share a scale, -1 for per-column scales; ragged: k may leave a stage and n a tile unfilled;
    blocks_per_sm: blocks of a launch on a multiprocessor; resident: blocks that it must have place
    for, more than that if those of the next launch are to copy weights meanwhile; whole: blocks
    share no tile; dtype: of a, c and bias; scale_dtype: of scales; bias: added at the end; bits: of
    a code; zeros: None, "integer" (packed like codes) or "float16"; codes: "integer", or "e2m1" for
    block-scaled FP4, of groups of 16 or 32 (``formats.fp4_marlin``), whose scale_dtype is
    "e5m3"."""

    batch: int = 8
    warps_n: int = 4
    warps_k: int = 2
    stage_k: int = 128
    stages: int = 5
    group_blocks: int = 8
    ragged: bool = False
    blocks_per_sm: int = 1
    resident: int = 2
    whole: bool = False
    dtype: str = "float16"
    scale_dtype: str = "float16"
    bias: bool = False
    bits: int = 4
    zeros: str | None = None
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

    @property
    def consumers(self):
        return self.warps_n * self.warps_k

    @property
    def threads(self):
        return 32 * (self.consumers + 1)

    @property
    def columns(self):
        return COLUMNS * self.warps_n

    @property
    def batch_blocks(self):
        """n8 steps of the transposed product."""
        return self.batch // 8

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def block_scaled(self):
        return self.codes == "e2m1"

    @property
    def column_factors(self):
        """Whether the sums of a column are multiplied by something of the column's."""
        return self.block_scaled or not self.grouped

    @property
    def scale_blocks(self):
        """k16 rows to a row of scales."""
        return 2 if self.block_scaled else self.group_blocks

    @property
    def scale_bytes(self):
        """Of a row of scales for 64 columns."""
        return BLOCK_SCALE_BYTES[self.group_blocks] if self.block_scaled else SCALE_BYTES

    @property
    def stage_rows(self):
        """k16 rows of a stage."""
        return self.stage_k // 16

    @property
    def rows_per_warp(self):
        return self.stage_rows // self.warps_k

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

    @property
    def x_pitch(self):
        return 2 * self.stage_k + X_PADDING

    @property
    def x_stage_bytes(self):
        return self.batch * self.x_pitch

    @property
    def row_bytes(self):
        """Of packed weights: 16 of k times 64 columns, 16 or 32 bytes a lane."""
        return 128 * self.bits

    @property
    def weight_row_bytes(self):
        return self.warps_n * self.row_bytes

    @property
    def weight_stage_bytes(self):
        return self.stage_rows * self.weight_row_bytes

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
    def scales_at(self):
        """Where the scales begin in a stage: behind the weights."""
        return self.weight_stage_bytes

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
        return self.warps_n * self.zero_bytes

    @property
    def zeros_at(self):
        """Where the zero points begin in a stage."""
        return self.scales_at + self.scale_rows * self.warps_n * self.scale_bytes

    @property
    def x_at(self):
        """Where the activations begin in a stage."""
        return self.zeros_at + self.zero_rows * self.zero_row_bytes

    @property
    def promoted(self):
        """Whether sums of a few rows are worked on before they are added to the others: scaled, or
        rid of zero points."""
        return self.grouped and not self.block_scaled or self.zeros == "float16"

    @property
    def stage_bytes(self):
        return ALIGNMENT * ceil_div(self.x_at + self.x_stage_bytes, ALIGNMENT)

    @property
    def two_pairs(self):
        """Whether a warp holds two pairs of k16 rows, one on its way while the other multiplies, or
        a single row."""
        return self.batch <= 16

    @property
    def owners(self):
        """Warps of a column that finish its sums: there are four column blocks of 16 to share
        out."""
        return min(4, self.warps_k)

    @property
    def vectors(self):
        """Vectors of four accumulators that a lane is left with once the warps of a column have
        shared out their sums."""
        return 4 // self.owners * self.batch_blocks

    @property
    def exchange_bytes(self):
        return self.warps_n * self.owners * (self.warps_k - 1) * self.vectors * VECTOR_BYTES

    @property
    def shared_bytes(self):
        return self.stages * self.stage_bytes + self.exchange_bytes + barrier_bytes(self.stages)

    @property
    def shared_limit(self):
        """Shared memory that a block may have on Hopper if ``resident`` blocks fit on an SM."""
        return HOPPER.shared_bytes_per_sm // self.resident - SYSTEM_SHARED_BYTES

    def units(self, m, n, k):
        """Stages of all tiles together: what the grid shares out."""
        return ceil_div(k, self.stage_k) * ceil_div(n, self.columns) * ceil_div(m, self.batch)

    def grid(self, m, n, k, sms):
        units = self.units(m, n, k)
        blocks = min(
            sms * self.blocks_per_sm, units // ceil_div(k, self.stage_k) if self.whole else units
        )
        if units + blocks > 2**32:
            raise ValueError(
                f"m={m}, n={n}, k={k} are {units} stages for {blocks} blocks, must be 2**32 at most"
                " together: the kernel counts in 32 bits"
            )
        return (blocks, 1, 1)

    @property
    def partial_bytes(self):
        """What a block may leave of one tile."""
        return self.batch * self.columns * 4

    def workspace_bytes(self, m, n, k, sms):
        """A block leaves partial sums of two tiles at most, the one its stripe begins in and the
        one it ends in; each warp of a shared tile counts for itself."""
        blocks = self.grid(m, n, k, sms)[0]
        return 2 * blocks * self.partial_bytes, blocks * self.consumers * 4

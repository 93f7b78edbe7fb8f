"""The sizes of the Hopper kernel (``wgmma``): what can be chosen, and what follows from it.
Pure."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import BOX_ELEMENTS, SETMAXNREG_STEP, THREAD_REGISTERS
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div, check_codes
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

STAGE_K = 64  # one row of the 128-byte swizzle
STAGE_ROWS = STAGE_K // 16
WARPGROUP = 128
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
SHARED_LIMIT = HOPPER.shared_bytes_per_block
PRODUCER_REGISTERS = 24
SPARE_REGISTERS = 16  # of a consumer's thread, for all but accumulators while parts are added up
PIECE_BYTES = 512  # 16 x 16 halves
PARTS = (2, 3, 4, 6, 8)  # that a tile may have


@dataclass(frozen=True)
class WgmmaConfig:
    """A block multiplies tiles of tile_m rows of x by tile_n columns, with ``warpgroups`` consumers
    side by side in n, ``k_groups`` such rows of consumers that take turns with the stages, and one
    producer. dtype: of x, scales, bias and c, float16 or bfloat16; bits of a code, 4 or 8; zeros:
    None, "integer" or "float16"; scaling: what scales of groups multiply, "weights" or "sums" of
    their products, in fp32; bias: added at the end; codes: "integer", or "e2m1" for block-scaled
    FP4, of groups of 16 or 32 (``formats.fp4_marlin``). cluster: blocks that share each tile along
    k, and add up through each other's shared memory. parts: blocks that share each tile along k,
    and add up through the workspace.

    stages: steps of k = 64 in shared memory. group_blocks: k16 rows that share a scale, -1 for
    per-column scales. split: share k of the tiles that do not fill a wave among all blocks.
    group_m: row tiles that a wave walks through before it moves to the next columns (locality in
    L2).
    """

    tile_m: int = 128
    tile_n: int = 256
    warpgroups: int = 2
    stages: int = 6
    group_blocks: int = 8
    split: bool = True
    group_m: int = 8
    k_groups: int = 1
    cluster: int = 1
    parts: int = 1
    dtype: str = "float16"
    bias: bool = False
    bits: int = 4
    zeros: str | None = None
    scaling: str = "weights"
    codes: str = "integer"

    def __post_init__(self):
        if self.tile_m % 16 or not 16 <= self.tile_m <= 256:
            raise ValueError(f"tile_m={self.tile_m} must be a multiple of 16 from 16 to 256")
        if self.tile_n not in (64, 128, 256):
            raise ValueError(f"tile_n={self.tile_n} must be 64, 128 or 256")
        if self.warpgroups not in (1, 2) or self.tile_n < 64 * self.warpgroups:
            raise ValueError(
                f"warpgroups={self.warpgroups} must be 1 or 2, with 64 of the tile_n={self.tile_n}"
                " columns at least for each"
            )
        check_codes(self)
        if self.words * self.tile_m > 256:
            raise ValueError(
                f"tile_m={self.tile_m} with {self.words} words a warp takes"
                f" {self.words * self.tile_m // 2} accumulators a thread, must be 128 at most"
            )
        if self.dtype not in ("float16", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r} must be float16 or bfloat16")
        if self.bits not in (4, 8):
            raise ValueError(f"bits={self.bits} must be 4 or 8")
        if self.zeros not in (None, "integer", "float16"):
            raise ValueError(f"zeros={self.zeros!r} must be None, 'integer' or 'float16'")
        if self.scaling not in ("weights", "sums"):
            raise ValueError(f"scaling={self.scaling!r} must be 'weights' or 'sums'")
        if self.scaling == "sums" and (
            self.group_blocks < STAGE_ROWS or self.zeros == "float16" or self.tile_m > 64
        ):
            raise ValueError(
                f"scaling='sums' with group_blocks={self.group_blocks}, zeros={self.zeros} and"
                f" tile_m={self.tile_m} must have groups of 64 at least, zero points on the grid if"
                " any, and two sets of sums: tile_m 64 at most"
            )
        if self.group_m < 1:
            raise ValueError(f"group_m={self.group_m} must be at least 1")
        if self.k_groups not in (1, 2) or self.stages % self.k_groups:
            raise ValueError(
                f"k_groups={self.k_groups} must be 1 or 2, and divide stages={self.stages}"
            )
        if self.stages < 2 * self.k_groups:
            raise ValueError(
                f"stages={self.stages} must be at least {2 * self.k_groups}, two for each of"
                f" k_groups={self.k_groups}: a stage is given back when the next one has begun"
            )
        if self.cluster not in (1, 2, 4, 8) or self.pieces % self.cluster:
            raise ValueError(
                f"cluster={self.cluster} must be 1, 2, 4 or 8, and divide the {self.pieces} pieces"
                " of 16 x 16 sums that a warp has of a tile"
            )
        if self.parts != 1 and self.parts not in PARTS:
            raise ValueError(f"parts={self.parts} must be 1 or one of {PARTS}")
        if (self.cluster > 1) + (self.parts > 1) + self.split > 1:
            raise ValueError(
                f"cluster={self.cluster}, parts={self.parts} and split={self.split} each share"
                " tiles along k: choose one of them"
            )
        if self.shared_bytes > SHARED_LIMIT:
            raise TooMuchSharedMemory(
                f"{self.stages} stages of a {self.tile_m} x {self.tile_n} tile take"
                f" {self.shared_bytes} bytes of shared memory, must be {SHARED_LIMIT} at most"
            )

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def block_scaled(self):
        return self.codes == "e2m1"

    @property
    def scale_blocks(self):
        """k16 rows to a row of scales."""
        return 2 if self.block_scaled else self.group_blocks

    @property
    def scales_sums(self):
        """Whether the sums of a group are scaled, before they are added to the others."""
        return self.scaling == "sums"

    @property
    def scales_weights(self):
        """Whether weights are scaled, each of them, before they are multiplied: those of groups,
        and those that zero points off the grid have rounded already."""
        return self.grouped and not self.scales_sums or self.zeros == "float16"

    @property
    def scales_columns(self):
        """Whether the sums of all k are scaled."""
        return not self.scales_weights and not self.scales_sums

    @property
    def steps_per_scale(self):
        """Steps of k that share a scale of sums."""
        return self.group_blocks // STAGE_ROWS

    @property
    def column_factors(self):
        """Whether the sums of a column are scaled, or a bias added, before they leave."""
        return self.bias or self.scales_columns or self.block_scaled

    @property
    def order_of_sums(self):
        """Whole tiles: which steps of k each row of consumers, and each block of those that share a
        tile, adds up. (Which row of two begins alternates with the tiles that a block has done
        before, but two sums are added in either order.) Tiles cut along k: where, depends on all
        tiles there are.
        """
        groups = f", sums of {self.group_blocks} k16 rows" if self.scales_sums else ""
        return (
            None
            if self.split
            else f"whole tiles, k_groups={self.k_groups}, blocks={self.team}{groups}"
        )

    @property
    def words(self):
        """Words of a lane's 16-byte vector that one warp takes: as many m64 blocks of the
        instruction a warpgroup multiplies."""
        return self.tile_n // (64 * self.warpgroups)

    @property
    def consumers(self):
        return self.warpgroups * self.k_groups

    @property
    def threads(self):
        return WARPGROUP * (self.consumers + 1)

    @property
    def consumer_registers(self):
        """Registers a consumer's thread may have when the producer has given up all but
        PRODUCER_REGISTERS; None where none need to move."""
        step, most = SETMAXNREG_STEP, THREAD_REGISTERS // SETMAXNREG_STEP * SETMAXNREG_STEP
        launched = min(most, HOPPER.registers_per_sm // self.threads // step * step)
        return (
            None
            if launched >= most
            else launched + (launched - PRODUCER_REGISTERS) // self.consumers // step * step
        )

    @property
    def parts_at_once(self):
        """Whether a thread's accumulators of all parts of a tile fit its registers together, beside
        those that they are added to: the loads of all parts are then in flight at once."""
        registers = self.consumer_registers or THREAD_REGISTERS
        accumulators = self.words * self.tile_m // 2
        return (self.parts + 1) * accumulators + SPARE_REGISTERS <= registers

    @property
    def team(self):
        """Blocks that take a tile together, each its part of k."""
        return self.cluster * self.parts

    @property
    def pieces(self):
        """Pieces of 16 rows of x by 16 columns that a warp has of a tile."""
        return self.words * self.tile_m // 16

    @property
    def x_stage_bytes(self):
        return self.tile_m * STAGE_K * 2

    @property
    def block_bytes(self):
        """Of 16 x 64 packed weights."""
        return 128 * self.bits

    @property
    def w_box_columns(self):
        """Columns of a tensor copy of packed weights, which moves BOX_ELEMENTS numbers of 8 bytes
        in a row at most; a column's 16 weights are 2 * bits bytes. A stage's boxes lie one behind
        the other."""
        return min(self.tile_n, BOX_ELEMENTS * 8 // (2 * self.bits))

    @property
    def w_row_bytes(self):
        """From a k16 row of a box to the next."""
        return self.w_box_columns // 64 * self.block_bytes

    @property
    def w_box_bytes(self):
        return STAGE_ROWS * self.w_row_bytes

    @property
    def w_boxes(self):
        return self.tile_n // self.w_box_columns

    @property
    def groups_per_stage(self):
        return max(1, STAGE_ROWS // self.scale_blocks) if self.grouped else 1

    @property
    def scale_words(self):
        """Of FP4, for 32 rows and 64 columns."""
        return 32 // self.group_blocks if self.block_scaled else 0

    @property
    def s_row_bytes(self):
        return self.tile_n // 64 * 4 * self.scale_words if self.block_scaled else self.tile_n * 2

    @property
    def s_rows(self):
        """Rows of scales in a stage."""
        return 0 if self.scales_columns else self.groups_per_stage

    @property
    def z_row_bytes(self):
        return {None: 0, "integer": self.tile_n * self.bits // 8, "float16": self.tile_n * 2}[
            self.zeros
        ]

    @property
    def s_shared(self):
        """Where the scales begin in a stage: behind x and the weights."""
        return self.x_stage_bytes + self.w_boxes * self.w_box_bytes

    @property
    def z_shared(self):
        """Where the zero points begin in a stage."""
        return self.s_shared + self.s_rows * self.s_row_bytes

    @property
    def copied_bytes(self):
        return self.z_shared + self.groups_per_stage * self.z_row_bytes

    @property
    def stage_bytes(self):
        return ceil_div(self.copied_bytes, ALIGNMENT) * ALIGNMENT

    @property
    def c_warp_bytes(self):
        return self.tile_m * 32 * self.words

    @property
    def c_bytes(self):
        """The tile of C on its way out; of a cluster's tile a piece for each warp."""
        return (
            self.tile_m * self.tile_n * 2
            if self.cluster == 1
            else 4 * self.warpgroups * PIECE_BYTES
        )

    @property
    def exchange_bytes(self):
        """fp32 sums of a tile, where warpgroups or blocks add up."""
        return self.partial_bytes if self.k_groups > 1 or self.cluster > 1 else 0

    @property
    def c_shared(self):
        return self.stages * self.stage_bytes

    @property
    def exchange_shared(self):
        return self.c_shared + self.c_bytes

    @property
    def barriers_shared(self):
        return self.exchange_shared + self.exchange_bytes

    @property
    def cluster_barriers_shared(self):
        return self.barriers_shared + barrier_bytes(self.stages)

    @property
    def flags_shared(self):
        return self.cluster_barriers_shared + barrier_bytes(1)

    @property
    def shared_bytes(self):
        """Stages, the tile of C, sums to exchange, barriers, a word for each consumer, and what
        aligning the whole may cost."""
        return self.flags_shared + 16 + ALIGNMENT

    @property
    def partial_bytes(self):
        return self.tile_m * self.tile_n * 4

    def tiles(self, m, n):
        return ceil_div(m, self.tile_m) * ceil_div(n, self.tile_n)

    def grid(self, m, n, k, sms):
        tiles = self.tiles(m, n)
        units = tiles * ceil_div(k, STAGE_K)
        if units >= 2**31:
            raise ValueError(
                f"m={m}, n={n}, k={k} are {units} steps of a tile, must be below 2**31: the kernel"
                " counts in 32 bits"
            )
        if self.team > 1:
            return (max(1, min(sms // self.team, tiles)) * self.team, 1, 1)
        return (min(sms, units if self.split else tiles), 1, 1)

    def workspace_bytes(self, m, n, k, sms):
        """A block holds two partial tiles at most: the end of one that another block began, and the
        beginning of one that another ends. Parts of tiles that are shared alike have a place
        each."""
        if self.parts > 1:
            tiles = self.tiles(m, n)
            return tiles * self.parts * self.partial_bytes, 4 * tiles * self.warpgroups
        blocks = self.grid(m, n, k, sms)[0]
        shared = self.tiles(m, n) % blocks if self.split else 0
        return (2 * blocks * self.partial_bytes, 4 * shared * self.warpgroups) if shared else (0, 0)

"""Where things lie in the shared memory of ``wgmma``: offsets in bytes, from an address that is a
multiple of ALIGNMENT.

A block has the ring of stages; the tile of C on its way out; fp32 accumulators on their way between
its consumers (``k_groups``) or the blocks of its cluster; and mbarriers, full and empty ones of the
stages, then *ready* and *free* of a cluster::

    0                            result_at   exchange_at    barriers_at    flags_at
    | stage 0 | ... | stages - 1 | tile of C | accumulators | full, empty; | a word for  |
    |         |     |            |           | (fp32)       | ready, free  | a warpgroup |

A stage holds 64 columns of x for the rows of a tile, the weights of as many rows for its columns,
and what dequantises them::

    0                    weights_at               scales_at       zeros_at             stage_bytes
    | x [tile_m][128],   | weights [w_boxes]      | scales        | zero points        | gap |
    | swizzled by        | [STAGE_ROWS]           | [s_rows]      | [groups_per_stage] | to  |
    | chunks of 16 bytes | [w_row_bytes]          | [s_row_bytes] | [z_row_bytes]      | 1 K |
"""

from numba_marlin.hardware.limits import BOX_ELEMENTS
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

STAGE_K = 64  # depth of a stage: one row of the 128-byte swizzle
STAGE_ROWS = STAGE_K // 16
WARPGROUP = 128  # threads
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
PIECE_BYTES = 512  # 16 x 16 halves
QUAD_BYTES = WARPGROUP * 16  # four fp32 accumulators of each thread of a warpgroup


class SharedMemory:
    """Properties of ``WgmmaConfig``."""

    # ---- a stage ----

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
    def w_numbers(self):
        """Numbers of 8 bytes that the 16 weights of a column are."""
        return self.bits // 4

    @property
    def w_blocks(self):
        """Blocks of 64 columns in a box."""
        return self.w_box_columns // 64

    @property
    def w_row_bytes(self):
        """From a k16 row of a box to the next."""
        return self.w_blocks * self.block_bytes

    @property
    def w_box_bytes(self):
        return STAGE_ROWS * self.w_row_bytes

    @property
    def w_boxes(self):
        return self.tile_n // self.w_box_columns

    @property
    def scale_words(self):
        """Of FP4, for 32 rows and 64 columns."""
        return 32 // self.group_blocks if self.block_scaled else 0

    @property
    def s_row_bytes(self):
        return self.blocks_n * 4 * self.scale_words if self.block_scaled else self.tile_n * 2

    @property
    def s_rows(self):
        """Rows of scales in a stage."""
        return 0 if self.scales_columns else self.groups_per_stage

    @property
    def s_next_row(self):
        """From a row of scales to the next of the same columns: those of FP4 lie together for each
        64 columns."""
        return 4 * self.scale_words if self.block_scaled else self.s_row_bytes

    @property
    def z_row_bytes(self):
        return {None: 0, "integer": self.tile_n * self.bits // 8, "float16": self.tile_n * 2}[
            self.zeros
        ]

    @property
    def z_number_columns(self):
        """Columns of a number that zero points are copied in."""
        return 32 // self.bits if self.zeros == "integer" else 1

    @property
    def weights_at(self):
        """Where the weights begin in a stage: behind x."""
        return self.x_stage_bytes

    @property
    def scales_at(self):
        return self.weights_at + self.w_boxes * self.w_box_bytes

    @property
    def zeros_at(self):
        return self.scales_at + self.s_rows * self.s_row_bytes

    @property
    def copied_bytes(self):
        """That a stage's full barrier waits for."""
        return self.zeros_at + self.groups_per_stage * self.z_row_bytes

    @property
    def stage_bytes(self):
        return ceil_div(self.copied_bytes, ALIGNMENT) * ALIGNMENT

    # ---- a block ----

    @property
    def result_row_bytes(self):
        """Of a warp's columns of the tile of C."""
        return 32 * self.words

    @property
    def result_warp_bytes(self):
        return self.tile_m * self.result_row_bytes

    @property
    def result_bytes(self):
        """The tile of C on its way out; of a cluster's tile a piece for each warp."""
        return (
            self.tile_m * self.tile_n * 2
            if self.cluster == 1
            else 4 * self.warpgroups * PIECE_BYTES
        )

    @property
    def swizzle_rows(self):
        """Rows of the result that share a value to xor its chunks with: those of 128 bytes, and
        four at most (the swizzle of the tensor copy, as wide as a row, asks for that)."""
        return {1: 4, 2: 2, 4: 1}[self.words]

    @property
    def partial_bytes(self):
        """Of a tile's accumulators."""
        return self.tile_m * self.tile_n * 4

    @property
    def partial_word_bytes(self):
        """Of one m64 block of a warpgroup: quad after quad of each thread's accumulators."""
        return self.accumulators // 4 * QUAD_BYTES

    @property
    def partial_warpgroup_bytes(self):
        return self.words * self.partial_word_bytes

    @property
    def exchange_bytes(self):
        """fp32 accumulators of a tile, where warpgroups or blocks add up."""
        return self.partial_bytes if self.k_groups > 1 or self.cluster > 1 else 0

    @property
    def result_at(self):
        return self.stages * self.stage_bytes

    @property
    def exchange_at(self):
        return self.result_at + self.result_bytes

    @property
    def barriers_at(self):
        return self.exchange_at + self.exchange_bytes

    @property
    def cluster_barriers_at(self):
        return self.barriers_at + barrier_bytes(self.stages)

    @property
    def flags_at(self):
        """A word for each warpgroup of the first row of consumers."""
        return self.cluster_barriers_at + barrier_bytes(1)

    @property
    def shared_bytes(self):
        """With what aligning the whole may cost."""
        return self.flags_at + 16 + ALIGNMENT

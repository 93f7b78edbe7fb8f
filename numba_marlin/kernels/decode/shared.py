"""Where things lie in the shared memory of ``decode``: offsets in bytes from ``shared_base``, a
multiple of 128. ``kernel`` says what a stage, a k16 row, a 16-column block and an n8 block are.

A block has the ring of stages; accumulators that consumer warps of the same columns exchange in the
epilogue; and the two mbarriers of every stage, 8 bytes each::

    0                                      exchange_at                 barriers_at
    +---------+---------+-----+------------+---------------------------+-----------------------+
    | stage 0 | stage 1 | ... | stages - 1 | accumulators, fp32        | [stages][full, empty] |
    +---------+---------+-----+------------+---------------------------+-----------------------+

The accumulators are [warp_n][owner][sender][vector][lane][4], of which there are warps_n, owners,
warps_k - 1, vectors, 32 and 4: an owner is a warp that finishes columns (``output``), a sender one
of the other warps of these columns, a vector a lane's 4 fp32 of a 16-column block and an n8 block.

A stage holds stage_k rows of W for the columns of a tile, their scales and zero points, and stage_k
columns of x for the rows of a tile, one part after the other, and is padded to a multiple of 128
bytes::

    at          what              index shape                                 bytes of an element
    0           packed weights    [k16 row: stage_rows][warp_n]               warp_row_bytes
    scales_at   scales            [row of scales: scale_rows][warp_n]         scale_bytes
                (FP4)             [warp_n][row of scales: scale_rows]         scale_bytes
    zeros_at    zero points       [row of zero points: zero_rows][warp_n]     zero_bytes
    x_at        x                 [row of x: batch]                           x_pitch

The default configuration (batch=8, 4 x 2 warps, stage_k=128, groups of 128, 4 bits): a stage has
16384 bytes of weights (8 k16 rows, 4 warp_n, 512), 512 of scales, no zero points and 2176 of x (8
rows of 272), together 19072. Five stages are 95360, the exchange 8192 (4 x 2 x 1 x 2 x 512) and the
barriers 80: 103632 bytes.

**Bank conflicts: none**, without any swizzle. What a warp reads:

- weights of 4 bits: lane i the i-th 16 of 512 contiguous bytes. (8 bits: ``weights``.)
- x: a row is followed by 16 bytes of nothing, so x_pitch is 16 more than a multiple of 128. Each
  row is shifted by four banks, and the eight rows that a phase of ``ldmatrix`` reads touch every
  bank once.
- scales and zero points: lanes 4g to 4g + 3 read the same bytes, those of the eight columns g + 8i,
  which are one broadcast; those of the eight g lie side by side. Bytes of a g: scales and float16
  zero points 16, packed zero points 4 or 8 (4 or 8 bits), FP4's scales 16 or 8 (scale blocks of 16,
  32).
- the exchange: lane i writes and reads the i-th 16 of 512 contiguous bytes.
"""

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes

SCALE_BYTES = 128  # bytes of the scales of one group for 64 columns
BLOCK_SCALE_BYTES = {1: 128, 2: 64}  # of FP4's for 64 columns and 32 of k; key: ``group_blocks``
# bytes of the zero points of one group for 64 columns; of "integer", for each bit of a code
ZERO_BYTES = {None: 0, "integer": 8, "float16": 128}
WARP_VECTOR_BYTES = 512  # a vector, four fp32 accumulators, of each lane of a warp
X_PADDING = 16  # bytes between rows of x
# of a stage, in bytes. Copies and ldmatrix want 16; with 128 every stage begins at bank 0.
ALIGNMENT = 128


class SharedMemory:
    """Properties of ``DecodeConfig``. A *pitch* is the distance from an element to the next."""

    # ---- a stage ----

    @property
    def warp_row_bytes(self):
        """Packed weights of a k16 row for a warp: 16 of k times 64 columns, 16 or 32 bytes per
        lane."""
        return 128 * self.bits

    @property
    def weight_pitch(self):
        """From a k16 row of a stage to the next: the weights of all warp_n, side by side."""
        return self.warps_n * self.warp_row_bytes

    @property
    def scale_bytes(self):
        """Of a row of scales for the 64 columns of a warp."""
        return BLOCK_SCALE_BYTES[self.group_blocks] if self.block_scaled else SCALE_BYTES

    @property
    def scale_rows(self):
        """Rows of scales of a stage. A group that spans several stages is copied with each of
        them. Per-column scales are not in a stage: the epilogue reads them."""
        return max(1, self.stage_rows // self.k16_rows_per_scale_row) if self.grouped else 0

    @property
    def scale_pitch(self):
        """From a row of scales to the next."""
        return self.scale_bytes if self.block_scaled else self.warps_n * self.scale_bytes

    @property
    def scale_warp_pitch(self):
        """From the scales of 64 columns to those of the next."""
        return self.scale_rows * self.scale_bytes if self.block_scaled else self.scale_bytes

    @property
    def zero_bytes(self):
        """Of a row of zero points for the 64 columns of a warp."""
        return ZERO_BYTES[self.zeros] * (self.bits if self.zeros == "integer" else 1)

    @property
    def zero_rows(self):
        """Rows of zero points of a stage, one per group. Per-column zero points come with every
        stage, as they are subtracted in the main loop."""
        return max(1, self.scale_rows) if self.zeros else 0

    @property
    def zero_pitch(self):
        """From a row of zero points to the next."""
        return self.warps_n * self.zero_bytes

    @property
    def x_element_bytes(self):
        return 2

    @property
    def x_row_bytes(self):
        """Of a k16 row's part of a row of x."""
        return 16 * self.x_element_bytes

    @property
    def x_pitch(self):
        """From a row of x to the next."""
        return self.x_element_bytes * self.stage_k + X_PADDING

    @property
    def scales_at(self):
        """Where the scales begin in a stage."""
        return self.stage_rows * self.weight_pitch

    @property
    def zeros_at(self):
        """Where the zero points begin in a stage."""
        return self.scales_at + self.scale_rows * self.warps_n * self.scale_bytes

    @property
    def x_at(self):
        """Where x begins in a stage."""
        return self.zeros_at + self.zero_rows * self.zero_pitch

    @property
    def stage_bytes(self):
        return ALIGNMENT * ceil_div(self.x_at + self.batch * self.x_pitch, ALIGNMENT)

    # ---- a block ----

    @property
    def exchange_at(self):
        """Where consumer warps of the same columns exchange accumulators."""
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
        """Shared memory that a block may have if ``resident`` blocks are to fit on an SM of Hopper,
        which has 233472 bytes, 1024 of which CUDA keeps for itself in every block: 232448, 115712,
        76800 or 57344 bytes for 1 to 4 blocks. It bounds ``stages``: the default configuration has
        the most that two blocks leave room for, 5, and could have 11 with resident=1."""
        return HOPPER.shared_bytes_per_sm // self.resident - SYSTEM_SHARED_BYTES

"""Where things lie in the shared memory of ``wgmma`` (and of those of ``w4a8``, whose stages are of
eight k16 rows instead of four): offsets in bytes, from an address that is a multiple of ALIGNMENT.
Names are properties, below or in ``config``; the last index is in bytes.

A block::

    offset               what                              shape
    0                    the ring of stages                [stages][stage_bytes]
    result_at            the tile of C on its way out,     [4 * warpgroups][tile_m][32 * strips]
                         per warp; with a cluster 16 x 16  [4 * warpgroups][16][32]
    exchange_at          fp32 accumulators, with k_groups  [warpgroups][strips][tile_m / 8]
                         2 or a cluster                    [128 threads][16]
    barriers_at          mbarriers of the ring             [stages][full 8, empty 8]
    cluster_barriers_at  mbarriers of a cluster            [ready 8, free 8]
                         (``exchange``; there in any case)
    flags_at             words of ``output.count_in``      [warpgroups][4], in 16 bytes

A stage. TMA writes all of it; wgmma reads x, a lane its own weights, and lanes 4g to 4g + 3 the
scales and zero points of columns with that g. All offsets are multiples of 128, as TMA demands::

    offset        what                           shape
    0             x, swizzled                    [tile_m][128]
    weights_at    weights of four k16 rows       [w_boxes][4 k16 rows][w_panels][32 lanes]
                                                 [4 strips][lane_strip_bytes]
    scales_at     scales, unless the epilogue    [scale_rows][tile_n][2]
                  loads them; of FP4             [panels][scale_rows][8 g][scale_words / 8 words][4]
    zeros_at      zero points, integer, packed   [scale_rows][panels][8 g][8 codes: ``bits`` bytes]
                  float16                        [scale_rows][tile_n][2]
    copied_bytes  a gap, to a multiple of 1024

Bank conflicts (32 banks of 4 bytes; ``bits`` is 4 or 8):

- x: a stage is 128 bytes deep in k because that is the widest swizzle: TMA puts chunk c of 16 bytes
  of row r at c ^ (r % 8). ``wgmma`` reads 8 rows of a chunk at once, and these lie in 8 different
  groups of 4 banks. It undoes the swizzle, which its descriptor names.
- Weights lie as in Marlin's bytes, lanes 16 bytes apart with 4 bits and 32 with 8, and a lane loads
  a word, or two, per strip. With 4 bits and 4 strips that is all 16 bytes: no conflict. With fewer
  strips a load takes as long as if it brought everything: 2-way conflicts with 2 strips, 4-way with
  one. 8 bits: 2-way with 4 or 2 strips, 4-way with one. That is left so. The loads of a step of 256
  columns, two warpgroups and 4 bits take 8 warps x 4 k16 rows x 4 cycles (32 lanes x 16 bytes, 128
  a cycle) = 128 cycles of shared memory; the shortest such step takes 0.33 us, some 600 cycles
  (``choose``).
- Scales and zero points: the four lanes of a g read one address, and all eight g 128 bytes at most.
- The tile of C: a row is 32 * strips bytes, and chunk c of row r goes to
  c ^ ((r // line_rows) % (2 * strips)), which is the swizzle of 32, 64 or 128 bytes that the tensor
  store undoes. TMA takes the chunk's line from its address, the formula from its row in the warp's
  box. They agree because every box begins at a multiple of the pattern (8 * 32 * strips bytes):
  result_at is a multiple of 1024, a box has tile_m rows of 32 * strips bytes, and tile_m % 16 is 0.
  ``stmatrix`` writes 8 rows of a chunk at once: they lie in 8 different groups of 4 banks. (A
  cluster's pieces are not swizzled: 8 rows, 32 bytes apart, conflict 2-way.)
- Exchange: neighbouring threads, neighbouring 16 bytes.
"""

from numba_marlin.hardware.limits import BOX_ELEMENTS
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES
from numba_marlin.layout.wgmma import Descriptor

STAGE_K = 64  # depth of a stage: one row of the 128-byte swizzle
STAGE_K16_ROWS = STAGE_K // 16
WARPGROUP = 128  # threads
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
RESULT_PIECE_BYTES = 512  # a piece, 16 rows by 16 columns of C, in 16 bits
WARPGROUP_QUAD_BYTES = WARPGROUP * 16  # a quad of every thread of a warpgroup, in fp32
# wgmma's B is 32 bytes of k by tile_m. In a stage x is [tile_m][128 bytes of k], so k is
# contiguous: "K-major", and a 16-bit instruction's trans-b is 0 (its scale-a and scale-b are 1).
# All of its descriptor but the address: 128-byte swizzle, groups of eight rows of x 1024 bytes
# apart; base offset 0, as a stage begins at a multiple of 1024; the leading offset is not used with
# a swizzle.
DESCRIPTOR_WITHOUT_ADDRESS = Descriptor(
    address=0, stride_bytes=SWIZZLE_PATTERN_BYTES, swizzle=128
).encode()


class SharedMemory:
    """Properties of ``WgmmaConfig``, and of the configurations of ``w4a8``, whose x has
    8 bits and whose stages are twice as deep."""

    # ---- a stage ----

    @property
    def stage_k(self):
        """Depth of a stage: a row of the swizzle of x."""
        return STAGE_K

    @property
    def stage_k16_rows(self):
        return self.stage_k // 16

    @property
    def x_stage_bytes(self):
        return self.tile_m * STAGE_K * 2

    @property
    def lane_strip_bytes(self):
        """What a lane has of a strip in a k16 row: 8 codes, which are ``bits`` bytes."""
        return self.bits

    @property
    def lane_bytes(self):
        """What a lane has of a panel in a k16 row: of its four strips."""
        return 4 * self.lane_strip_bytes

    @property
    def panel_bytes(self):
        """Of a panel's part of a k16 row, 16 x 64 packed weights: of 32 lanes."""
        return 32 * self.lane_bytes

    @property
    def w_box_columns(self):
        """Columns of a tensor copy of packed weights. A box has at most BOX_ELEMENTS = 256
        elements in a row, w_elements of them per column: 256 columns of 4 bits, 128 of 8. A
        stage's boxes lie one behind the other."""
        return min(self.tile_n, BOX_ELEMENTS // self.w_elements)

    @property
    def w_elements(self):
        """Elements of the tensor map of weights, uint64, per column of a k16 row: 16 weights are
        2 * bits bytes. (What stands there is not that column's: Marlin permutes panels.)"""
        return self.bits // 4

    @property
    def w_panels(self):
        """Panels in a box."""
        return self.w_box_columns // 64

    @property
    def w_row_bytes(self):
        """From a k16 row of a box to the next."""
        return self.w_panels * self.panel_bytes

    @property
    def w_box_bytes(self):
        return self.stage_k16_rows * self.w_row_bytes

    @property
    def w_boxes(self):
        return self.tile_n // self.w_box_columns

    @property
    def scale_words(self):
        """Words of FP4's scales for 32 rows of W and a panel: for each of 8 g, 4 strips x 2 pairs
        (groups of 16, group_blocks = 1) or 1 pair (groups of 32), two pairs to a word."""
        return 32 // self.group_blocks if self.block_scaled else 0

    @property
    def s_row_bytes(self):
        """Of the scales of a stage's scale row, all panels together; 0 if none come with it."""
        if self.scales_columns:
            return 0
        return self.panels * 4 * self.scale_words if self.block_scaled else self.tile_n * 2

    @property
    def s_next_row(self):
        """From a scale row's scales to the next row's of the same columns: s_row_bytes, but for
        FP4, where both rows of a panel lie together."""
        return 4 * self.scale_words if self.block_scaled else self.s_row_bytes

    @property
    def z_row_bytes(self):
        """Of the zero points of a stage's scale row; 0 if there are none."""
        return {None: 0, "integer": self.tile_n * self.bits // 8, "float16": self.tile_n * 2}[
            self.zeros
        ]

    @property
    def z_element_columns(self):
        """Columns per element of the tensor map of zero points: a word of codes, or a float16."""
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
        return self.scales_at + self.scale_rows * self.s_row_bytes

    @property
    def copied_bytes(self):
        """That a stage's full barrier waits for: whole boxes, whatever lies outside of a matrix."""
        return self.zeros_at + self.scale_rows * self.z_row_bytes

    @property
    def stage_bytes(self):
        return ceil_div(self.copied_bytes, ALIGNMENT) * ALIGNMENT

    # ---- a block ----

    @property
    def result_row_bytes(self):
        """Of a warp's columns of the tile of C."""
        return 32 * self.strips

    @property
    def result_warp_bytes(self):
        return self.tile_m * self.result_row_bytes

    @property
    def result_bytes(self):
        """The tile of C on its way out; with a cluster, a piece for each warp."""
        return (
            self.tile_m * self.tile_n * 2
            if self.cluster == 1
            else 4 * self.warpgroups * RESULT_PIECE_BYTES
        )

    @property
    def line_rows(self):
        """Rows of the tile of C in a 128-byte line of shared memory: the swizzle of the tensor
        store exclusive-ors a chunk's number with that of its line."""
        return {1: 4, 2: 2, 4: 1}[self.strips]

    @property
    def partial_bytes(self):
        """Of a tile's accumulators."""
        return self.tile_m * self.tile_n * 4

    @property
    def partial_strip_bytes(self):
        """Of a warpgroup's accumulators of one strip per warp: quad after quad, a quad being four
        accumulators, 16 bytes, of each of its 128 threads."""
        return self.accumulators // 4 * WARPGROUP_QUAD_BYTES

    @property
    def partial_warpgroup_bytes(self):
        return self.strips * self.partial_strip_bytes

    @property
    def exchange_bytes(self):
        """fp32 accumulators of a tile, where k groups or the blocks of a cluster add up."""
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
        """A word for each warpgroup of the first k group: how many blocks share the tile, if this
        one was the last to come; else 0 (``output.count_in``)."""
        return self.cluster_barriers_at + barrier_bytes(1)

    @property
    def shared_bytes(self):
        """With what aligning the whole may cost."""
        return self.flags_at + 16 + ALIGNMENT

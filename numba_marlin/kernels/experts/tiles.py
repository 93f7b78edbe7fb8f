"""What the sizes of kernels share that multiply tiles of gathered rows, ragged over experts, by
``wgmma``: of x in 16 bits (``moe_wgmma``) or in 8 (``w4a8``). Pure."""

from numba_marlin.kernels.experts.tables import RoutedConfig
from numba_marlin.kernels.hopper.shared import ALIGNMENT, WARPGROUP
from numba_marlin.kernels.language.definition import ceil_div

# Of the producer's threads, which keep where the rows begin that they gather: up to 8 rows, or more
PRODUCER_REGISTERS = (24, 40)
ROWS_KEPT = 8
CHUNK_BYTES = 16
CHUNKS_PER_ROW = 8  # in a row of x of a stage, 128 bytes
ROWS_AT_ONCE = WARPGROUP // CHUNKS_PER_ROW  # that the producer's threads copy together


class RoutedTiles(RoutedConfig):
    """Properties of a configuration with the fields of ``wgmma``'s tiles and stages, and those that
    ``RoutedConfig`` wants. ``tile_m``: most rows of a tile, all of one expert."""

    def check_gated(self):
        if self.tile_n < 128:
            raise ValueError(
                f"tile_n={self.tile_n} must be 128 at least with activation={self.activation!r}:"
                " a panel of gate, and one of up"
            )
        if self.zeros is not None:
            raise ValueError(
                f"zeros={self.zeros!r} must be None with activation={self.activation!r}: half a"
                " tile's zero points are no whole 128 bytes, which tensor copies want"
            )

    @property
    def block_rows(self):
        return self.tile_m

    @property
    def halves(self):
        """Runs of columns of W that a tile has: with an activation one of gate and one of up."""
        return 2 if self.gated else 1

    @property
    def half_columns(self):
        return self.tile_n // self.halves

    @property
    def half_panels(self):
        return self.panels // self.halves

    @property
    def gathered_rows(self):
        """Rows of a tile that a thread of the producer copies, 16 bytes each."""
        return self.tile_m // ROWS_AT_ONCE

    @property
    def chunk_elements(self):
        """Of x, in a chunk."""
        return self.stage_k // CHUNKS_PER_ROW

    @property
    def producer_registers(self):
        """(With 40 and a tile of 128 x 256 the consumers spill, with 24 and 192 rows the
        producer.)"""
        few, many = PRODUCER_REGISTERS
        return few if self.gathered_rows <= ROWS_KEPT else many

    # ---- a stage ----

    @property
    def w_box_columns(self):
        return min(super().w_box_columns, self.half_columns)

    @property
    def boxes_per_half(self):
        return self.w_boxes // self.halves

    @property
    def tma_bytes(self):
        """Of a stage, all but x."""
        return self.copied_bytes - self.x_stage_bytes

    # ---- a block: the tables behind all that ``wgmma`` has ----

    @property
    def tables_at(self):
        return self.flags_at + 16

    @property
    def shared_bytes(self):
        return self.tables_end + ALIGNMENT

    # ---- the epilogue ----

    @property
    def warp_columns(self):
        return 16 * self.strips

    @property
    def lock_bytes(self):
        """Of the locks of tiles that stripes share, per block: fewer tiles than blocks."""
        return 4 * self.warpgroups

    # ---- launch. m: tokens ----

    def tiles(self, m, n):
        """At most: the routing says how many there are."""
        return self.most_row_blocks(m) * ceil_div(n, self.tile_n)

    def steps(self, m, n, k):
        return self.tiles(m, n) * ceil_div(k, self.stage_k)

    def grid(self, m, n, k, sms):
        if k % self.stage_k:
            raise ValueError(
                f"k={k} must be a multiple of {self.stage_k}: a step never leaves an expert"
            )
        self.check_columns(n)
        if self.steps(m, n, k) >= 2**31:
            raise ValueError(
                f"m={m}, n={n}, k={k} may be {self.steps(m, n, k)} steps of a tile, must be below"
                " 2**31: the kernel counts in 32 bits"
            )
        return (min(sms, self.steps(m, n, k) if self.split else self.tiles(m, n)), 1, 1)

    def workspace_bytes(self, m, n, k, sms):
        """(partial results, locks) of shared tiles."""
        if not self.split:
            return 0, 0
        blocks = self.grid(m, n, k, sms)[0]
        return 2 * blocks * self.partial_bytes, blocks * self.lock_bytes

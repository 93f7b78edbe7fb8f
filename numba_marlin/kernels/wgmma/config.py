"""The sizes of ``wgmma``: what can be chosen, and what follows from it. Pure. Where things lie in
shared memory: ``shared``. Terms (panel, strip, k16 row, k group, ...): ``kernel``."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SETMAXNREG_STEP, THREAD_REGISTERS
from numba_marlin.kernels.hopper.parts import SharedTiles
from numba_marlin.kernels.hopper.shared import STAGE_K, STAGE_K16_ROWS, WARPGROUP, SharedMemory
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div, check_codes

SHARED_LIMIT = HOPPER.shared_bytes_per_block
PRODUCER_REGISTERS = 24


@dataclass(frozen=True)
class WgmmaConfig(SharedTiles, SharedMemory):
    """What can be chosen; the properties follow from it."""

    #: rows of x, and of C, in a tile
    tile_m: int = 128
    #: columns of a tile: 64, 128 or 256
    tile_n: int = 256
    #: consumer warpgroups of a k group, which share the columns of a tile: 1 or 2, each 64 at least
    warpgroups: int = 2
    #: steps of k = 64 in shared memory
    stages: int = 6
    #: k16 rows (of Marlin's blocks, 16 x 64) of a scale group: 2, 4, 8 or 16 (FP4: 1 or 2); -1: one
    #: scale per column
    group_blocks: int = 8
    #: stream-K: the tiles that do not fill a wave are cut along k, an equal share for every block
    split: bool = True
    #: row tiles in a band; a wave walks down a band, then to the next columns (``schedule``)
    group_m: int = 8
    #: sets of ``warpgroups`` consumers, 1 or 2: with 2 each takes every other stage, and their sums
    #: are added at the end of an item
    k_groups: int = 1
    #: blocks that share each tile along k, and add up through each other's shared memory (DSMEM)
    cluster: int = 1
    #: split-K: blocks that share each tile along k, and add up through the workspace
    parts: int = 1
    #: of x, scales, bias and c: "float16" or "bfloat16"
    dtype: str = "float16"
    #: a bias is added at the end
    bias: bool = False
    #: of a code: 4 or 8
    bits: int = 4
    #: zero points: None (codes are symmetric, 8 or 128 means 0), "integer" (``bits`` each, packed)
    #: or "float16"
    zeros: str | None = None
    #: what scales of groups multiply: "weights", or "sums" of their products, in fp32
    scaling: str = "weights"
    #: "integer", or "e2m1" for block-scaled FP4 of groups of 16 or 32 (``formats.fp4_marlin``)
    codes: str = "integer"

    def __post_init__(self):
        # (wgmma would take multiples of 8, but stmatrix writes four matrices: 16 rows of C)
        if self.tile_m % 16 or not 16 <= self.tile_m <= 256:
            raise ValueError(f"tile_m={self.tile_m} must be a multiple of 16 from 16 to 256")
        if self.tile_n not in (64, 128, 256):
            raise ValueError(f"tile_n={self.tile_n} must be 64, 128 or 256")
        if self.warpgroups not in (1, 2) or self.tile_n < 64 * self.warpgroups:
            raise ValueError(
                f"warpgroups={self.warpgroups} must be 1 or 2, with 64 of the tile_n={self.tile_n}"
                " columns at least for each"
            )
        # "integer": group_blocks -1, 2, 4, 8 or 16, with any bits and zeros. "e2m1": group_blocks
        # 1 or 2, with bits=4 and zeros=None.
        check_codes(self)
        if self.strips * self.tile_m > 256:
            raise ValueError(
                f"tile_m={self.tile_m} with {self.strips} strips a warp takes"
                f" {self.strips * self.tile_m // 2} accumulators a thread, must be 128 at most"
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
            self.group_blocks < STAGE_K16_ROWS or self.zeros == "float16" or self.tile_m > 64
        ):
            raise ValueError(
                f"scaling='sums' with group_blocks={self.group_blocks}, zeros={self.zeros} and"
                f" tile_m={self.tile_m} must have groups of 64 at least, integer zero points if"
                " any, and tile_m 64 at most: a group's accumulators stand beside the tile's"
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
        self.check_parts()
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

    # ---- scales ----

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def block_scaled(self):
        return self.codes == "e2m1"

    @property
    def k16_per_scale_row(self):
        """k16 rows per scale row, which is one scale group; of FP4, 32 rows of W, two scale groups
        of 16 or one of 32. With one scale per column, 4: a stage then has one scale row, always
        number 0. What follows from it:

            codes, group_blocks   k16_per_scale_row   scale_rows   steps_per_scale
                                  k16 rows            in a stage   steps, "sums"
            integer, 2            2                   2            -
            integer, 4            4                   1            1
            integer, 8 or 16      8 or 16             1            2 or 4
            integer, -1           4                   1            -
            e2m1, 1 or 2          2                   2            -
        """
        if not self.grouped:
            return STAGE_K16_ROWS
        return 2 if self.block_scaled else self.group_blocks

    @property
    def scales_sums(self):
        """Whether the products of a group are scaled, before they are added to the others."""
        return self.scaling == "sums"

    @property
    def scales_weights(self):
        """Whether weights are scaled, each of them, before they are multiplied: those of groups,
        and those that a float16 zero point has rounded already (``kernel``, Scales)."""
        return (self.grouped and not self.scales_sums) or self.zeros == "float16"

    @property
    def scales_columns(self):
        """Whether the accumulators of all k are scaled."""
        return not self.scales_weights and not self.scales_sums

    @property
    def finishes_columns(self):
        """Whether accumulators of a column are multiplied, or a bias added, in the epilogue."""
        return self.bias or self.scales_columns or self.block_scaled

    @property
    def scale_rows(self):
        """Scale rows that a stage has, 1 or 2: that of its k16 row r, r = 0 to 3, is number
        r // k16_per_scale_row."""
        return max(1, STAGE_K16_ROWS // self.k16_per_scale_row)

    @property
    def steps_per_scale(self):
        """Steps of k that share a scale of accumulators; None without scaling="sums"."""
        return self.group_blocks // STAGE_K16_ROWS if self.scales_sums else None

    # ---- tiles, warps, registers ----

    @property
    def strips(self):
        """Strips of one panel that a warp takes: as many products of m64 a warpgroup issues per
        k16 row."""
        return self.tile_n // (64 * self.warpgroups)

    @property
    def panels(self):
        """Of 64 columns, in a tile."""
        return self.tile_n // 64

    @property
    def warps_per_panel(self):
        """Warps of a warpgroup that share a panel, each with strips of its own."""
        return 4 // self.panels

    @property
    def consumer_warpgroups(self):
        """Of a block: of all its k groups."""
        return self.warpgroups * self.k_groups

    @property
    def consumer_threads(self):
        return WARPGROUP * self.consumer_warpgroups

    @property
    def threads(self):
        return self.consumer_threads + WARPGROUP

    @property
    def accumulators(self):
        """Of a thread, for one strip: its part of an m64 by tile_m product."""
        return self.tile_m // 2

    @property
    def producer_registers(self):
        """What the producer's threads keep."""
        return PRODUCER_REGISTERS

    @property
    def consumer_registers(self):
        """Registers a consumer's thread may have when the producer's threads have given up all but
        ``producer_registers``. ``launched``, a multiple of setmaxnreg's step, is what every thread
        begins with: the kernel declares how many threads a block has (.maxntid, ``compiler``), and
        of a kernel with setmaxnreg ptxas then gives each its share of the SM's 65536.

            threads of a block   launched   a consumer's, then
            256                  248        None: there are no more to have
            384                  168        240
            640                  96         112

        Nobody here checks that accumulators fit. With 640 threads, shared memory would allow tiles
        of 96 accumulators a thread (112 with a cluster), and ptxas must spill: ``compiler.gates``
        calls that a broken promise, and ``choose`` has no such configuration."""
        step, most = SETMAXNREG_STEP, THREAD_REGISTERS // SETMAXNREG_STEP * SETMAXNREG_STEP
        launched = min(most, HOPPER.registers_per_sm // self.threads // step * step)
        gained = (launched - self.producer_registers) // self.consumer_warpgroups // step * step
        return None if launched >= most else launched + gained

    @property
    def pieces(self):
        """Pieces, 16 rows of a strip, that a warp has of a tile of C."""
        return self.strips * self.pieces_per_strip

    @property
    def pieces_per_strip(self):
        return self.tile_m // 16

    @property
    def pieces_per_block(self):
        """Of a warp's pieces, those that one block of a cluster finishes."""
        return self.pieces // self.cluster

    # ---- launch ----

    @property
    def team(self):
        """Blocks that take a tile together, each its part of k."""
        return self.cluster * self.parts

    @property
    def order_of_sums(self):
        """For ``KernelDefinition.order_of_sums``: all that the order depends on in which a
        result's products are added. Whole tiles: which steps of k each k group, and each block of
        those that share a tile, adds up. (Which of two k groups has the first step depends on the
        items that a block has done before, but a + b is b + a.) Stripes: where they cut a tile
        depends on all tiles there are, so there is no such key.
        """
        groups = f", sums of {self.group_blocks} k16 rows" if self.scales_sums else ""
        return (
            None
            if self.split
            else f"whole tiles, k_groups={self.k_groups}, blocks={self.team}{groups}"
        )

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
        """Of partials and locks. Stripes: a block has two partial tiles at most, the end of one
        that another block began, and the beginning of one that another ends, and each warpgroup and
        tile that is shared a lock. With ``parts``: ``parts_workspace``."""
        if self.parts > 1:
            return self.parts_workspace(m, n)
        blocks = self.grid(m, n, k, sms)[0]
        shared = self.tiles(m, n) % blocks if self.split else 0
        return (2 * blocks * self.partial_bytes, 4 * shared * self.warpgroups) if shared else (0, 0)

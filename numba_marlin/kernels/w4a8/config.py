"""The sizes of ``wgmma_int8`` and ``wgmma_fp8``: what can be chosen, and what follows from it.
Pure. Where things lie in shared memory: ``kernels.hopper.shared``, with a stage twice as deep, of
as many bytes of x. Terms (panel, strip, k16 row, ...): ``kernels.wgmma.kernel``."""

from dataclasses import dataclass
from typing import ClassVar

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SETMAXNREG_STEP
from numba_marlin.kernels.hopper.parts import SharedTiles
from numba_marlin.kernels.hopper.shared import WARPGROUP, SharedMemory
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.layout.w4a8 import UNIT

SHARED_LIMIT = HOPPER.shared_bytes_per_block
PRODUCER_REGISTERS = 24
STAGE_K = 128  # of 8-bit x: one row of the 128-byte swizzle
K32_STEPS = STAGE_K // 32  # of a stage: 32 is the k of a product
SUMS_ORDER = "{} sums, groups in the order of k"
COLUMN_SUM_STAGES = 8  # of fp8 with one scale per column: tensor cores add up 1,024 of k
MOST_ROWS_BESIDE_SCALES = 128
MOST_K = (2**31 - 1) // (UNIT * 8 * 127) // 16 * 16
"""With one scale per column all of k is added up in 32 bits, in units of 1 / 16."""


@dataclass(frozen=True)
class WgmmaBytesConfig(SharedTiles, SharedMemory):
    """What can be chosen; the properties follow from it. Of either type of activations."""

    #: one of ``formats.activations.KINDS``
    activations: ClassVar[str]

    #: rows of x, and of C, in a tile
    tile_m: int = 128
    #: columns of a tile: 64, 128 or 256
    tile_n: int = 128
    #: consumer warpgroups, which share the columns of a tile: 1 or 2, each 64 at least
    warpgroups: int = 2
    #: steps of k = 128 in shared memory
    stages: int = 6
    #: k16 rows of a scale group of W: 2, 4 or 8; -1: one scale per column
    group_blocks: int = 8
    #: row tiles in a band; a wave walks down a band, then to the next columns
    group_m: int = 8
    #: two warpgroups take turns to multiply, so that one promotes while the other multiplies
    ordered: bool = False
    #: split-K: blocks that share each tile along k, and add up through the workspace
    parts: int = 1
    #: of scales of W, bias and c: "float16" or "bfloat16"
    dtype: str = "float16"
    #: a bias is added at the end
    bias: bool = False
    #: zero points: None (codes are symmetric, 8 means 0) or "integer" (4 bits each, packed)
    zeros: str | None = None
    #: a weight's byte is its code, or its code - 15; x brings what that is too much (``offsets``)
    offsets: bool = False

    def __post_init__(self):
        if self.tile_m % 16 or not 16 <= self.tile_m <= 256:
            raise ValueError(f"tile_m={self.tile_m} must be a multiple of 16 from 16 to 256")
        if self.warpgroups not in (1, 2):
            raise ValueError(f"warpgroups={self.warpgroups} must be 1 or 2")
        if self.tile_n not in (64, 128, 256) or self.tile_n < 64 * self.warpgroups:
            raise ValueError(
                f"tile_n={self.tile_n} must be 64, 128 or 256, with 64 at least for each of"
                f" warpgroups={self.warpgroups}"
            )
        if self.group_blocks not in (-1, 2, 4, 8):
            raise ValueError(
                f"group_blocks={self.group_blocks} must be -1, 2, 4 or 8 (group sizes 32, 64, 128)"
            )
        most = 192 if self.promotes else 256
        if self.strips * self.tile_m > most:
            raise ValueError(
                f"tile_m={self.tile_m} with {self.strips} strips a warp takes"
                f" {self.strips * self.tile_m // 2} accumulators a thread, must be {most // 2} at"
                " most: those that are promoted stand beside their totals"
            )
        if self.ordered and not (self.promotes and self.warpgroups == 2):
            raise ValueError(
                f"ordered=True needs warpgroups={self.warpgroups} to be 2, and sums to promote"
            )
        self.check_parts()
        if self.group_m < 1:
            raise ValueError(f"group_m={self.group_m} must be at least 1")
        if self.dtype not in ("float16", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r} must be float16 or bfloat16")
        if self.zeros not in (None, "integer"):
            raise ValueError(f"zeros={self.zeros!r} must be None or 'integer'")
        if self.offsets and (
            self.activations != "fp8" or self.zeros is not None or self.group_blocks not in (-1, 8)
        ):
            raise ValueError(
                f"offsets=True needs activations={self.activations!r} to be 'fp8',"
                f" zeros={self.zeros!r} None and group_blocks={self.group_blocks} 8 or -1"
            )
        if self.stages < 2:
            raise ValueError(f"stages={self.stages} must be at least 2")
        if self.shared_bytes > SHARED_LIMIT:
            raise TooMuchSharedMemory(
                f"{self.stages} stages of a {self.tile_m} x {self.tile_n} tile take"
                f" {self.shared_bytes} bytes of shared memory, must be {SHARED_LIMIT} at most"
            )

    # ---- what ``wgmma`` has a choice of, and this kernel not: the verbs of ``kernels.hopper`` ask

    @property
    def bits(self):
        return 4

    @property
    def split(self):
        return False

    @property
    def cluster(self):
        return 1

    @property
    def k_groups(self):
        return 1

    @property
    def block_scaled(self):
        return False

    # ---- scales

    @property
    def stage_k(self):
        return STAGE_K

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def promotes(self):
        """Whether sums become totals in fp32 in the main loop: those of scale groups, and all in
        fp8, of ``sum_stages`` at most, for tensor cores keep few of their bits
        (``reference.activations``)."""
        return self.grouped or self.activations == "fp8"

    @property
    def scales_columns(self):
        """Whether scales of W come in the epilogue, from global memory."""
        return not self.grouped

    @property
    def k16_per_scale_row(self):
        return self.group_blocks if self.grouped else self.stage_k16_rows

    @property
    def scale_rows(self):
        """Scale rows, or rows of zero points, of a stage: 1, 2 or 4."""
        return self.stage_k16_rows // self.k16_per_scale_row

    @property
    def products_per_scale(self):
        """Products of k = 32 that have one scale; with one per column, those of a stage."""
        return K32_STEPS // self.scale_rows

    @property
    def sum_stages(self):
        """Stages whose sums the tensor cores add up before they become totals."""
        return COLUMN_SUM_STAGES if self.activations == "fp8" and not self.grouped else 1

    @property
    def loads_ahead(self):
        """Whether the words of the next stage are loaded while the products of one run. With
        several scale rows in a stage ptxas spills (a few bytes, of large tiles)."""
        return self.scale_rows == 1

    @property
    def keeps_offset_scales(self):
        """Whether scales for the offsets are loaded before the main loop, and kept meanwhile, 16
        registers. There is no room beside the sums of more rows, or of two strips."""
        return self.offsets and self.strips == 1 and self.tile_m <= MOST_ROWS_BESIDE_SCALES

    @property
    def unit(self):
        """1 in the units of a weight's byte: a power of two (``elements``)."""
        if self.activations == "fp8":
            return 2.0**-9
        return UNIT if self.zeros is None else 1

    # ---- tiles, warps, registers

    @property
    def strips(self):
        """Strips of one panel that a warp takes."""
        return self.tile_n // (64 * self.warpgroups)

    @property
    def panels(self):
        return self.tile_n // 64

    @property
    def warps_per_panel(self):
        return 4 // self.panels

    @property
    def accumulators(self):
        """Of a thread, for one strip."""
        return self.tile_m // 2

    @property
    def consumer_threads(self):
        return WARPGROUP * self.warpgroups

    @property
    def threads(self):
        return self.consumer_threads + WARPGROUP

    @property
    def producer_registers(self):
        """What the producer's threads keep."""
        return PRODUCER_REGISTERS

    @property
    def consumer_registers(self):
        """As ``WgmmaConfig.consumer_registers``: 240 with two warpgroups; None with one, which has
        248 from the start."""
        if self.warpgroups == 1:
            return None
        launched = HOPPER.registers_per_sm // self.threads // SETMAXNREG_STEP * SETMAXNREG_STEP
        gained = (launched - self.producer_registers) // self.warpgroups
        return launched + gained // SETMAXNREG_STEP * SETMAXNREG_STEP

    # ---- launch

    @property
    def team(self):
        """Blocks that take a tile together, each its part of k."""
        return self.parts

    @property
    def order_of_sums(self):
        """As ``KernelDefinition.order_of_sums``: sums of groups are made by the same products, and
        are added in the order of k, whatever m and the grid; then those of parts, unless they are
        integers, of which every order gives the same."""
        order = SUMS_ORDER.format(self.activations)
        if self.offsets:
            order += ", then offsets"
        return f"{order}, in {self.parts} parts" if self.promotes and self.parts > 1 else order

    def tiles(self, m, n):
        return ceil_div(m, self.tile_m) * ceil_div(n, self.tile_n)

    def workspace_bytes(self, m, n, k, sms):
        return self.parts_workspace(m, n)

    def grid(self, m, n, k, sms):
        if not self.promotes and k > MOST_K:
            raise ValueError(
                f"k={k} must be {MOST_K} at most with one scale per column: its sums have 32 bits"
            )
        steps = ceil_div(k, STAGE_K)
        if steps < self.parts:
            raise ValueError(
                f"parts={self.parts} must be {steps} at most: k={k} has so many steps of {STAGE_K}"
            )
        return (max(1, min(sms // self.parts, self.tiles(m, n))) * self.parts, 1, 1)


@dataclass(frozen=True)
class WgmmaInt8Config(WgmmaBytesConfig):
    """Of ``wgmma_int8``."""

    activations = "int8"


@dataclass(frozen=True)
class WgmmaFp8Config(WgmmaBytesConfig):
    """Of ``wgmma_fp8``."""

    activations = "fp8"


CONFIGS = {each.activations: each for each in (WgmmaInt8Config, WgmmaFp8Config)}

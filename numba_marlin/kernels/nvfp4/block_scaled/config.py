"""The sizes of the block-scaled kernel (``block_scaled``): what can be chosen, and what follows
from it. Pure."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SETMAXNREG_STEP
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

WARPGROUP = 128
MULTIPLIERS = 2  # warpgroups
STEP_K = 128  # of k in a packed stage: 64 bytes a row
ROW_BYTES = STEP_K // 2
BLOCK = 16  # elements along k that share a scale
BOX_COLUMNS = 64  # of C and D: a row of the 128-byte swizzle
SCALE_ROWS = 128
SCALE_BYTES = 2 * 512  # of 128 rows in a packed stage: two tiles of 128 rows by 4 blocks
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
SHARED_LIMIT = HOPPER.shared_bytes_per_block
HELPER_REGISTERS = 24  # of the warps that load and schedule
# tile numbers on their way to the other roles: more, and the first blocks to come take all there
# are
TILE_STAGES = 1

RESULTS = {
    "float16": "halves",
    "bfloat16": "halves",
    "float32": "floats",
    "nvfp4": "blocks",
    "mxfp4": "blocks",
    "mxfp8-e4m3": "blocks",
    "mxfp8-e5m2": "blocks",
}
ACTIVATIONS = (None, "relu", "gelu", "silu", "gated_silu")


@dataclass(frozen=True)
class BlockScaledConfig:
    """A block multiplies tiles of tile_m rows of A by tile_n rows of B."""

    #: rows of a tile: 128 or 256
    tile_m: int = 256
    #: columns of a tile, before gating: 64 or 128
    tile_n: int = 128
    #: packed steps of k = 128 in shared memory
    stages: int = 4
    #: steps of k = 64 of B as halves in shared memory
    expanded_stages: int = 3
    #: row tiles that neighbours in the order of tiles walk through before the next columns
    #: (locality in L2)
    group_m: int = 8
    #: type of D, one of RESULTS
    result: str = "float16"
    #: whether beta * C is added, C of the type of D (16 bits)
    source: bool = False
    #: whether a float32 number is added to every column
    bias: bool = False
    #: one of ACTIVATIONS
    activation: str | None = None
    #: of the scales of MX results: "floor" or "ceil"
    rounding: str = "floor"
    #: of a thread that expands B; those that multiply share what is left
    expander_registers: int = 56

    def __post_init__(self):
        if self.tile_m not in (128, 256):
            raise ValueError(f"tile_m={self.tile_m} must be 128 or 256")
        if self.tile_n not in (64, 128):
            raise ValueError(f"tile_n={self.tile_n} must be 64 or 128")
        if self.result not in RESULTS:
            raise ValueError(f"result={self.result!r} must be one of {', '.join(RESULTS)}")
        if self.source and RESULTS[self.result] != "halves":
            raise ValueError(
                f"source=True with result={self.result!r}: C is read in tiles of 16-bit numbers of"
                " the type of D, float16 or bfloat16"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} must be one of {ACTIVATIONS}")
        if self.gated and self.source:
            raise ValueError(
                "source=True with activation='gated_silu': D has half as many columns as C would"
                " have"
            )
        if self.gated and self.kind == "halves" and self.tile_n != 128:
            raise ValueError(
                f"tile_n={self.tile_n} must be 128 with activation='gated_silu' and"
                f" result={self.result!r}: D is stored 64 columns at a time, half of as many"
            )
        if self.expander_registers % 8 or not 24 <= self.expander_registers <= 128:
            raise ValueError(
                f"expander_registers={self.expander_registers} must be a multiple of 8 from 24"
                " to 128"
            )
        if self.rounding not in ("floor", "ceil"):
            raise ValueError(f"rounding={self.rounding!r} must be 'floor' or 'ceil'")
        if self.stages < 2 or self.expanded_stages < 2:
            raise ValueError(
                f"stages={self.stages} and expanded_stages={self.expanded_stages} must be at"
                " least 2"
            )
        if self.group_m < 1:
            raise ValueError(f"group_m={self.group_m} must be at least 1")
        if self.shared_bytes > SHARED_LIMIT:
            raise TooMuchSharedMemory(
                f"{self.stages} and {self.expanded_stages} stages of a {self.tile_m} x"
                f" {self.tile_n} tile take {self.shared_bytes} bytes of shared memory, must be"
                f" {SHARED_LIMIT} at most"
            )

    @property
    def gated(self):
        return self.activation == "gated_silu"

    @property
    def words(self):
        """m64 blocks of the instruction that a warpgroup multiplies."""
        return self.tile_m // (64 * MULTIPLIERS)

    @property
    def accumulators(self):
        """Sums of an m64 block that a thread holds."""
        return self.tile_n // 2

    @property
    def threads(self):
        """Two warpgroups that multiply, one that expands, one whose warps load and schedule."""
        return WARPGROUP * (MULTIPLIERS + 2)

    @property
    def multiplier_registers(self):
        left = HOPPER.registers_per_sm - WARPGROUP * (HELPER_REGISTERS + self.expander_registers)
        return left // (WARPGROUP * MULTIPLIERS) // SETMAXNREG_STEP * SETMAXNREG_STEP

    @property
    def kind(self):
        return RESULTS[self.result]

    @property
    def d_tile_n(self):
        """Columns of D in a tile."""
        return self.tile_n // 2 if self.gated else self.tile_n

    @property
    def box_bytes(self):
        """Of a tile's rows of C and D in shared memory, BOX_COLUMNS wide."""
        return self.tile_m * 2 * BOX_COLUMNS

    @property
    def boxes(self):
        """Beside each other in a tile of C."""
        return self.tile_n // BOX_COLUMNS

    @property
    def d_boxes(self):
        """Beside each other in a tile of D."""
        return ceil_div(self.d_tile_n, BOX_COLUMNS)

    @property
    def b_shared(self):
        """Where B begins in a packed stage: behind A."""
        return self.tile_m * ROW_BYTES

    @property
    def sfa_shared(self):
        return self.b_shared + self.tile_n * ROW_BYTES

    @property
    def sfb_shared(self):
        return self.sfa_shared + self.tile_m // SCALE_ROWS * SCALE_BYTES

    @property
    def stage_bytes(self):
        """Of a packed stage, all of which is copied; a multiple of ALIGNMENT."""
        return self.sfb_shared + SCALE_BYTES

    @property
    def expanded_shared(self):
        return self.stages * self.stage_bytes

    @property
    def expanded_bytes(self):
        """Of an expanded stage: a row of the 128-byte swizzle for each row of B."""
        return self.tile_n * 128

    @property
    def output_shared(self):
        return self.expanded_shared + self.expanded_stages * self.expanded_bytes

    @property
    def output_bytes(self):
        """A tile of C on its way in and of D on its way out, in the same place, where they have 16
        bits."""
        return self.tile_m * self.tile_n * 2 if self.kind == "halves" else 0

    @property
    def barriers_shared(self):
        """Of the rings of packed stages, of expanded ones, of tile numbers and of C, one behind the
        other."""
        return self.output_shared + self.output_bytes

    @property
    def expanded_barriers(self):
        return self.barriers_shared + barrier_bytes(self.stages)

    @property
    def tile_barriers(self):
        return self.expanded_barriers + barrier_bytes(self.expanded_stages)

    @property
    def source_barriers(self):
        return self.tile_barriers + barrier_bytes(TILE_STAGES)

    @property
    def tiles_shared(self):
        """Tile numbers, a word each."""
        return self.source_barriers + barrier_bytes(1)

    @property
    def shared_bytes(self):
        return self.tiles_shared + 4 * TILE_STAGES + ALIGNMENT

    def tiles(self, m, n):
        return ceil_div(m, self.tile_m) * ceil_div(n, self.tile_n)

    def grid(self, m, n, k, sms):
        tiles = self.tiles(m, n)
        if tiles + sms >= 2**31:
            raise ValueError(
                f"m={m}, n={n} are {tiles} tiles, must be below 2**31: the kernel counts in 32 bits"
            )
        return (min(sms, tiles), 1, 1)

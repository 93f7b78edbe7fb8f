"""The sizes of the Blackwell kernel (``tcgen05``): what can be chosen, and what follows from it.
Pure."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import BLACKWELL
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.block_scales import TILE_BYTES
from numba_marlin.layout.tcgen05 import COLUMNS, KINDS, SCALE_COLUMNS, InstructionDescriptor
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

TILE_M = 128  # rows of a product, all lanes of tensor memory
STAGE_ROW = 128  # bytes of a row in a stage, one row of the 128-byte swizzle
PRODUCTS = 4  # of 32 bytes of k, in a stage
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
SHARED_LIMIT = BLACKWELL.shared_bytes_per_block
EPILOGUE_WARPS = 4
LOAD_WARP, MULTIPLY_WARP = 4, 5
THREADS = 32 * 6
BOX_BYTES = 32 * STAGE_ROW  # of results, a warp's 32 rows
FORMATS = {
    "nvfp4": (("mxf4nvf4", "4X"), "e2m1", "e4m3"),
    "mxfp4": (("mxf4", "2X"), "e2m1", "e8m0"),
    "mxfp8-e4m3": (("mxf8f6f4", "1X"), "e4m3", "e8m0"),
}
RESULT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class Tcgen05Config:
    """A block multiplies tiles of 128 rows of A by tile_n rows of B."""

    #: columns of a tile of D: 128 or 256
    tile_n: int = 128
    #: steps of 128 bytes of k (256 elements of FP4) in shared memory
    stages: int = 4
    #: of A and B, one of FORMATS
    format: str = "nvfp4"
    #: type of D, one of RESULT_BYTES
    result: str = "float16"

    def __post_init__(self):
        if self.tile_n not in (128, 256):
            raise ValueError(f"tile_n={self.tile_n} must be 128 or 256")
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r} must be one of {', '.join(FORMATS)}")
        if self.result not in RESULT_BYTES:
            raise ValueError(f"result={self.result!r} must be one of {', '.join(RESULT_BYTES)}")
        if self.stages < 2:
            raise ValueError(f"stages={self.stages} must be at least 2")
        if self.scales_tensor + self.stages * self.stage_columns > COLUMNS:
            raise ValueError(
                f"stages={self.stages} with tile_n={self.tile_n} take"
                f" {self.scales_tensor + self.stages * self.stage_columns} columns of tensor"
                f" memory, must be {COLUMNS} at most"
            )
        if self.shared_bytes > SHARED_LIMIT:
            raise TooMuchSharedMemory(
                f"{self.stages} stages of a 128 x {self.tile_n} tile take {self.shared_bytes} bytes"
                f" of shared memory, must be {SHARED_LIMIT} at most"
            )

    @property
    def kind(self):
        return KINDS[FORMATS[self.format][0]]

    @property
    def bits(self):
        return self.kind.bits

    @property
    def vectors(self):
        """Scales of a row in a product."""
        return self.kind.vectors

    @property
    def stage_k(self):
        """Elements of k in a stage."""
        return STAGE_ROW * 8 // self.bits

    def instruction_descriptor(self, first):
        """Of products whose scales begin with the ``first`` of the four bytes of a word."""
        _, element, scale = FORMATS[self.format]
        return InstructionDescriptor(self.tile_n, element, element, scale, first, first).encode(
            self.kind
        )

    @property
    def instruction_descriptor_step(self):
        """From one first byte to the next."""
        ids = self.kind.scale_ids
        return (self.instruction_descriptor(ids[-1]) - self.instruction_descriptor(0)) // max(
            1, ids[-1]
        )

    @property
    def scale_tiles(self):
        """Tiles of scales of 128 rows in a stage, along k; a product takes the scales of one, or
        some of them."""
        return PRODUCTS * self.vectors // 4

    @property
    def scale_bytes(self):
        """Of 128 rows in a stage."""
        return self.scale_tiles * TILE_BYTES

    @property
    def n_tiles(self):
        """Tiles of scales of B across a tile's columns."""
        return self.tile_n // 128

    @property
    def accumulators(self):
        """Tiles of sums in tensor memory: the mma warp begins the next while the epilogue reads the
        last, if there is room."""
        return 2 if self.tile_n == 128 else 1

    @property
    def scales_tensor(self):
        """Column behind the sums, where the scales of the stages begin: every stage has its own,
        for nothing orders a copy after the products before it."""
        return self.accumulators * self.tile_n

    @property
    def stage_columns(self):
        return self.scale_tiles * SCALE_COLUMNS * (1 + self.n_tiles)

    @property
    def b_shared(self):
        """Where B begins in a stage; then its scales: those of A, those of B."""
        return TILE_M * STAGE_ROW

    @property
    def sfa_shared(self):
        return self.b_shared + self.tile_n * STAGE_ROW

    @property
    def sfb_shared(self):
        return self.sfa_shared + self.scale_bytes

    @property
    def copied_bytes(self):
        return self.sfb_shared + self.n_tiles * self.scale_bytes

    @property
    def stage_bytes(self):
        return ceil_div(self.copied_bytes, ALIGNMENT) * ALIGNMENT

    @property
    def box_columns(self):
        """Of results, in a box of 128 bytes a row."""
        return STAGE_ROW // RESULT_BYTES[self.result]

    @property
    def results_shared(self):
        return self.stages * self.stage_bytes

    @property
    def load_barriers(self):
        return self.results_shared + EPILOGUE_WARPS * BOX_BYTES

    @property
    def sum_barriers(self):
        return self.load_barriers + barrier_bytes(self.stages)

    @property
    def address_shared(self):
        """Where tcgen05.alloc leaves the address of the block's tensor memory."""
        return self.sum_barriers + barrier_bytes(self.accumulators)

    @property
    def shared_bytes(self):
        return self.address_shared + 16 + ALIGNMENT

    def grid(self, m, n, k, sms):
        return (min(sms, ceil_div(m, TILE_M) * ceil_div(n, self.tile_n)), 1, 1)

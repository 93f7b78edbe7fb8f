"""The sizes of the ``block_mma`` kernel: what can be chosen, and what follows from it. Pure."""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import BLACKWELL_SM120
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.block_scales import TILE_BYTES
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

TILE = 128  # rows of A, and of B, that a block multiplies
STAGE_ROW = 128  # bytes of a row in a stage: 256 elements, one row of the 128-byte swizzle
STAGE_K, STEPS = 256, 4  # of 64 elements each
WARP_ROWS, WARP_COLUMNS = 32, 64
CONSUMERS = 8  # warps: four by two
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # of what a 128-byte swizzle is applied to
SHARED_LIMIT = BLACKWELL_SM120.shared_bytes_per_block
SCALES_OF_A_STEP = {"nvfp4": 4, "mxfp4": 2}
RESULT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class BlockMmaConfig:
    """A block multiplies a tile of 128 rows of A by 128 rows of B."""

    #: of A and B: "nvfp4" or "mxfp4"
    format: str = "nvfp4"
    #: type of D, one of RESULT_BYTES
    result: str = "float16"
    #: steps of k = 256 in shared memory
    stages: int = 2

    def __post_init__(self):
        if self.format not in SCALES_OF_A_STEP:
            raise ValueError(f"format={self.format!r} must be one of {', '.join(SCALES_OF_A_STEP)}")
        if self.result not in RESULT_BYTES:
            raise ValueError(f"result={self.result!r} must be one of {', '.join(RESULT_BYTES)}")
        if self.stages < 2:
            raise ValueError(f"stages={self.stages} must be at least 2")
        if self.shared_bytes > SHARED_LIMIT:
            raise TooMuchSharedMemory(
                f"stages={self.stages} take {self.shared_bytes} bytes of shared memory, must be"
                f" {SHARED_LIMIT} at most"
            )

    @property
    def result_bytes(self):
        return RESULT_BYTES[self.result]

    @property
    def step_scales(self):
        """Scales of a row in a step, 64 elements."""
        return SCALES_OF_A_STEP[self.format]

    @property
    def block(self):
        """Elements that share a scale."""
        return 64 // self.step_scales

    @property
    def scale_tiles(self):
        """Tiles of scales of 128 rows in a stage, along k."""
        return STEPS * self.step_scales // 4

    @property
    def scale_bytes(self):
        """Of 128 rows in a stage."""
        return self.scale_tiles * TILE_BYTES

    @property
    def b_shared(self):
        """Where B begins in a stage; then its scales: those of A, those of B."""
        return TILE * STAGE_ROW

    @property
    def sfa_shared(self):
        return 2 * TILE * STAGE_ROW

    @property
    def sfb_shared(self):
        return self.sfa_shared + self.scale_bytes

    @property
    def stage_bytes(self):
        """All of it is copied."""
        return self.sfb_shared + self.scale_bytes

    @property
    def stage_pitch(self):
        """From stage to stage."""
        return ceil_div(self.stage_bytes, ALIGNMENT) * ALIGNMENT

    @property
    def barriers_shared(self):
        return self.stages * self.stage_pitch

    @property
    def shared_bytes(self):
        return self.barriers_shared + barrier_bytes(self.stages) + ALIGNMENT

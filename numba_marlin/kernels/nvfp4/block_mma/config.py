"""The sizes of the ``block_mma`` kernel: what can be chosen, and what follows from it. Pure.

Shared memory, in bytes, from a multiple of 1024 (ALIGNMENT) on: the stages, ``stage_bytes`` apart,
then the two mbarriers of each, 8 bytes apiece. Results are not staged. A stage, 256 of k::

    0               b_shared = 16384  sfa_shared = 32768      sfb_shared              stage_bytes
    | A: codes      | B: codes        | scales of A           | scales of B           |
    | u8 [128][128] | u8 [128][128]   | u8 [scale_tiles][512] | u8 [scale_tiles][512] |

Codes are in the 128-byte swizzle. A tile of scales, 512 bytes, is [row % 32][row // 32][4], 128
rows by four along k; ``scale_tiles`` is 4 for nvfp4 (64 of k each), 2 for mxfp4 (128).

``stages`` is 2: one is on its way while another is read, and a third does not fit into the 99 KiB
of a thread block on sm_120 (a stage takes 36,864 bytes, of mxfp4 34,816). It is a field all the
same, the ring's in ``declare``; any other number raises.
"""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import BLACKWELL_SM120
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_BYTES
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

TILE = 128  # rows of A, and of B, that a block multiplies
STAGE_ROW = 128  # bytes of a row in a stage: 256 elements, one row of the 128-byte swizzle
STAGE_K = 2 * STAGE_ROW
K64_STEPS = STAGE_K // 64  # of a stage: 64 is the k of a product
WARP_ROWS, WARP_COLUMNS = 32, 64
WARPS_M, WARPS_N = TILE // WARP_ROWS, TILE // WARP_COLUMNS
CONSUMERS = WARPS_M * WARPS_N  # warps that multiply
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # 1024: of what a 128-byte swizzle is applied to
SHARED_LIMIT = BLACKWELL_SM120.shared_bytes_per_block  # 99 KiB
K64_SCALES = {"nvfp4": 4, "mxfp4": 2}  # of a row in 64 of k
RESULT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dataclass(frozen=True)
class BlockMmaConfig:
    """A thread block multiplies a tile of 128 rows of A by 128 rows of B."""

    #: of A and B: "nvfp4" or "mxfp4"
    format: str = "nvfp4"
    #: type of D, one of RESULT_BYTES
    result: str = "float16"
    #: steps of k = 256 in shared memory: 2, no other number passes
    stages: int = 2

    def __post_init__(self):
        if self.format not in K64_SCALES:
            raise ValueError(f"format={self.format!r} must be one of {', '.join(K64_SCALES)}")
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
    def k64_scales(self):
        """Scales of a row in 64 of k."""
        return K64_SCALES[self.format]

    @property
    def scaled(self):
        """Elements, along k, that share a scale."""
        return 64 // self.k64_scales

    @property
    def scale_tiles(self):
        """Of A, or of B, in a stage: 128 rows by four scales each, one after the other along k."""
        return K64_STEPS * self.k64_scales // TILE_BLOCKS

    # launch

    @property
    def threads(self):
        """Of the warps that multiply and the one that loads."""
        return 32 * (CONSUMERS + 1)

    def grid(self, m, n):
        """A block for every tile of D."""
        return (ceil_div(m, TILE) * ceil_div(n, TILE), 1, 1)

    # shared memory: offsets in a stage and in all of it, see the module's docstring

    @property
    def scale_bytes(self):
        """Of 128 rows in a stage."""
        return self.scale_tiles * TILE_BYTES

    @property
    def b_shared(self):
        return TILE * STAGE_ROW

    @property
    def sfa_shared(self):
        return 2 * TILE * STAGE_ROW

    @property
    def sfb_shared(self):
        return self.sfa_shared + self.scale_bytes

    @property
    def stage_bytes(self):
        """All of it is copied. A multiple of ALIGNMENT in both formats, so that the next stage
        begins there."""
        return self.sfb_shared + self.scale_bytes

    @property
    def barriers_shared(self):
        return self.stages * self.stage_bytes

    @property
    def shared_bytes(self):
        """With room to round the start up to ALIGNMENT."""
        return self.barriers_shared + barrier_bytes(self.stages) + ALIGNMENT

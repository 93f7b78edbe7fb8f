"""The sizes of the Blackwell kernel (``tcgen05``): what can be chosen, and what follows from it.
Pure.

Shared memory, in bytes, from a multiple of 1024 (ALIGNMENT) on::

    0          source_shared      results_shared  load_barriers   tile_barriers, then tiles_at,
    | stages   | C               | results       | and those of   | full, empty    address_shared
    | [stages] | [SOURCE_STAGES] | [4 warps]     | sums, of C,    | of tile        | numbers |
    |          | [128][32        | [32][128 B]   | full, empty    | numbers        | address |
    |          |  columns]       |               | of 8 bytes     |                | tensor memory |

Where no C is added it has no stages; a block-scaled D goes straight to global memory, without
results.

A stage, 128 bytes of k (``step_k``: 256 of FP4, 128 of FP8), padded to a multiple of 1024::

    0              b_shared = 16384  sfa_shared             sfb_shared               copied_bytes
    | A: codes     | B: codes        | scales of A          | scales of B                     |
    | u8 [128][128]| u8 [tile_n][128]| u8 [scale_tiles][512]| u8 [n_tiles][scale_tiles][512]  |

Codes are in the 128-byte swizzle. A tile of scales, 512 bytes, is [row % 32][row // 32][4], 128
rows by four along k; scale_tiles, along k, is 4 for nvfp4, 2 for mxfp4, 1 for mxfp8; n_tiles, along
the rows of B, is tile_n / 128, rounded up. Every other tile of 64 or 192 columns begins at row 64
of the first of its tiles of scales, whose tiles are then all copied, and a product is told where
the scales of its own rows begin (``kernel``).

Tensor memory, 128 lanes, in columns of 4 bytes. Of B's tiles of scales those of one k are side by
side here, as a product wants them, in shared memory those of 128 rows, as TMA brings them::

    0                        scales_tensor                                  of 512
    | sums, fp32             | stage 0 | ... | stages - 1, stage_columns each: |
    | [accumulators][tile_n] |   scales of A [scale_tiles], 4 columns each,    |
    | row of D = lane        |   scales of B [scale_tiles][n_tiles], 4 each    |

``stages`` is 2 at least, so that one can be on its way while another is multiplied, and as many at
most as fit into 227 KiB of shared memory; tensor memory would hold more. The most, without C (whose
stages take 16 KiB, or 32 of float32):

    tile_n   nvfp4   mxfp4   mxfp8
    64           7       8       8
    128          5       6       6
    192          4       4       4
    256          3       4       4

(The default, 4, must be changed for tile_n = 256 with nvfp4.) More stages are more bytes on their
way, and columns of tensor memory for their scales; they change nothing else.
"""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import BLACKWELL
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.kernels.nvfp4.block_scaled.config import RESULTS
from numba_marlin.kernels.nvfp4.source import SOURCE_BYTES, checked_c_dtype
from numba_marlin.layout.block_scales import TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from numba_marlin.layout.tcgen05 import (
    COLUMNS,
    K_BYTES,
    KINDS,
    SCALE_COLUMNS,
    InstructionDescriptor,
)
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

TILE_M = 128  # rows of a product, all lanes of tensor memory
STAGE_ROW = 128  # bytes of a row in a stage, one row of the 128-byte swizzle
PRODUCTS = STAGE_ROW // K_BYTES  # of a stage: 4, each of 32 bytes of every row
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # 1024: of what a 128-byte swizzle is applied to
SHARED_LIMIT = BLACKWELL.shared_bytes_per_block  # 227 KiB
EPILOGUE_WARPS = 4
LOAD_WARP, MULTIPLY_WARP, SCHEDULE_WARP, SOURCE_WARP = 4, 5, 6, 7
THREADS = 32 * (EPILOGUE_WARPS + 4)
PART = 32  # columns that an epilogue warp takes from tensor memory at a time, and of C in a stage
SOURCE_STAGES = 2  # of C: one can be on its way while another is added
BOX_BYTES = 32 * STAGE_ROW  # of results: a warp's 32 rows, a row of the swizzle each
# kept for tensor memory's address, 4 bytes, so that with two numbers of tiles it makes 16
ADDRESS_BYTES = 8
# format -> (kind and scale vector size as in layout.tcgen05.KINDS, type of codes, type of scales)
FORMATS = {
    "nvfp4": (("mxf4nvf4", "4X"), "e2m1", "e4m3"),
    "mxfp4": (("mxf4", "2X"), "e2m1", "e8m0"),
    "mxfp8-e4m3": (("mxf8f6f4", "1X"), "e4m3", "e8m0"),
}
RESULT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}  # of those that pass shared memory
ACTIVATIONS = (None, "relu", "gelu", "silu")


@dataclass(frozen=True)
class Tcgen05Config:
    """A thread block multiplies tiles of 128 rows of A by tile_n rows of B."""

    #: columns of a tile of D: 64, 128, 192 or 256
    tile_n: int = 128
    #: steps of 128 bytes of k (256 elements of FP4) in shared memory; with tile_n=256 and nvfp4, 3
    #: at most
    stages: int = 4
    #: of A and B, one of FORMATS
    format: str = "nvfp4"
    #: type of D, one of ``block_scaled.config.RESULTS``
    result: str = "float16"
    #: whether beta * C is added
    source: bool = False
    #: whether a float32 number is added to every column
    bias: bool = False
    #: one of ACTIVATIONS
    activation: str | None = None
    #: type of C, one of SOURCE_BYTES; None: that of D, 16 bits
    c_dtype: str | None = None
    #: of the scales of MX results: "floor" or "ceil"
    rounding: str = "floor"
    #: tiles are numbered down group_m row tiles, then the same rows of the next column tile, and so
    #: on (``tile_order``), so that blocks at work at one time share rows and columns in L2
    group_m: int = 8

    def __post_init__(self):
        if self.tile_n not in (64, 128, 192, 256):
            raise ValueError(f"tile_n={self.tile_n} must be 64, 128, 192 or 256")
        if self.format not in FORMATS:
            raise ValueError(f"format={self.format!r} must be one of {', '.join(FORMATS)}")
        if self.result not in RESULTS:
            raise ValueError(f"result={self.result!r} must be one of {', '.join(RESULTS)}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} must be one of {ACTIVATIONS}")
        c_dtype = checked_c_dtype(self.source, self.c_dtype, self.result)
        object.__setattr__(self, "c_dtype", c_dtype)
        if self.rounding not in ("floor", "ceil"):
            raise ValueError(f"rounding={self.rounding!r} must be 'floor' or 'ceil'")
        if self.group_m < 1:
            raise ValueError(f"group_m={self.group_m} must be at least 1")
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
    def tile_m(self):
        return TILE_M

    @property
    def kind(self):
        """Of the product, as PTX calls it."""
        return KINDS[FORMATS[self.format][0]]

    @property
    def bits(self):
        return self.kind.bits

    @property
    def scales_per_product(self):
        """Of a row: 4, 2 or 1 (PTX: the 4 of scale_vec::4X)."""
        return self.kind.vectors

    @property
    def step_k(self):
        """Elements of k in a step of the main loop, a stage."""
        return STAGE_ROW * 8 // self.bits

    @property
    def tile_stages(self):
        """Tile numbers on their way from the scheduler to the other roles: the mma warp begins a
        tile while the epilogue has the one before, and the loads may be one further."""
        return 2

    @property
    def scaled(self):
        """Whether D is block-scaled."""
        return RESULTS[self.result] == "scaled"

    @property
    def source_dtype(self):
        """Type of C; None if there is none."""
        return (self.c_dtype or self.result) if self.source else None

    @property
    def source_bytes(self):
        """Of an element of C; 0 if there is none."""
        return SOURCE_BYTES[self.source_dtype] if self.source else 0

    @property
    def source_stages(self):
        """Of C's ring; 0 if there is none."""
        return SOURCE_STAGES if self.source else 0

    @property
    def source_row(self):
        """Bytes of a row of C in a stage, and of the swizzle that it is in: 64 or 128."""
        return PART * self.source_bytes

    @property
    def source_stage_bytes(self):
        return TILE_M * self.source_row

    @property
    def result_bytes(self):
        """Of an element of D; 0 if it is block-scaled."""
        return RESULT_BYTES.get(self.result, 0)

    def instruction_descriptor(self, scale_byte):
        """The 32 bits of a product of 128 rows (M, the class's only one) whose scales, of A and of
        B, begin with that byte of their words."""
        _, element, scale = FORMATS[self.format]
        return InstructionDescriptor(
            n=self.tile_n,
            a=element,
            b=element,
            scale=scale,
            sfa_id=scale_byte,
            sfb_id=scale_byte,
        ).encode(self.kind)

    @property
    def scale_byte_step(self):
        """What to add to an instruction descriptor for every byte that scales begin later: 1 in its
        field of A's scales and 1 in that of B's. The bytes that they may begin with, the kind's
        ``scale_ids``, are 0 and 2 for mxfp4, 0 to 3 for mxfp8; for nvfp4 0 only, and this is 0."""
        last = self.kind.scale_ids[-1]
        if last == 0:
            return 0
        return (self.instruction_descriptor(last) - self.instruction_descriptor(0)) // last

    @property
    def scale_tiles(self):
        """Of A, or of 128 rows of B, in a stage, along k: four scales of each row. A product takes
        all four, or two or one of them."""
        return PRODUCTS * self.scales_per_product // TILE_BLOCKS

    @property
    def scale_bytes(self):
        """Of 128 rows in a stage."""
        return self.scale_tiles * TILE_BYTES

    @property
    def row_bytes(self):
        """Of a row of codes in a stage."""
        return STAGE_ROW

    @property
    def n_tiles(self):
        """Tiles of scales that cover the rows of B in a stage, tile_n, wherever these begin."""
        return ceil_div(self.tile_n, TILE_ROWS)

    @property
    def shifts_scales(self):
        """Whether a tile may begin in the middle of a tile of B's scales, at its row 64."""
        return self.tile_n % TILE_ROWS != 0

    @property
    def accumulators(self):
        """Tiles of sums in tensor memory: the mma warp begins the next while the epilogue reads the
        last, if there is room: two of 256 columns would leave none for scales, two of 192 room for
        those of two stages."""
        return 2 if self.tile_n <= 128 else 1

    @property
    def scales_tensor(self):
        """Column behind the sums, where the scales of the stages begin: every stage has columns of
        its own, for nothing orders a copy after the products before it (``kernel``)."""
        return self.accumulators * self.tile_n

    @property
    def stage_columns(self):
        """Of tensor memory, for the scales of a stage."""
        return self.scale_tiles * SCALE_COLUMNS * (1 + self.n_tiles)

    @property
    def b_shared(self):
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
        """Of D: what an epilogue warp finishes at a time; of a D that is not block-scaled a row of
        128 bytes."""
        return PART if self.scaled else STAGE_ROW // self.result_bytes

    @property
    def source_shared(self):
        return self.stages * self.stage_bytes

    @property
    def results_shared(self):
        return self.source_shared + SOURCE_STAGES * self.source_stage_bytes

    @property
    def load_barriers(self):
        return self.results_shared + (0 if self.scaled else EPILOGUE_WARPS * BOX_BYTES)

    @property
    def sum_barriers(self):
        return self.load_barriers + barrier_bytes(self.stages)

    @property
    def source_barriers(self):
        return self.sum_barriers + barrier_bytes(self.accumulators)

    @property
    def tile_barriers(self):
        return self.source_barriers + barrier_bytes(SOURCE_STAGES)

    @property
    def tiles_at(self):
        """Where tile numbers are published, 4 bytes each."""
        return self.tile_barriers + barrier_bytes(self.tile_stages)

    @property
    def address_shared(self):
        """Where tcgen05.alloc leaves the address of the block's tensor memory."""
        return self.tiles_at + 4 * self.tile_stages

    @property
    def shared_bytes(self):
        """With room to round the start up to ALIGNMENT."""
        return self.address_shared + ADDRESS_BYTES + ALIGNMENT

    def grid(self, m, n, sms):
        """No more blocks than tiles: ``schedule`` relies on it."""
        tiles = ceil_div(m, TILE_M) * ceil_div(n, self.tile_n)
        if tiles + sms >= 2**31:
            raise ValueError(
                f"m={m}, n={n} are {tiles} tiles, must be below 2**31: the kernel counts in 32 bits"
            )
        return (min(sms, tiles), 1, 1)

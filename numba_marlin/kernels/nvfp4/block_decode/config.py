"""The sizes of the ``block_decode`` kernel: what can be chosen, and what follows from it. Pure.

Shared memory, in bytes, from a multiple of 1024 (ALIGNMENT) on. Behind the ring of stages lie the
partial sums of the epilogue, in memory of their own, for a warp that has finished leaves its sums
while others still read stages; last the mbarriers::

    0                                      sums_shared               barriers_shared
    | stage 0 | stage 1 | ... | stages - 1 | sums, fp32              | [stages]        |
    |         |         |     |            | [k_warps][tokens][PITCH]| full, empty     |
    |         |         |     |            |                         | of 8 bytes each |

A stage, 256 of k::

    0                a_shared = 16384    sfb_shared       sfa_shared       stage_bytes
    | B: codes       | A: codes          | scales of B    | scales of A    |
    | u8 [128][128]  | u8 [tokens][128]  | u8 [4 tiles]   | u8 [4 tiles]   |
    | 16384          | 128 * tokens      | 2048           | 2048           |

Codes are in the 128-byte swizzle. A tile of scales is 512 bytes, [row % 32][row // 32][4] of 128
rows and 64 of k; of A's 128 rows the block needs its ``tokens``, which a tile cannot be cut to.

``stages`` is a multiple of k_warps / 2, since so many stages are multiplied side by side and each
must always have the same warps: a wait names a phase by its parity alone, so a warp that came to a
stage only every other round could not tell the phase it waits for from the one two before. It is 2
at least, so that one stage can be on its way while another is read, and as many at most as shared
memory holds, 227 KiB on Hopper. The most:

    tokens   stage_bytes   with k_warps = 2   4   8
    8        21504                       10   8   8
    16       22528                        9   8   4
    32       24576                        7   6   -

More stages are more bytes on their way and change nothing else. ``choose`` takes k_warps of them,
and the fewest allowed where a caller changes k_warps.
"""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.kernels.nvfp4.block_scaled.config import ACTIVATIONS as ALL_ACTIVATIONS
from numba_marlin.layout.block_scales import TILE_BYTES
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

SCALED = 16  # elements of NVFP4, along k, that share a scale
COLUMNS = 128  # rows of B, columns of D, of a thread block: those of a tile of scales
STAGE_ROW = 128  # bytes of a row in a stage: 256 elements, one row of the 128-byte swizzle
STAGE_K = 2 * STAGE_ROW
RUNS = 2  # of a stage, each 128 of k: what a warp multiplies at a time
STAGE_SCALE_TILES = 4  # of 128 rows in a stage: 128 rows by 64 of k each
SCALE_BYTES = STAGE_SCALE_TILES * TILE_BYTES
WARPS_N, WARP_COLUMNS = 2, 64  # warps side by side along n, and the rows of B of each
M16_TILES = WARP_COLUMNS // 16  # of B in a warp: rows of ``mma.m16n8k16``
STAGE_READERS = WARPS_N * RUNS  # warps that multiply a stage
# Sums of a token in shared memory, with the gap. 8 more than 128, so that tokens t = 0 .. 3, which
# a warp writes at once, begin 8 banks apart, and its eight columns of each fill what lies between.
PITCH = COLUMNS + 8
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # 1024: of what a 128-byte swizzle is applied to
SHARED_LIMIT = HOPPER.shared_bytes_per_block  # 227 KiB
RESULT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
ACTIVATIONS = tuple(each for each in ALL_ACTIVATIONS if each != "gated_silu")


@dataclass(frozen=True)
class BlockDecodeConfig:
    """A thread block multiplies 128 rows of B by ``tokens`` rows of A."""

    #: rows of A: 8, 16 or 32
    tokens: int = 8
    #: pairs of warps that share the k of a block, a slice each: 2, 4 or 8
    k_warps: int = 4
    #: blocks that share the whole k (split-K), a cluster: 1, 2, 4 or 8
    split: int = 1
    #: steps of k = 256 in shared memory
    stages: int = 4
    #: type of D, one of RESULT_BYTES
    result: str = "float16"
    #: whether beta * C is added, C of the type of D (16 bits)
    source: bool = False
    #: whether a float32 number is added to every column
    bias: bool = False
    #: one of ACTIVATIONS
    activation: str | None = None

    def __post_init__(self):
        if self.tokens not in (8, 16, 32):
            raise ValueError(f"tokens={self.tokens} must be 8, 16 or 32")
        if self.k_warps not in (2, 4, 8):
            raise ValueError(f"k_warps={self.k_warps} must be 2, 4 or 8")
        if self.split not in (1, 2, 4, 8):
            raise ValueError(f"split={self.split} must be 1, 2, 4 or 8, blocks of a cluster")
        if self.tokens == 32 and self.k_warps == 8:
            raise ValueError(
                "tokens=32 with k_warps=8: their sums and four stages do not fit into shared memory"
                " together"
            )
        if self.result not in RESULT_BYTES:
            raise ValueError(f"result={self.result!r} must be one of {', '.join(RESULT_BYTES)}")
        if self.source and self.result == "float32":
            raise ValueError(
                "source=True with result='float32': C is read as 16-bit numbers of the type of D,"
                " float16 or bfloat16"
            )
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} must be one of {ACTIVATIONS}")
        if self.stages < 2 or self.stages % self.stages_at_once:
            raise ValueError(
                f"stages={self.stages} must be at least 2 and a multiple of k_warps / {RUNS} ="
                f" {self.stages_at_once}: a stage always has the same warps, for who skips a"
                " phase of a barrier cannot tell it from the one after the next"
            )
        if self.shared_bytes > SHARED_LIMIT:
            raise TooMuchSharedMemory(
                f"stages={self.stages} with tokens={self.tokens} and k_warps={self.k_warps} take"
                f" {self.shared_bytes} bytes of shared memory, must be {SHARED_LIMIT} at most"
            )

    @property
    def gated(self):
        return False

    @property
    def tile_m(self):
        return self.tokens

    @property
    def tile_n(self):
        return COLUMNS

    @property
    def n8_tiles(self):
        """Of tokens: columns of ``mma.m16n8k16``."""
        return self.tokens // 8

    @property
    def result_bytes(self):
        return RESULT_BYTES[self.result]

    @property
    def consumers(self):
        """Warps that multiply."""
        return WARPS_N * self.k_warps

    @property
    def stages_at_once(self):
        """Stages that a block's warps multiply side by side; a warp goes on by so many."""
        return self.k_warps // RUNS

    # registers of a lane: see the record Operands of ``kernel``

    @property
    def b_rows(self):
        """Rows of B of which a lane has codes: two of each m16 tile."""
        return 2 * M16_TILES

    @property
    def b_words(self):
        """[row of B][4]"""
        return 4 * self.b_rows

    @property
    def a_words(self):
        """[n8 tile][4]: a lane has codes of one token of each."""
        return 4 * self.n8_tiles

    @property
    def fragment_words(self):
        """[n8 tile][2]: tokens, expanded, 16 of k"""
        return 2 * self.n8_tiles

    @property
    def sums(self):
        """Accumulators: [m16 tile][n8 tile][4]."""
        return 4 * M16_TILES * self.n8_tiles

    # launch

    @property
    def threads(self):
        return 32 * (self.consumers + 1)

    # shared memory: offsets in a stage and in all of it, see the module's docstring

    @property
    def a_shared(self):
        return COLUMNS * STAGE_ROW

    @property
    def sfb_shared(self):
        return self.a_shared + self.tokens * STAGE_ROW

    @property
    def sfa_shared(self):
        return self.sfb_shared + SCALE_BYTES

    @property
    def stage_bytes(self):
        """All of it is copied; a multiple of ALIGNMENT."""
        return self.sfa_shared + SCALE_BYTES

    @property
    def sums_shared(self):
        return self.stages * self.stage_bytes

    @property
    def sums_bytes(self):
        """Of one slice of k."""
        return self.tokens * PITCH * 4

    @property
    def barriers_shared(self):
        return self.sums_shared + self.k_warps * self.sums_bytes

    @property
    def shared_bytes(self):
        """With room to round the start up to ALIGNMENT."""
        return self.barriers_shared + barrier_bytes(self.stages) + ALIGNMENT

    def grid(self, m, n):
        """Clusters are (split, 1, 1)."""
        return (ceil_div(n, COLUMNS) * self.split, ceil_div(m, self.tokens), 1)

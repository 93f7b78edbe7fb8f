"""The sizes of the ``block_decode`` kernel: what can be chosen, and what follows from it. Pure."""

from dataclasses import dataclass

from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.kernels.nvfp4.block_scaled.config import ACTIVATIONS as ALL_ACTIVATIONS
from numba_marlin.kernels.nvfp4.block_scaled.config import ALIGNMENT, SHARED_LIMIT
from numba_marlin.layout.block_scales import TILE_BYTES

COLUMNS = 128  # rows of B, columns of D, of a block: those of a tile of scales
STAGE_ROW = 128  # bytes of a row in a stage: 256 elements, one row of the 128-byte swizzle
STAGE_K = 2 * STAGE_ROW
SCALE_BYTES = 4 * TILE_BYTES  # of 128 rows in a stage: four tiles of 128 rows by 4 blocks
ROW_WARPS, WARP_COLUMNS = 2, 64  # warps beside each other, and the rows of B of each
WARP_BLOCKS = WARP_COLUMNS // 16  # m16 blocks of the instruction that a warp has
CHUNKS = 2  # of a stage: 128 of k, as much as a warp multiplies at a time
# numbers of a row of partial sums: lanes that write at once meet different banks
PITCH = COLUMNS + 8
RESULT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
ACTIVATIONS = tuple(each for each in ALL_ACTIVATIONS if each != "gated_silu")


@dataclass(frozen=True)
class BlockDecodeConfig:
    """A block multiplies 128 rows of B by ``tokens`` rows of A."""

    #: rows of A: 8, 16 or 32
    tokens: int = 8
    #: pairs of warps that share the k of a block: 2, 4 or 8
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
                f"stages={self.stages} must be at least 2 and a multiple of k_warps / {CHUNKS} ="
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
    def token_blocks(self):
        """n8 blocks of the instruction."""
        return self.tokens // 8

    @property
    def result_bytes(self):
        return RESULT_BYTES[self.result]

    @property
    def consumers(self):
        """Warps that multiply."""
        return ROW_WARPS * self.k_warps

    @property
    def stages_at_once(self):
        """Stages that the warps of a block multiply side by side."""
        return self.k_warps // CHUNKS

    # registers of a lane

    @property
    def b_rows(self):
        """Rows of B of which it has a share of k."""
        return 2 * WARP_BLOCKS

    @property
    def b_words(self):
        """Of codes."""
        return 4 * self.b_rows

    @property
    def a_words(self):
        """Of codes: it has a share of a row of A for each n8 block."""
        return 4 * self.token_blocks

    @property
    def fragment_words(self):
        """Of A, expanded, 16 of k."""
        return 2 * self.token_blocks

    @property
    def sums(self):
        """Accumulators: [m16 block of B][n8 block of tokens][4]."""
        return 4 * WARP_BLOCKS * self.token_blocks

    # launch

    @property
    def threads(self):
        return 32 * (self.consumers + 1)

    # shared memory

    @property
    def a_shared(self):
        """Where A begins in a stage, behind B; then come the scales, B's first."""
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
        """Partial sums: for each share of k, a row for each token."""
        return self.stages * self.stage_bytes

    @property
    def sums_bytes(self):
        """Of one share of k."""
        return self.tokens * PITCH * 4

    @property
    def barriers_shared(self):
        return self.sums_shared + self.k_warps * self.sums_bytes

    @property
    def shared_bytes(self):
        return self.barriers_shared + barrier_bytes(self.stages) + ALIGNMENT

    def grid(self, m, n):
        return (ceil_div(n, COLUMNS) * self.split, ceil_div(m, self.tokens), 1)

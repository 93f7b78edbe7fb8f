"""The sizes of the block-scaled kernel (``block_scaled``): what can be chosen, and what follows
from it. Pure.

Shared memory, from a base that is a multiple of 1024 (offsets in bytes, for the default
configuration; on the right the property that says where a part begins: those in ``_shared`` count
from the start of a packed stage, ``_at`` and ``_barriers`` from the base):

         0  packed stage s at 27648 s, s = 0 .. 3                         ``stage_bytes``: 27648
                   0  A's codes   [256 rows][64 bytes]           plain
               16384  B's codes   [128 rows][64 bytes]           64-byte swizzle    ``b_shared``
               24576  A's scales  [2 of 128 rows][2 of 64 k][512]                 ``sfa_shared``
               26624  B's scales  [1 of 128 rows][2 of 64 k][512]                 ``sfb_shared``
    110592  expanded stage s at 16384 s more, s = 0 .. 2                         ``expanded_at``
                   0  B as fp16   [128 rows][128 bytes = 64 k]   128-byte swizzle
    159744  D of 16 bits, and C of its type before it (others: absent)             ``output_at``
                   0  [2 panels][256 rows][128 bytes = 64 columns]  128-byte swizzle
    225280  barriers, full and empty, 8 bytes each, of every stage:          ``packed_barriers``
            4 packed, 3 expanded, 1 tile number, 1 C
    225424  the tile number, 4 bytes                                                ``tiles_at``
    226452  ``shared_bytes``: with 1024 for rounding the base up; an SM of an H100 or H200 has
            232448 for a thread block (``SHARED_LIMIT``)

Scales come in 128x4 tiles of 512 bytes, 128 rows by 4 scale blocks, 64 of k (``nvfp4.load`` says
what is where in one); a packed stage has two side by side, 8 scale blocks, for every 128 rows.

In a swizzle the 16-byte chunk c of row r lies where chunk c ^ (r mod 8) would (128 bytes) or
c ^ (r div 2 mod 4) (64 bytes). So the eight lanes that shared memory serves at once with 16 bytes
each meet all 32 banks: rows 128 bytes apart in eight chunks (expanded stages; C and D by ldmatrix
and stmatrix); of B's codes two rows lie in 128 bytes, and the four such pairs of eight rows each in
another chunk of either half. A's codes need none: eight lanes read two rows, 128 bytes in one
piece. Reads of scales do conflict, B's 4 ways (4 bytes, 16 apart) and A's 2 ways: accepted, as they
are two and four loads per thread in a packed step.

Stages: at least two of each kind, since the mma warps wait for a stage while they still hold the
one before (``multiply``), with one for ever; at most what fits in ``SHARED_LIMIT``, bytes in all
being

    1024 + 4 + stages * (packed + 16) + expanded_stages * (expanded + 16) + tile of D + 2 * 16

    tile         packed   expanded   tile of D, 16 bits   at most (stages, expanded_stages)
    256 x 128    27648    16384      65536                (4, 3), (3, 5), (2, 6)
    128 x 128    18432    16384      32768                (8, 3), (7, 4), (6, 5) .. (2, 9)
    256 x 64     23552     8192      32768                (7, 4), (6, 6), (5, 9) .. (2, 18)
    128 x 64     14336     8192      16384                (13, 3), (12, 5), (11, 6) .. (2, 22)

A D that is float32 or block-scaled has no tile in shared memory: (7, 2), (6, 3), (5, 5) .. (2, 10)
for 256 x 128. Any numbers between are right, odd ones too: they change offsets, barriers, when the
rings go round and how far ahead the loader and expand may be (``kernel``), nothing else. Their
effect on speed: for 256 x 128 (4, 3) and (3, 4) were compared and are equal within noise; no other
pairs were (``choose`` has the figures).
"""

from dataclasses import dataclass

from numba_marlin.hardware.architectures import HOPPER
from numba_marlin.hardware.limits import SETMAXNREG_STEP
from numba_marlin.kernels.language.definition import TooMuchSharedMemory, ceil_div
from numba_marlin.kernels.language.pipeline import barrier_bytes
from numba_marlin.kernels.nvfp4.source import SOURCE_BYTES, checked_c_dtype
from numba_marlin.layout.block_scales import TILE_BYTES
from numba_marlin.layout.tensor_map import SWIZZLE_PATTERN_BYTES

WARPGROUP_THREADS = 128
MMA_WARPGROUPS = 2  # of a thread block's four
STEP_K = 128  # of k in a packed stage: 64 bytes a row
ROW_BYTES = STEP_K // 2
SCALE_BLOCK = 16  # elements along k that share a scale
# of a panel: 64 columns of a tile of C or D, all its rows; a row is 128 bytes, the 128-byte swizzle
PANEL_COLUMNS = 64
SCALE_ROWS = 128  # of a 128x4 tile of scales
SCALE_BYTES = 2 * TILE_BYTES  # of 128 rows in a packed stage: two 128x4 tiles, side by side along k
ALIGNMENT = SWIZZLE_PATTERN_BYTES  # 1024: where a 128-byte swizzle begins to repeat
# bytes that a thread block can have, 232448
SHARED_LIMIT = HOPPER.shared_bytes_per_block
LOAD_REGISTERS = 24  # per thread of the warps that load and schedule

# types of D -> how it is stored (``kind``): halves, fp16 and bf16; floats; scaled, codes and scales
RESULTS = {
    "float16": "halves",
    "bfloat16": "halves",
    "float32": "floats",
    "nvfp4": "scaled",
    "mxfp4": "scaled",
    "mxfp8-e4m3": "scaled",
    "mxfp8-e5m2": "scaled",
}
ACTIVATIONS = (None, "relu", "gelu", "silu", "gated_silu")


@dataclass(frozen=True)
class BlockScaledConfig:
    """A thread block multiplies tiles of tile_m rows of A by tile_n rows of B."""

    #: rows of a tile: 128 or 256
    tile_m: int = 256
    #: columns of a tile, before gating: 64 or 128
    tile_n: int = 128
    #: packed steps of k = 128 in shared memory
    stages: int = 4
    #: stages of B as fp16 in shared memory, 64 of k each
    expanded_stages: int = 3
    #: tiles are numbered down group_m row tiles, then the same rows of the next column tile, and so
    #: on (``tile_order``), so that thread blocks at work at one time share rows and columns in L2
    group_m: int = 8
    #: type of D, one of RESULTS
    result: str = "float16"
    #: whether beta * C is added (C: the source)
    source: bool = False
    #: whether a float32 number is added to every column
    bias: bool = False
    #: one of ACTIVATIONS
    activation: str | None = None
    #: of the scales of MX results: "floor" or "ceil"
    rounding: str = "floor"
    #: registers per thread that expands B, at most the 128 of the launch, of which it can only give
    #: up some; mma threads share what is left: 216 for 56, of which 128 are accumulators
    expander_registers: int = 56
    #: type of C, one of SOURCE_BYTES; None: that of D, 16 bits. C of D's 16-bit type comes by way
    #: of shared memory, any other straight from global memory, 2 columns per lane at a time
    c_dtype: str | None = None

    def __post_init__(self):
        if self.tile_m not in (128, 256):
            raise ValueError(f"tile_m={self.tile_m} must be 128 or 256")
        if self.tile_n not in (64, 128):
            raise ValueError(f"tile_n={self.tile_n} must be 64 or 128")
        if self.result not in RESULTS:
            raise ValueError(f"result={self.result!r} must be one of {', '.join(RESULTS)}")
        c_dtype = checked_c_dtype(self.source, self.c_dtype, self.result)
        object.__setattr__(self, "c_dtype", c_dtype)
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
        # with one stage the mma warps would wait for the next while they hold it, for ever
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
    def source_tiles(self):
        """Whether tiles of C come to where D's will stand, by a warp that loads them."""
        return self.source and self.c_dtype is None

    @property
    def source_bytes(self):
        """Of an element of C that comes another way; 0 if there is none."""
        return SOURCE_BYTES[self.c_dtype] if self.c_dtype else 0

    @property
    def m64_blocks(self):
        """m64 blocks of a warpgroup: 64 rows of the tile, wgmma's m."""
        return self.tile_m // (64 * MMA_WARPGROUPS)

    @property
    def accumulators(self):
        """Sums of an m64 block that a thread holds."""
        return self.tile_n // 2

    @property
    def step_k(self):
        """Of k in a step of the main loop, a packed stage."""
        return STEP_K

    @property
    def tile_stages(self):
        """Tile numbers on their way to the other roles: with more, a thread block would take tiles
        from the counter long before it can work on them, and others that are ready sooner would
        find none."""
        return 1

    @property
    def threads(self):
        """Of a thread block: two mma warpgroups, one that expands, one that loads and schedules."""
        return WARPGROUP_THREADS * (MMA_WARPGROUPS + 2)

    @property
    def mma_registers(self):
        """Per thread: what the other two warpgroups leave of an SM's 65536, shared out."""
        left = HOPPER.registers_per_sm - WARPGROUP_THREADS * (
            LOAD_REGISTERS + self.expander_registers
        )
        return left // (WARPGROUP_THREADS * MMA_WARPGROUPS) // SETMAXNREG_STEP * SETMAXNREG_STEP

    @property
    def kind(self):
        return RESULTS[self.result]

    @property
    def d_tile_n(self):
        """Columns of D in a tile."""
        return self.tile_n // 2 if self.gated else self.tile_n

    @property
    def panel_bytes(self):
        """Of a panel of C or D in shared memory, [tile_m][PANEL_COLUMNS] 16-bit numbers. C comes
        a panel at a time; D is copied out 16 rows of a panel at a time."""
        return self.tile_m * 2 * PANEL_COLUMNS

    @property
    def panels(self):
        """Panels beside each other in a tile of C."""
        return self.tile_n // PANEL_COLUMNS

    @property
    def d_panels(self):
        """Panels beside each other in a tile of D."""
        return ceil_div(self.d_tile_n, PANEL_COLUMNS)

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
        """Of a packed stage, all of which is copied; a multiple of ALIGNMENT. B has the scales of
        128 rows, also where tile_n is 64 and half of them belong to another tile."""
        return self.sfb_shared + SCALE_BYTES

    @property
    def copied_bytes(self):
        return self.stage_bytes

    @property
    def row_bytes(self):
        """Of a row of codes in a packed stage."""
        return ROW_BYTES

    @property
    def scale_tiles(self):
        """Of 128 rows in a packed stage, along k."""
        return SCALE_BYTES // TILE_BYTES

    @property
    def expanded_at(self):
        return self.stages * self.stage_bytes

    @property
    def expanded_bytes(self):
        """Of an expanded stage: a row of the 128-byte swizzle for each row of B."""
        return self.tile_n * 128

    @property
    def output_at(self):
        return self.expanded_at + self.expanded_stages * self.expanded_bytes

    @property
    def output_bytes(self):
        """A tile of C on its way in and of D on its way out, in the same place, where they have 16
        bits. (A gated D uses half of it.)"""
        return self.tile_m * self.tile_n * 2 if self.kind == "halves" else 0

    @property
    def packed_barriers(self):
        """The ring's of packed stages; behind them those of expanded ones, of tile numbers and of
        C."""
        return self.output_at + self.output_bytes

    @property
    def expanded_barriers(self):
        return self.packed_barriers + barrier_bytes(self.stages)

    @property
    def tile_barriers(self):
        return self.expanded_barriers + barrier_bytes(self.expanded_stages)

    @property
    def source_barriers(self):
        return self.tile_barriers + barrier_bytes(self.tile_stages)

    @property
    def tiles_at(self):
        """Where tile numbers are published, 4 bytes each."""
        return self.source_barriers + barrier_bytes(1)

    @property
    def shared_bytes(self):
        return self.tiles_at + 4 * self.tile_stages + ALIGNMENT

    def tiles(self, m, n):
        return ceil_div(m, self.tile_m) * ceil_div(n, self.tile_n)

    def grid(self, m, n, k, sms):
        tiles = self.tiles(m, n)
        if tiles + sms >= 2**31:
            raise ValueError(
                f"m={m}, n={n} are {tiles} tiles, must be below 2**31: the kernel counts in 32 bits"
            )
        # no more thread blocks than tiles: ``schedule`` relies on it
        return (min(sms, tiles), 1, 1)

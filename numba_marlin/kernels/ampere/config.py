"""The sizes of ``ampere``: what can be chosen, what follows from it, and where things lie in shared
memory. Pure. The words (tile, tile column, slice ...) are those of ``kernel``'s docstring.

Shared memory, in bytes, with what it holds over time::

    0                   b_at                scales_at                 shared_bytes
    | A, stage by stage | B, stage by stage | scales, stage by stage | main loop
    | sums of warps; then a sum of blocks;  | per-column scales      | epilogue
    | then the result: each begins at 0     |                        |

What takes the place of A and B may be longer than they are: a tile of 64 rows and 256 columns has
64 KiB of sums, three stages of A and B 48. Per-column scales arrive meanwhile, so scales lie behind
the longest of these. They use the first of the ``stages`` slots alone; those of groups use all.
(``output`` says which barriers keep apart what takes the same place.)

A stage of A is [tile_m rows][a_row_chunks] chunks of 16 bytes (8 fp16 along k), swizzled; of B
[thread_k_blocks k16 rows][b_row_chunks] chunks; of scales [groups_per_tile][s_row_chunks] chunks (8
fp16, of 8 columns: those of lanes 4 g to 4 g + 3, if groups have scales).

*B.* A chunk is a lane's four words of 16 x 64 weights; 32 chunks, lane by lane, hold 64 columns. A
block copies warps_k k16 rows of a tile with one instruction, and the other warps_k with a second.
So thread number 32 (warp_n + warps_n warp_k) + lane copies chunk 32 warp_n + lane of k16 rows
warp_k and warp_k + warps_k: just what it multiplies, and it reads its own copies where it put them.

*Swizzle.* Shared memory has 32 banks of 4 bytes. It serves 16 bytes per lane in phases, eight lanes
at a time, and without conflict if these touch every bank once. Rows of A lie 128 or 256 bytes
apart, whole turns of the banks, so chunks c and c + 8 of any row share banks. A write of a copy
(``cp.async``) is eight neighbouring chunks of one row, without conflict in any case. A read
(``ldmatrix``) is the same chunk c of eight rows, which would be in the same four banks. With chunk
c of row r at c ^ (r % 8), the eight are in eight places; and so are those of a write, for r is the
same. Rows of further copies and m16 blocks are multiples of 8 further down: r % 8 stays.
"""

from dataclasses import dataclass

from numba_marlin.kernels.language.definition import ceil_div

THREADS = 256
WARPS = THREADS // 32
# k16 rows of a tile that one warp multiplies: the two halves of the register double buffer
HALVES = 2
# to share a tile column costs a block about the time of so many tiles (m = 128, 8192 x 8192: 50.4
# us with 128 blocks, 55.3 with 132)
SHARING_TILES = 6
CHUNK = 16  # bytes of one cp.async, one ldmatrix row, one lane's packed weights


@dataclass(frozen=True)
class AmpereConfig:
    """What can be chosen; the properties follow from it."""

    #: rows of a tile of C, in units of 16
    thread_m_blocks: int = 1
    #: columns of a tile of C, in units of 16
    thread_n_blocks: int = 8
    #: depth of a step of the main loop, in units of 16 along k
    thread_k_blocks: int = 8
    #: k16 rows that share a scale; -1: one scale per column
    group_blocks: int = 8
    #: tiles in shared memory (``wait_for_stage`` says what is in which). At least 3 for speed: with
    #: 2 a step waits for the copies that it has just begun, which is correct but hides nothing;
    #: with 1 they would overwrite the tile that is being read
    stages: int = 4
    #: n and k need not fill whole tiles: zero-fill their tails
    ragged: bool = False
    #: blocks of the grid that an SM holds; two only if tiles have a single m16 block: the registers
    #: of more are too many for two
    blocks_per_sm: int = 1
    #: every slice is a whole tile column, so that no blocks share a tile of C: not Marlin's way (no
    #: stream-K), but the same bits for a row whatever m
    whole: bool = False

    def __post_init__(self):
        if not 1 <= self.thread_m_blocks <= 4:
            raise ValueError(f"thread_m_blocks={self.thread_m_blocks} must be 1 to 4")
        if (self.thread_n_blocks, self.thread_k_blocks) not in ((8, 8), (16, 4)):
            raise ValueError(
                f"(thread_n_blocks, thread_k_blocks)=({self.thread_n_blocks},"
                f" {self.thread_k_blocks}) must be (8, 8) or (16, 4)"
            )
        if self.group_blocks not in (-1, 2, 4, 8):
            raise ValueError(
                f"group_blocks={self.group_blocks} must be -1, 2, 4 or 8 (group sizes 32, 64, 128)"
            )
        if self.stages < 3:
            raise ValueError(
                f"stages={self.stages} must be at least 3: one tile multiplies, one has landed, the"
                " others are in flight"
            )
        if not 1 <= self.blocks_per_sm <= (2 if self.thread_m_blocks == 1 else 1):
            raise ValueError(
                f"blocks_per_sm={self.blocks_per_sm} must be 1, or 2 with thread_m_blocks=1: blocks"
                " that share a tile column must all be resident"
            )

    # tiles and warps

    @property
    def tile_m(self):
        """Rows of a tile of C."""
        return 16 * self.thread_m_blocks

    @property
    def tile_n(self):
        """Columns of a tile of C."""
        return 16 * self.thread_n_blocks

    @property
    def tile_k(self):
        """Depth of a step along k."""
        return 16 * self.thread_k_blocks

    @property
    def warps_n(self):
        """Warps side by side along n, 64 columns each."""
        return self.thread_n_blocks // 4

    @property
    def warps_k(self):
        """Warps that share columns and divide the k16 rows of a tile among them, HALVES each."""
        return WARPS // self.warps_n

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def groups_per_tile(self):
        return max(1, self.thread_k_blocks // self.group_blocks) if self.grouped else 1

    # shared memory

    @property
    def a_row_chunks(self):
        return 2 * self.thread_k_blocks

    @property
    def a_stage_bytes(self):
        return self.tile_m * self.a_row_chunks * CHUNK

    @property
    def a_rows_per_copy(self):
        """Rows of A that the block's threads copy with one instruction."""
        return THREADS // self.a_row_chunks

    @property
    def a_copies(self):
        return ceil_div(self.tile_m, self.a_rows_per_copy)

    @property
    def b_row_chunks(self):
        return 8 * self.thread_n_blocks

    @property
    def b_stage_bytes(self):
        return self.thread_k_blocks * self.b_row_chunks * CHUNK

    @property
    def b_rows_per_copy(self):
        return THREADS // self.b_row_chunks

    @property
    def s_row_chunks(self):
        return 2 * self.thread_n_blocks

    @property
    def s_stage_bytes(self):
        return self.scale_chunks * CHUNK

    @property
    def scale_chunks(self):
        """Of one tile; a thread each."""
        return self.groups_per_tile * self.s_row_chunks

    @property
    def result_row_bytes(self):
        """Of a row of the result on its way out: an odd number of chunks, so that rows g = 0 .. 7
        begin four banks apart, and the words of a fragment (lane 4 g + t: row g, word t) lie in 32
        different banks."""
        return (2 * self.thread_n_blocks + 1) * CHUNK

    @property
    def partial_bytes(self):
        """A tile of C in fp32."""
        return self.tile_m * self.tile_n * 4

    @property
    def b_at(self):
        return self.stages * self.a_stage_bytes

    @property
    def scales_at(self):
        """Behind A and B, and behind what the epilogue puts in their place."""
        pipeline = self.b_at + self.stages * self.b_stage_bytes
        reduction = self.warps_k // 2 * self.partial_bytes
        result = self.tile_m * self.result_row_bytes
        return max(pipeline, reduction, result)

    @property
    def shared_bytes(self):
        return self.scales_at + self.stages * self.s_stage_bytes

    # registers of a lane

    @property
    def a_fragment_words(self):
        return HALVES * self.thread_m_blocks * 4

    @property
    def b_fragment_words(self):
        return HALVES * 4

    @property
    def s_fragment_words(self):
        return HALVES * 4

    @property
    def c_fragment_floats(self):
        """Accumulators: [m16 block][n8 block][4]."""
        return self.thread_m_blocks * 8 * 4

    # launch

    @property
    def order_of_sums(self):
        """Which k16 rows each warp adds up; where blocks share a tile column, that depends on where
        it is cut, so on m."""
        return (
            f"whole tile columns, tiles {self.thread_n_blocks} x {self.thread_k_blocks}"
            if self.whole
            else None
        )

    def grid(self, m, n, k, sms):
        """(blocks, 1, 1) for a device of that many SMs."""
        k_tiles = ceil_div(k, self.tile_k)
        tiles = k_tiles * ceil_div(n, self.tile_n) * ceil_div(m, self.tile_m)
        blocks = min(sms * self.blocks_per_sm, tiles)
        if tiles + blocks > 2**32:
            raise ValueError(
                f"m={m}, n={n}, k={k} are {tiles} tiles for {blocks} blocks, must be 2**32 at most"
                " together: the kernel counts in 32 bits"
            )
        if self.whole:
            return (min(sms * self.blocks_per_sm, tiles // k_tiles), 1, 1)
        # A few blocks less, with stripes of whole tile columns, if their share is longer by at most
        # the price of sharing and a 31st of it. The kernel works the share out from the grid, all
        # equal: it must come out as whole tile columns again.
        share = ceil_div(tiles, blocks)
        whole_share = ceil_div(share, k_tiles) * k_tiles
        fewer = ceil_div(tiles, whole_share)
        if (
            share < whole_share <= share + SHARING_TILES
            and whole_share * 31 <= share * 32
            and ceil_div(tiles, fewer) == whole_share
        ):
            blocks = fewer
        return (blocks, 1, 1)

    def workspace_bytes(self, m, n, k, sms):
        """(bytes of partial sums, bytes of locks): one tile of C and one lock per block, which is
        enough (``output``)."""
        blocks = 0 if self.whole else self.grid(m, n, k, sms)[0]
        return blocks * self.partial_bytes, blocks * 4

"""The sizes of ``ampere``: what can be chosen, what follows from it, and where things lie in shared
memory. Pure. The words (tile, tile column, slice ...) are those of ``kernel``'s docstring.

Shared memory, in bytes, with what it holds over time::

    0                   b_at                scales_at                 shared_bytes
    | A, stage by stage | B, stage by stage | scales, stage by stage | main loop
    | sums of warps; then the sum of the    | per-column scales      | epilogue
    | blocks below; then the result: each   |                        |
    | begins at 0                           |                        |

What takes the place of A and B may be longer than they are (an output tile of 64 rows and 256
columns has 64 KiB of sums, three stages of A and B 48): scales_at is behind the longest of these,
with a gap behind B then, so that per-column scales can arrive meanwhile. They use the first of the
``stages`` slots alone (the others, 256 or 512 bytes each, stay empty: one formula for both kinds);
scales of groups use all. (``output`` has the shapes of what the epilogue keeps there, and says
which barriers keep apart what takes the same place.)

A stage is, in chunks of 16 bytes:

=======  ==================================  ======================================================
A        [tile_m][a_row_chunks], swizzled    a row's tile_k fp16; a chunk is 8 of k
B        [thread_k_blocks][b_row_chunks]     k16 rows; 16 x 64 weights are 32 chunks, one per lane,
                                             in the order of lanes: a chunk is a lane's four words
scales   [groups_per_tile][s_row_chunks]     a chunk is 8 fp16, in the order of ``kernel``: columns
                                             g + 8 i (i = 0 .. 7) of 64, for lanes 4 g to 4 g + 3;
                                             per column 8 r + 2 t + e of 32, for lanes of that t
=======  ==================================  ======================================================

*Who copies what of B.* The block copies warps_k k16 rows of a tile with one instruction, and the
other warps_k with a second: those of half 0 and of half 1. Thread number 32 (warp_n + warps_n
warp_k) + lane copies chunk 32 warp_n + lane of k16 rows warp_k and warp_k + warps_k: just what it
multiplies, and it reads its own copies where it put them.

*Banks.* Shared memory has 32 banks of 4 bytes. It serves 16 bytes per lane in phases, eight lanes
at a time, and without conflict if these touch every bank once; lanes that read the same address
count as one. A phase of a write to A (``cp.async``) is eight neighbouring chunks of one row,
without conflict in any case. A phase of a read (``ldmatrix``) is the same chunk c of eight rows,
and rows lie 128 or 256 bytes apart, whole turns of the banks: chunk c of every row would be in the
same four banks. With chunk c of row r at c ^ (r % 8), the *XOR swizzle*, the eight are in eight
places. (A write's eight chunks, of one row, it only permutes.) Rows of further copies and m16
blocks are multiples of 8 further down, so r % 8 and the swizzle are constants of a thread. Nothing
else needs a swizzle:

- B, sums of warps, the sum of the blocks below: a lane's 16 bytes lie beside its neighbour's.
- scales: a phase reads two chunks (g), or four (t), neighbours, which several lanes share.
- the result: ``result_row_bytes`` for its writes; a read is eight neighbouring chunks of one row.
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
# fewer blocks may make stripes longer by a 31st of their length with all blocks, no more: 128
# instead of 132 blocks make them longer by a 32nd (132 / 128 = 33 / 32), which is allowed
LONGER_BY_ONE_IN = 31
CHUNK = 16  # bytes of one cp.async, one ldmatrix row, one lane's packed weights


@dataclass(frozen=True)
class AmpereConfig:
    """What can be chosen; the properties follow from it."""

    #: rows of an output tile, in units of 16. (The original's name: m16 blocks of a thread block,
    #: not of a thread; so for n and k)
    thread_m_blocks: int = 1
    #: columns of an output tile, in units of 16
    thread_n_blocks: int = 8
    #: depth of a step of the main loop, in units of 16 along k. Eight warps, each with four units
    #: of columns and HALVES of k, make thread_n_blocks * thread_k_blocks = 64; the original has the
    #: shapes (8, 8), deep, and (16, 4), wide
    thread_k_blocks: int = 8
    #: k16 rows of a scale group; -1: one scale per column
    group_blocks: int = 8
    #: tiles in shared memory (``steps_from`` says what is in which). Any number from 3 on, no
    #: power of two needed, that fits. At least 3, for speed: with 2 a step would wait for the
    #: copies that it has just begun, which is correct but hides nothing; with 1 they would
    #: overwrite the tile that is being read. At most what fits: ``shared_bytes`` of a block
    #: (``heuristics.candidates`` checks it for the device; two blocks per SM share what the SM has,
    #: ``choose.configuration``). Most stages, with groups of 128 (groups of 32: up to one less)::
    #:
    #:     sm_                  86, 89, 120   80        90, 100
    #:     shared_bytes, most   99 KiB        163 KiB   227 KiB
    #:     deep, 16 rows        8             13        18
    #:     deep, 64 rows        4             6         9
    #:     wide, 16 rows        9             15        21
    #:     wide, 64 rows        6             9         13
    #:
    #: Each stage more keeps one more tile in flight, and makes the code longer by one step
    stages: int = 4
    #: n and k need not fill whole tiles: zero-fill their tails
    ragged: bool = False
    #: blocks of the grid per SM. All must be resident at once, for they wait for each other
    #: (``output``). Two fit only if tiles have a single m16 block: accumulators of more take too
    #: many registers
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
                f"stages={self.stages} must be at least 3: with 2, a step would wait for the copies"
                " that it has just begun"
            )
        if not 1 <= self.blocks_per_sm <= (2 if self.thread_m_blocks == 1 else 1):
            raise ValueError(
                f"blocks_per_sm={self.blocks_per_sm} must be 1, or 2 with thread_m_blocks=1: blocks"
                " that share a tile column must all be resident"
            )

    # tiles and warps

    @property
    def tile_m(self):
        """Rows of an output tile."""
        return 16 * self.thread_m_blocks

    @property
    def tile_n(self):
        """Columns of an output tile."""
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
        """Scale groups of a tile, along k; 1 also where a scale group has several tiles."""
        return max(1, self.thread_k_blocks // self.group_blocks) if self.grouped else 1

    # shared memory

    @property
    def a_row_chunks(self):
        """Chunks of a row of a tile of A, tile_k fp16."""
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
        """Chunks of a k16 row of a tile: half a chunk per column."""
        return 8 * self.thread_n_blocks

    @property
    def b_stage_bytes(self):
        return self.thread_k_blocks * self.b_row_chunks * CHUNK

    @property
    def b_k16_rows_per_copy(self):
        """k16 rows that the block's threads copy with one instruction: warps_k."""
        return THREADS // self.b_row_chunks

    @property
    def s_row_chunks(self):
        """Chunks of a row of scales, those of a tile's columns in one scale group."""
        return 2 * self.thread_n_blocks

    @property
    def s_stage_bytes(self):
        return self.scale_chunks * CHUNK

    @property
    def scale_chunks(self):
        """Chunks of one tile's scales; each is copied by one thread."""
        return self.groups_per_tile * self.s_row_chunks

    @property
    def result_row_bytes(self):
        """Bytes from one row of the result to the next, in shared memory: an odd number of chunks.
        So rows g = 0 .. 7 begin four banks apart, and the words that a warp writes at a time (lane
        4 g + t writes word t of a chunk of row g) lie in 32 different banks."""
        return (2 * self.thread_n_blocks + 1) * CHUNK

    @property
    def partial_bytes(self):
        """Bytes of an output tile in fp32."""
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
    def weight_words(self):
        return HALVES * 4

    @property
    def scale_words(self):
        return HALVES * 4

    @property
    def c_fragment_floats(self):
        """Accumulators: [m16 block][n8 block][4]."""
        return self.thread_m_blocks * 8 * 4

    # launch

    @property
    def order_of_sums(self):
        """A key (``KernelDefinition.order_of_sums``): configurations with the same one add up a
        row's products in the same order. None where blocks share output tiles: then the order
        depends on where tile columns are cut, so on m."""
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
        # Fewer blocks, with stripes of whole tile columns, if that makes stripes longer by at most
        # the price of sharing, SHARING_TILES, and one tile in LONGER_BY_ONE_IN, and if the share
        # that the kernel works out, ceil(tiles / fewer), is those whole tile columns too.
        share = ceil_div(tiles, blocks)
        whole_share = ceil_div(share, k_tiles) * k_tiles
        fewer = ceil_div(tiles, whole_share)
        if (
            share < whole_share <= share + SHARING_TILES
            and (whole_share - share) * LONGER_BY_ONE_IN <= share
            and ceil_div(tiles, fewer) == whole_share
        ):
            blocks = fewer
        return (blocks, 1, 1)

    def workspace_bytes(self, m, n, k, sms):
        """(bytes of partial sums, bytes of locks): one output tile and one lock per block, which is
        enough (``output``)."""
        blocks = 0 if self.whole else self.grid(m, n, k, sms)[0]
        return blocks * self.partial_bytes, blocks * 4

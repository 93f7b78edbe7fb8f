"""The sizes of the faithful kernel (``ampere``): what can be chosen, and what follows from it.
Pure."""

from dataclasses import dataclass

from numba_marlin.kernels.language.definition import ceil_div

THREADS = 256
WARPS = THREADS // 32
# k16 steps of a tile that one warp multiplies: the two halves of the register double buffer
STEPS = 2
# to share a slice costs a block about the time of so many tiles (m = 128, 8192 x 8192: 50.4 us with
# 128 blocks, 55.3 with 132)
SHARING_TILES = 6
CHUNK = 16  # bytes of one cp.async, one ldmatrix row, one lane's packed weights


@dataclass(frozen=True)
class AmpereConfig:
    """Tile of a block in units of 16: thread_m_blocks x thread_n_blocks of C, thread_k_blocks deep.
    group_blocks: k16 rows that share a scale, -1 for per-column scales. stages: tiles in shared
    memory. ragged: zero-fill the tails of n and k. blocks_per_sm: how many blocks of the grid a
    multiprocessor holds (a second one needs half of its registers: a single m16 block). whole:
    stripes are whole slices, which no other block shares: not Marlin's way, but the same bits for a
    row whatever m."""

    thread_m_blocks: int = 1
    thread_n_blocks: int = 8
    thread_k_blocks: int = 8
    group_blocks: int = 8
    stages: int = 4
    ragged: bool = False
    blocks_per_sm: int = 1
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
                " that share a slice must all be resident"
            )

    @property
    def order_of_sums(self):
        """Which k16 rows each warp adds up; where slices are shared that depends on where they are
        cut, so on m."""
        return (
            f"whole slices, tiles {self.thread_n_blocks} x {self.thread_k_blocks}"
            if self.whole
            else None
        )

    @property
    def warps_n(self):
        return self.thread_n_blocks // 4

    @property
    def warps_k(self):
        return WARPS // self.warps_n

    @property
    def grouped(self):
        return self.group_blocks != -1

    @property
    def groups_per_tile(self):
        return max(1, self.thread_k_blocks // self.group_blocks) if self.grouped else 1

    @property
    def a_row_chunks(self):
        return 2 * self.thread_k_blocks

    @property
    def a_stage_bytes(self):
        return 16 * self.thread_m_blocks * self.a_row_chunks * CHUNK

    @property
    def b_row_chunks(self):
        return 8 * self.thread_n_blocks

    @property
    def b_stage_bytes(self):
        return self.thread_k_blocks * self.b_row_chunks * CHUNK

    @property
    def s_row_chunks(self):
        return 2 * self.thread_n_blocks

    @property
    def s_stage_bytes(self):
        return self.groups_per_tile * self.s_row_chunks * CHUNK

    @property
    def result_row_bytes(self):
        # one chunk of padding: the fragments' writes touch every bank once
        return (2 * self.thread_n_blocks + 1) * CHUNK

    @property
    def partial_bytes(self):
        return 16 * self.thread_m_blocks * 16 * self.thread_n_blocks * 4

    @property
    def shared_bytes(self):
        pipeline = self.stages * (self.a_stage_bytes + self.b_stage_bytes)
        reduction = self.warps_k // 2 * self.partial_bytes
        result = 16 * self.thread_m_blocks * self.result_row_bytes
        return max(pipeline, reduction, result) + self.stages * self.s_stage_bytes

    def grid(self, m, n, k, sms):
        k_tiles = ceil_div(k, 16 * self.thread_k_blocks)
        tiles = (
            k_tiles
            * ceil_div(n, 16 * self.thread_n_blocks)
            * ceil_div(m, 16 * self.thread_m_blocks)
        )
        blocks = min(sms * self.blocks_per_sm, tiles)
        if tiles + blocks > 2**32:
            raise ValueError(
                f"m={m}, n={n}, k={k} are {tiles} tiles for {blocks} blocks, must be 2**32 at most"
                " together: the kernel counts in 32 bits"
            )
        if self.whole:
            return (min(sms * self.blocks_per_sm, tiles // k_tiles), 1, 1)
        share = ceil_div(tiles, blocks)
        whole = ceil_div(share, k_tiles) * k_tiles
        fewer = ceil_div(tiles, whole)
        # Stripes of whole slices, on a few blocks less; unless those, of equal shares again, would
        # cut slices after all.
        if (
            share < whole <= share + SHARING_TILES
            and whole * 31 <= share * 32
            and ceil_div(tiles, fewer) == whole
        ):
            blocks = fewer
        return (blocks, 1, 1)

    def workspace_bytes(self, m, n, k, sms):
        blocks = 0 if self.whole else self.grid(m, n, k, sms)[0]
        return blocks * self.partial_bytes, blocks * 4

"""Which rows of a routing a tile has, for kernels that are ragged over experts.

The rows of an expert are its pairs, ``pairs[offsets[e]]`` up to ``pairs[offsets[e + 1]]`` without
it. They are cut into *row blocks* of ``block_rows``, the last of which may be shorter; no row is
padded, and an expert without pairs has none. Row blocks are numbered expert by expert.

How many there are only the routing says, which is in device memory. So every block of threads first
adds up the experts' row blocks into a table in shared memory (``count_row_blocks``, one warp, a
lane for each few experts), and finds the expert of a row block by halving it (``expert_of``). Two
tables of [experts + 1] words: ``table``, row blocks before each expert's, and ``offsets``, pairs.
"""

from numba_marlin.hardware.limits import WARP_LANES
from numba_marlin.kernels.language.definition import ceil_div

MOST_EXPERTS = 1024
WORD_BYTES = 4
GATED_STEP = 128  # of n, with an activation


class RoutedConfig:
    """What configurations of such kernels share: fields ``experts``, ``top_k``, ``combine`` and
    ``activation`` are theirs, and ``block_rows`` and ``tables_at``, where in shared memory the
    tables begin."""

    def check_experts(self):
        if not 1 <= self.experts <= MOST_EXPERTS:
            raise ValueError(f"experts={self.experts} must be 1 to {MOST_EXPERTS}")
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k={self.top_k} must be 1 to experts={self.experts}")
        if self.activation is not None and self.combine:
            raise ValueError(f"activation={self.activation!r} must be without combine")

    @property
    def gated(self):
        return self.activation is not None

    def check_columns(self, n):
        if self.gated and n % GATED_STEP:
            raise ValueError(
                f"n={n} must be a multiple of {GATED_STEP} with activation={self.activation!r}:"
                " gate and up are whole panels of 64 columns"
            )

    @property
    def table_at(self):
        return self.tables_at

    @property
    def offsets_at(self):
        return self.table_at + WORD_BYTES * (self.experts + 1)

    @property
    def tables_end(self):
        return self.offsets_at + WORD_BYTES * (self.experts + 1)

    @property
    def experts_per_lane(self):
        """Experts whose row blocks a lane counts, one after the other."""
        return ceil_div(self.experts, WARP_LANES)

    @property
    def search_steps(self):
        """Halvings until one expert is left."""
        return (self.experts - 1).bit_length()

    # ---- m: tokens

    def pairs_of(self, m):
        return m * self.top_k

    def most_row_blocks(self, m):
        """Row blocks of the worst routing: every expert that has a pair may have a short block."""
        pairs = self.pairs_of(m)
        short = min(self.experts, pairs)
        return short + (pairs - short) // self.block_rows


def table_verbs(lang, config):
    """-> namespace of device functions."""
    cuda, ptx, uint32 = lang.cuda, lang.ptx, lang.uint32
    cfg = lang.constants(config)

    @lang.device
    def row_blocks_of(pairs):
        return (pairs + (cfg.block_rows - 1)) // cfg.block_rows

    @lang.device
    def count_row_blocks(offsets, table, shared_offsets, lane):
        """One warp: offsets, [experts + 1] in global memory, to shared memory, and there the table
        of how many row blocks are before each expert's."""
        counts = cuda.local.array(cfg.experts_per_lane, uint32)
        first = lane * cfg.experts_per_lane
        own = 0
        for i in range(cfg.experts_per_lane):
            counts[i] = 0
            expert = first + i
            if expert < cfg.experts:
                begin = ptx.ld_global_b32(offsets + WORD_BYTES * expert)
                end = ptx.ld_global_b32(offsets + WORD_BYTES * (expert + 1))
                ptx.st_shared_b32(shared_offsets + WORD_BYTES * (expert + 1), end)
                counts[i] = row_blocks_of(end - begin)
                own += counts[i]
        through = own  # sum of this lane's and all before it
        for i in range(5):
            other = ptx.shfl_sync_idx(through, (lane - (1 << i)) % WARP_LANES)
            if lane >= 1 << i:
                through += other
        before = through - own
        for i in range(cfg.experts_per_lane):
            expert = first + i
            before += counts[i]
            if expert < cfg.experts:
                ptx.st_shared_b32(table + WORD_BYTES * (expert + 1), before)
        if lane == 0:
            ptx.st_shared_b32(table, 0)
            ptx.st_shared_b32(shared_offsets, 0)

    @lang.device
    def expert_of(row_block, table):
        """The expert of a row block: the last one with no more than so many before it. (Those after
        it with as many have none; one with as many before it has none either.)"""
        low, high = 0, cfg.experts
        for _ in range(cfg.search_steps):
            middle = (low + high) // 2
            if ptx.ld_shared_b32(table + WORD_BYTES * middle) <= row_block:
                low = middle
            else:
                high = middle
        return low

    return lang.namespace("tables", count_row_blocks=count_row_blocks, expert_of=expert_of)

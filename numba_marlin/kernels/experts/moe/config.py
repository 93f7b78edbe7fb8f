"""The sizes of ``moe``: those of ``decode``, and what a mixture of experts adds. Pure."""

from dataclasses import dataclass

from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.experts.tables import GATED_STEP, RoutedConfig
from numba_marlin.kernels.language.definition import ceil_div


@dataclass(frozen=True)
class MoeConfig(RoutedConfig, DecodeConfig):
    """``batch``: most rows of a tile, all of one expert."""

    #: experts whose weights are in b
    experts: int = 8
    #: experts of a token
    top_k: int = 2
    #: x has a row for each pair of a token and an expert, not for each token
    x_of_pairs: bool = False
    #: rows of c are left in fp32, for ``sum_experts`` to add up a token's; else they are rounded
    combine: bool = False
    #: None, or of ``reference.experts.ACTIVATIONS``: c has n / 2 columns, activation(gate) * up
    activation: str | None = None

    def __post_init__(self):
        super().__post_init__()
        self.check_experts()

    @property
    def block_rows(self):
        return self.batch

    # ---- shared memory: the tables behind the barriers of decode

    @property
    def tables_at(self):
        return super().shared_bytes

    @property
    def shared_bytes(self):
        return self.tables_end

    # ---- launch. m: tokens

    def steps(self, m, n, k):
        """Steps of a launch, at most: the routing says how many there are."""
        tiles = ceil_div(n, self.columns) * self.most_row_blocks(m)
        return tiles * ceil_div(k, self.stage_k)

    def grid(self, m, n, k, sms):
        """(blocks, 1, 1): no more than the most steps."""
        self.check_columns(n)
        blocks = min(sms * self.blocks_per_sm, self.steps(m, n, k))
        if self.steps(m, n, k) + blocks > 2**32:
            raise ValueError(
                f"m={m}, n={n}, k={k} may be {self.steps(m, n, k)} steps, must be less than 2**32:"
                " the kernel counts in 32 bits"
            )
        return (blocks, 1, 1)

    @property
    def lock_bytes(self):
        """Of the locks of tiles that a block shares."""
        return 4 * self.consumers

    def workspace_bytes(self, m, n, k, sms):
        """(partial results of shared tiles and, with ``activation``, each pair's result in fp32;
        locks: those of shared tiles and, with ``activation``, a counter for each pair, which may
        begin a row block, 64 columns of gate and their owner warp)."""
        partials, locks = super().workspace_bytes(m, n, k, sms)
        if self.gated:
            partials += self.pairs_of(m) * n * 4
            locks += self.pairs_of(m) * (n // GATED_STEP) * self.owners * 4
        return partials, locks

"""The sizes of ``moe_wgmma_int8`` and ``moe_wgmma_fp8``: those of ``kernels.w4a8``, and what a
mixture of experts adds. Pure."""

from dataclasses import dataclass

from numba_marlin.kernels.experts.tiles import RoutedTiles
from numba_marlin.kernels.w4a8.config import MOST_K, WgmmaBytesConfig

LEAST_LOADED_AHEAD = 64


@dataclass(frozen=True)
class MoeBytesConfig(RoutedTiles, WgmmaBytesConfig):
    """``tile_m``: most rows of a tile, all of one expert. Of either type of activations."""

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
        if self.parts > 1:
            raise ValueError(f"parts={self.parts} must be 1: a block has whole tiles")
        self.check_experts()
        if self.gated:
            self.check_gated()

    @property
    def loads_ahead(self):
        """As the dense kernel's, but not in tiles of 16 and 32 rows, which took 3 to 14% longer
        with it, where tiles from 64 rows on took up to 7% less (Mixtral 8x7B and Qwen3-30B-A3B,
        40 products, an H200, 2026-11-29). Why, nobody found out: the dense kernel's small tiles
        gain."""
        return super().loads_ahead and self.tile_m >= LEAST_LOADED_AHEAD

    def grid(self, m, n, k, sms):
        if not self.promotes and k > MOST_K:
            raise ValueError(
                f"k={k} must be {MOST_K} at most with one scale per column: its sums have 32 bits"
            )
        return super().grid(m, n, k, sms)


@dataclass(frozen=True)
class MoeInt8Config(MoeBytesConfig):
    """Of ``moe_wgmma_int8``."""

    activations = "int8"


@dataclass(frozen=True)
class MoeFp8Config(MoeBytesConfig):
    """Of ``moe_wgmma_fp8``."""

    activations = "fp8"


CONFIGS = {each.activations: each for each in (MoeInt8Config, MoeFp8Config)}

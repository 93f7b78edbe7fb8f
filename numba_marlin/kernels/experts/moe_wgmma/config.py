"""The sizes of ``moe_wgmma``: those of ``wgmma``, and what a mixture of experts adds. Pure."""

from dataclasses import dataclass

from numba_marlin.kernels.experts.tiles import RoutedTiles
from numba_marlin.kernels.wgmma.config import WgmmaConfig


@dataclass(frozen=True)
class MoeWgmmaConfig(RoutedTiles, WgmmaConfig):
    """``tile_m``: most rows of a tile, all of one expert."""

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
        if self.cluster > 1 or self.parts > 1 or self.k_groups > 1:
            raise ValueError(
                f"cluster={self.cluster}, parts={self.parts} and k_groups={self.k_groups} must be"
                " 1: tiles are shared by stripes alone (split)"
            )
        if not self.grouped and self.zeros == "float16":
            raise ValueError("zeros='float16' must have groups: group_blocks=-1 has none")
        if self.gated:
            self.check_gated()

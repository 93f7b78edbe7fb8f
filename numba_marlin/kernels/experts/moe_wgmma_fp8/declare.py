"""What others want to know of the kernel ``moe_wgmma_fp8``, beside it."""

from numba_marlin.kernels.experts.w4a8.config import MoeFp8Config
from numba_marlin.kernels.experts.w4a8.definition import shared
from numba_marlin.kernels.language.definition import KernelDefinition

KERNEL = KernelDefinition(
    name="moe_wgmma_fp8",
    summary=(
        "W4A8 of a mixture: experts' INT4 times e4m3 rows gathered from x, wgmma at the 8-bit rate"
    ),
    # below ``moe_wgmma``: views show the last of a kind if none is named
    rung=4,
    config_type=MoeFp8Config,
    **shared(MoeFp8Config),
)

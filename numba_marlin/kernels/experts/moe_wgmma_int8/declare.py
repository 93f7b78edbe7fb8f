"""What others want to know of the kernel ``moe_wgmma_int8``, beside it."""

from numba_marlin.kernels.experts.w4a8.config import MoeInt8Config
from numba_marlin.kernels.experts.w4a8.definition import shared
from numba_marlin.kernels.language.definition import KernelDefinition

KERNEL = KernelDefinition(
    name="moe_wgmma_int8",
    summary=(
        "W4A8 of a mixture: experts' INT4 times int8 rows gathered from x, wgmma at the 8-bit rate"
    ),
    # below ``moe_wgmma``: views show the last of a kind if none is named
    rung=5,
    config_type=MoeInt8Config,
    **shared(MoeInt8Config),
)

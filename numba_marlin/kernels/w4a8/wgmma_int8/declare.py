"""What others want to know of the kernel ``wgmma_int8``, beside it."""

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.w4a8.config import WgmmaInt8Config
from numba_marlin.kernels.w4a8.definition import shared

KERNEL = KernelDefinition(
    name="wgmma_int8",
    summary="W4A8 on Hopper: Marlin's bytes times int8 activations, wgmma at the 8-bit rate",
    rung=10,
    config_type=WgmmaInt8Config,
    **shared(WgmmaInt8Config),
)

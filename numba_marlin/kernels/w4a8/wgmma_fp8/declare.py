"""What others want to know of the kernel ``wgmma_fp8``, beside it."""

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.w4a8.config import WgmmaFp8Config
from numba_marlin.kernels.w4a8.definition import shared

KERNEL = KernelDefinition(
    name="wgmma_fp8",
    summary="W4A8 on Hopper: Marlin's bytes times e4m3 activations, wgmma at the 8-bit rate",
    rung=20,
    config_type=WgmmaFp8Config,
    **shared(WgmmaFp8Config),
)

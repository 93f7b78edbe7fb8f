"""What others want to know of the kernel ``wgmma_fp8``, beside it."""

from numba_marlin.kernels.w4a8.config import WgmmaFp8Config
from numba_marlin.kernels.w4a8.definition import defined

KERNEL = defined(
    "wgmma_fp8",
    "W4A8 on Hopper: Marlin's bytes times e4m3 activations, wgmma at the 8-bit rate",
    20,
    WgmmaFp8Config,
)

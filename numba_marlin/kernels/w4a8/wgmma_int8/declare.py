"""What others want to know of the kernel ``wgmma_int8``, beside it."""

from numba_marlin.kernels.w4a8.config import WgmmaInt8Config
from numba_marlin.kernels.w4a8.definition import defined

KERNEL = defined(
    "wgmma_int8",
    "W4A8 on Hopper: Marlin's bytes times int8 activations, wgmma at the 8-bit rate",
    10,
    WgmmaInt8Config,
)

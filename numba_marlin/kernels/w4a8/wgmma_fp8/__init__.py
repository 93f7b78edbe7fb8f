"""The kernel ``wgmma_fp8``: that of ``kernels.w4a8`` for e4m3 activations."""

from numba_marlin.kernels.w4a8.config import WgmmaFp8Config
from numba_marlin.kernels.w4a8.wgmma_fp8.declare import KERNEL

__all__ = ["KERNEL", "WgmmaFp8Config"]

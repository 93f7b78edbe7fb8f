"""The kernel ``wgmma_int8``: that of ``kernels.w4a8`` for int8 activations."""

from numba_marlin.kernels.w4a8.config import WgmmaInt8Config
from numba_marlin.kernels.w4a8.wgmma_int8.declare import KERNEL

__all__ = ["KERNEL", "WgmmaInt8Config"]

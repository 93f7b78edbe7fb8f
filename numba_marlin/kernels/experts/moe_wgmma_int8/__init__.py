"""The kernel ``moe_wgmma_int8``: that of ``kernels.experts.w4a8`` for int8 activations."""

from numba_marlin.kernels.experts.moe_wgmma_int8.declare import KERNEL
from numba_marlin.kernels.experts.w4a8.config import MoeInt8Config

__all__ = ["KERNEL", "MoeInt8Config"]

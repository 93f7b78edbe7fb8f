"""The kernel ``moe_wgmma_fp8``: that of ``kernels.experts.w4a8`` for fp8 activations."""

from numba_marlin.kernels.experts.moe_wgmma_fp8.declare import KERNEL
from numba_marlin.kernels.experts.w4a8.config import MoeFp8Config

__all__ = ["KERNEL", "MoeFp8Config"]

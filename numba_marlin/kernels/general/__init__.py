"""The kernel ``general``: every type of weight there is, one thread per output."""

from numba_marlin.kernels.general.declare import KERNEL
from numba_marlin.kernels.general.kernel import GeneralConfig

__all__ = ["KERNEL", "GeneralConfig"]

"""What is measured: shapes, and the configurations of each."""
from numba_marlin.kernels.block_scaled_config import BlockScaledConfig

LARGE = ((4096, 4096, 4096), (8192, 8192, 8192))


def quick():
    """Every arrangement of stages, at the two sizes that the kernel is made for."""
    configs = [BlockScaledConfig(stages=stages, expanded_stages=expanded, group_m=group_m) for stages, expanded, group_m in ((4, 3, 8), (3, 4, 8), (3, 4, 16))]
    return [(shape, configs) for shape in LARGE]


def full():
    return quick()

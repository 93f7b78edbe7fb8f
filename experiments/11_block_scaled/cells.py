"""What is measured: shapes, and the configurations of each."""
from numba_marlin.kernels.block_scaled_config import BlockScaledConfig

LARGE = ((4096, 4096, 4096), (8192, 8192, 8192))


def quick():
    """Every arrangement of stages, at the two sizes that the kernel is made for."""
    configs = [BlockScaledConfig(stages=3, expanded_stages=4, group_m=group_m, expander_registers=registers) for group_m, registers in ((16, 72), (16, 88), (32, 88), (8, 88))]
    return [(shape, configs) for shape in LARGE]


def full():
    return quick()

"""What others want to know of the kernel ``block_scaled``, beside it."""

import numpy as np

from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.block_scaled import choose
from numba_marlin.kernels.nvfp4.block_scaled.config import ACTIVATIONS, RESULTS, BlockScaledConfig
from numba_marlin.kernels.nvfp4.block_scaled.kernel import OPERAND_POWER, make, tensor_maps


def epilogue_factors(alpha: float, beta: float, inverse: float) -> dict[str, np.ndarray]:
    """The four numbers of ``epilogue``: alpha, times what expanding operands divides their product
    by; beta; the inverse of the result's global scale, and a sixth of it."""
    return {
        "factors": np.array(
            [alpha * 2.0**OPERAND_POWER, beta, inverse, inverse / np.float32(6)], np.float32
        )
    }


KERNEL = KernelDefinition(
    name="block_scaled",
    summary=(
        "both operands NVFP4: expanded to halves, one into registers, one into shared memory;"
        " wgmma; a fused epilogue"
    ),
    rung=10,
    config_type=BlockScaledConfig,
    parameters=(
        ("a_map", "tensormap"),
        ("b_map", "tensormap"),
        ("sfa_map", "tensormap"),
        ("sfb_map", "tensormap"),
        ("c_map", "tensormap"),
        ("d_map", "tensormap"),
        ("d", "u64"),
        ("sfd", "u64"),
        ("bias", "u64"),
        ("factors", "u64"),
        ("locks", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: (0, 4),
    tensor_maps=tensor_maps,
    waits=False,
    min_arch="sm_90a",
    takes=TakesOperands(
        results=tuple(RESULTS),
        sources=("float16", "bfloat16"),
        bias=True,
        activations=ACTIVATIONS,
    ),
    factors=epilogue_factors,
    chooser=choose,
)

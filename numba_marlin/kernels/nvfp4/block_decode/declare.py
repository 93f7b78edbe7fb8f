"""What others want to know of the kernel ``block_decode``, beside it."""

from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.block_decode import choose
from numba_marlin.kernels.nvfp4.block_decode.config import (
    ACTIVATIONS,
    RESULT_BYTES,
    BlockDecodeConfig,
)
from numba_marlin.kernels.nvfp4.block_decode.kernel import make, tensor_maps
from numba_marlin.kernels.nvfp4.block_scaled.declare import epilogue_factors

KERNEL = KernelDefinition(
    name="block_decode",
    summary=(
        "both operands NVFP4, few rows: B streams through registers, mma.sync by tokens, k shared"
        " out within a block and a cluster"
    ),
    rung=20,
    config_type=BlockDecodeConfig,
    parameters=(
        ("a_map", "tensormap"),
        ("b_map", "tensormap"),
        ("sfa_map", "tensormap"),
        ("sfb_map", "tensormap"),
        ("c", "u64"),
        ("d", "u64"),
        ("bias", "u64"),
        ("factors", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n),
    cluster=lambda config: config.split,
    dependent=lambda config: True,
    reads_early=(),
    tensor_maps=tensor_maps,
    waits=False,
    min_arch="sm_90a",
    takes=TakesOperands(
        results=tuple(RESULT_BYTES),
        sources=("float16", "bfloat16"),
        bias=True,
        activations=ACTIVATIONS,
    ),
    factors=epilogue_factors,
    changed=choose.changed,
    chooser=choose,
)

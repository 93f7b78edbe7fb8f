"""What others want to know of the kernel ``block_decode``, beside it. What the fields mean:
``language.definition.KernelDefinition``, ``language.about``."""

from numba_marlin.kernels.language.about import About, Demo, MachineCost, Ring, Trial
from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.about import ALL_ROLES, TIMED_ELSEWHERE, operand_stages
from numba_marlin.kernels.nvfp4.block_decode import choose
from numba_marlin.kernels.nvfp4.block_decode.config import (
    ACTIVATIONS,
    ALIGNMENT,
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
    about=About(
        sections={
            "copy": ("load_stages",),
            "multiply": ("multiply_k16", "multiply_stages"),
            "reduce_block": ("leave_sums", "add_slices"),
            "reduce_grid": ("add_ranks",),
            "write": ("finish_columns", "add_bias"),
        },
        waits={"wait_block": ("add_ranks", "write_out")},
        roles={
            "load": ("load_stages",),
            "multiply": ("multiply_stages", "fetch", "multiply"),
            "epilogue": ("leave_sums", "add_slices", "add_ranks", "finish_columns"),
        },
        shared_alignment=ALIGNMENT,
        stages=lambda config: operand_stages(config, ALIGNMENT),
        rings=(Ring(name="stages", barriers="barriers_shared", stages="stages"),),
        tile=lambda config: (config.tile_m, config.tile_n),
        k_shares=lambda config: (config.k_warps, config.split),
        demo=Demo(
            trace=(5, 384, 768),
            trace_sms=2,
            trace_changes={"source": True},
            trace_why=ALL_ROLES,
            profile=(16, 8192, 8192),
        ),
        machine_cost=MachineCost(weight=0.077, product=0.00145, result=1.1, warp=0.41, step=40),
        unmeasured=TIMED_ELSEWHERE,
        trials=(
            Trial(
                config=BlockDecodeConfig(
                    tokens=8, k_warps=2, split=2, stages=2, result="float32", bias=True
                ),
                sizes=(9, 136, 1312),
            ),
        ),
    ),
)

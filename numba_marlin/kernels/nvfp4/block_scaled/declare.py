"""What others want to know of the kernel ``block_scaled``, beside it. ``KernelDefinition``
(``language.definition``) and ``About`` (``language.about``) say what each field means."""

import numpy as np

from numba_marlin.kernels.language.about import About, Demo, MachineCost, Ring, Trial
from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.about import ALL_ROLES, TIMED_ELSEWHERE, operand_stages
from numba_marlin.kernels.nvfp4.block_scaled import choose
from numba_marlin.kernels.nvfp4.block_scaled.config import (
    ACTIVATIONS,
    ALIGNMENT,
    RESULTS,
    BlockScaledConfig,
)
from numba_marlin.kernels.nvfp4.block_scaled.kernel import OPERAND_POWER, make, tensor_maps
from numba_marlin.kernels.nvfp4.source import SOURCE_BYTES


def epilogue_factors(alpha: float, beta: float, inverse: float) -> dict[str, np.ndarray]:
    """The four numbers of ``finish``: alpha (with both operands' global scales already:
    ``api.block_scaled_matmul`` multiplies them in) times what expanding operands divides their
    product by; beta; the inverse of the result's global scale, and a sixth of it."""
    return {
        "factors": np.array(
            [alpha * 2.0**OPERAND_POWER, beta, inverse, inverse / np.float32(6)], np.float32
        )
    }


SMALL = BlockScaledConfig(
    tile_m=128, tile_n=64, stages=2, expanded_stages=3, source=True, bias=True
)

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
        ("c", "u64"),
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
        c_dtypes=tuple(SOURCE_BYTES),
        bias=True,
        activations=ACTIVATIONS,
    ),
    factors=epilogue_factors,
    chooser=choose,
    about=About(
        sections={
            "setup": ("initialise", "hand_out_tiles"),
            "copy": ("load_operands", "load_source"),
            "multiply": ("expand_tiles", "multiply_tiles", "multiply_steps"),
            "write": ("epilogue", "drain"),
        },
        waits={"wait_role": ("fetch_together", "fetch_alone", "open_expanded")},
        roles={
            "scheduler": ("hand_out_tiles",),
            "main-loop load": ("load_operands",),
            "epilogue load": ("load_source",),
            "expand": ("expand_tiles", "load_row", "put_pair", "publish"),
            "mma": ("multiply_steps", "take_packed", "go_on", "start"),
            "epilogue": ("epilogue", "put_warp_rows", "finish", "store", "free_output", "drain"),
        },
        shared_alignment=ALIGNMENT,
        stages=lambda config: operand_stages(config, ALIGNMENT),
        rings=(
            Ring(name="packed stages", barriers="packed_barriers", stages="stages"),
            Ring(name="B as halves", barriers="expanded_barriers", stages="expanded_stages"),
            Ring(name="tile numbers", barriers="tile_barriers"),
            Ring(name="C", barriers="source_barriers"),
        ),
        tile=lambda config: (config.tile_m, config.tile_n),
        demo=Demo(
            trace=(128, 384, 768),
            trace_sms=2,
            trace_changes={"source": True},
            trace_why=ALL_ROLES,
            profile=(4096, 4096, 4096),
        ),
        machine_cost=MachineCost(weight=0.2, product=0.00035, result=0.29, warp=2.3),
        unmeasured=TIMED_ELSEWHERE,
        trials=(
            Trial(config=SMALL, sizes=(100, 136, 96), sms=2, places=(1,)),
            Trial(what="one block", config=SMALL, sizes=(100, 72, 160)),
        ),
    ),
)

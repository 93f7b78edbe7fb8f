"""What others want to know of the kernel ``block_mma``, beside it. What the fields mean:
``language.definition.KernelDefinition``, ``language.about``."""

import numpy as np

from numba_marlin.kernels.language.about import About, Demo, MachineCost, Ring, Trial
from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.about import operand_stages
from numba_marlin.kernels.nvfp4.block_mma import choose
from numba_marlin.kernels.nvfp4.block_mma.config import (
    ALIGNMENT,
    K64_SCALES,
    RESULT_BYTES,
    TILE,
    BlockMmaConfig,
)
from numba_marlin.kernels.nvfp4.block_mma.kernel import make, tensor_maps

KERNEL = KernelDefinition(
    name="block_mma",
    summary="both operands block-scaled, on consumer Blackwell: TMA, mma.sync with block scales",
    rung=40,
    config_type=BlockMmaConfig,
    parameters=(
        ("a_map", "tensormap"),
        ("b_map", "tensormap"),
        ("sfa_map", "tensormap"),
        ("sfb_map", "tensormap"),
        ("d", "u64"),
        ("alpha", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n),
    tensor_maps=tensor_maps,
    waits=False,
    min_arch="sm_120a",
    takes=TakesOperands(formats=tuple(K64_SCALES), results=tuple(RESULT_BYTES)),
    factors=lambda alpha, beta, inverse: {"alpha": np.array([alpha], np.float32)},
    chooser=choose,
    about=About(
        sections={
            "copy": ("load_tile",),
            "multiply": ("multiply_stages", "multiply_step"),
            "write": ("store_pair",),
        },
        roles={
            "load": ("load_tile",),
            "mma": ("multiply_stages", "multiply_step", "fetch"),
            "epilogue": ("store_pair",),
        },
        shared_alignment=ALIGNMENT,
        stages=lambda config: operand_stages(config, ALIGNMENT),
        rings=(Ring(name="stages", barriers="barriers_shared", stages="stages"),),
        tile=lambda config: (TILE, TILE),
        demo=Demo(trace=(128, 384, 768), trace_sms=2, profile=(2048, 2048, 2048)),
        machine_cost=MachineCost(product=0.00042, result=0.21, warp=4.5),
        half_products=False,
        unmeasured="never: no GPU with these instructions was at hand",
        trials=(Trial(config=BlockMmaConfig(), sizes=(20, 24, 1056)),),
    ),
)

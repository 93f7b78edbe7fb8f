"""What others want to know of the kernel ``tcgen05``, beside it. What the fields mean:
``language.definition.KernelDefinition``, ``language.about``."""

import numpy as np

from numba_marlin.kernels.language.about import About, Demo, MachineCost, Ring, Trial
from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.about import ALL_ROLES, operand_stages
from numba_marlin.kernels.nvfp4.block_scaled.config import RESULTS
from numba_marlin.kernels.nvfp4.source import HALVES, SOURCE_BYTES
from numba_marlin.kernels.nvfp4.tcgen05 import choose
from numba_marlin.kernels.nvfp4.tcgen05.config import (
    ACTIVATIONS,
    ALIGNMENT,
    FORMATS,
    THREADS,
    TILE_M,
    Tcgen05Config,
)
from numba_marlin.kernels.nvfp4.tcgen05.kernel import make, tensor_maps

KERNEL = KernelDefinition(
    name="tcgen05",
    summary=(
        "both operands block-scaled, on Blackwell: TMA, tcgen05 with sums and scales in tensor"
        " memory, roles for scheduler, loads, mma and epilogue"
    ),
    rung=30,
    config_type=Tcgen05Config,
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
    threads=lambda config: THREADS,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, sms),
    workspace_bytes=lambda config, m, n, k, sms: (0, 4),
    tensor_maps=tensor_maps,
    waits=False,
    dependent=lambda config: True,
    reads_early=(),
    min_arch="sm_100a",
    takes=TakesOperands(
        formats=tuple(FORMATS),
        results=tuple(RESULTS),
        sources=HALVES,
        c_dtypes=tuple(SOURCE_BYTES),
        bias=True,
        activations=ACTIVATIONS,
    ),
    factors=lambda alpha, beta, inverse: {
        "factors": np.array([alpha, beta, inverse, inverse / np.float32(6)], np.float32)
    },
    chooser=choose,
    about=About(
        sections={
            "setup": ("initialise", "hand_out_tiles"),
            "copy": ("load_operands", "load_tiles", "load_source"),
            "multiply": ("multiply_tiles", "copy_scales", "multiply_stage"),
            "write": ("finish_tiles",),
        },
        waits={"wait_role": ("finish_tiles", "fetch_together", "fetch_alone")},
        roles={
            "scheduler": ("hand_out_tiles",),
            "main-loop load": ("load_operands", "load_tiles"),
            "epilogue load": ("load_source",),
            "mma": ("multiply_tiles", "copy_scales", "multiply_stage"),
            "epilogue": ("finish_tiles", "store_tile", "store_chunk", "put_part", "drain"),
        },
        shared_alignment=ALIGNMENT,
        stages=lambda config: operand_stages(config, ALIGNMENT, config.copied_bytes),
        rings=(
            Ring(name="stages", barriers="load_barriers", stages="stages"),
            Ring(name="tiles of sums", barriers="sum_barriers", stages="accumulators"),
            Ring(name="tile numbers", barriers="tile_barriers", stages="tile_stages"),
            Ring(name="C", barriers="source_barriers", stages="source_stages"),
        ),
        tile=lambda config: (TILE_M, config.tile_n),
        # profiled on the problem of the walk-through in experiments/12_blackwell
        demo=Demo(
            trace=(128, 384, 768),
            trace_sms=2,
            trace_changes={"source": True},
            trace_why=ALL_ROLES,
            profile=(2048, 2048, 2048),
        ),
        machine_cost=MachineCost(product=3.8e-5, result=0.08, warp=27),
        half_products=False,
        unmeasured=(
            "never: no GPU with these instructions was at hand; experiments/12_blackwell compares"
            " its traffic with a published analysis"
        ),
        trials=(Trial(config=Tcgen05Config(), sizes=(150, 136, 288), sms=2, places=(1,)),),
    ),
)

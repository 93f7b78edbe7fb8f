"""What others want to know of the kernel ``moe_wgmma``, beside it. m: tokens."""

from __future__ import annotations

from dataclasses import replace

from numba_marlin.kernels.experts.about import DIVISION, IDS, TAKES, UNMEASURED, behind
from numba_marlin.kernels.experts.moe_wgmma import choose
from numba_marlin.kernels.experts.moe_wgmma.config import MoeWgmmaConfig
from numba_marlin.kernels.experts.moe_wgmma.kernel import make, tensor_maps
from numba_marlin.kernels.hopper.shared import ALIGNMENT, STAGE_K
from numba_marlin.kernels.language.about import (
    About,
    Demo,
    MachineCost,
    Ring,
    Trial,
    stages_in_a_row,
)
from numba_marlin.kernels.language.definition import KernelDefinition

# tiles of 16 rows and 64 columns, one warpgroup that multiplies
SMALL = MoeWgmmaConfig(
    experts=5, top_k=2, tile_m=16, tile_n=64, warpgroups=1, stages=2, group_blocks=4
)
SIZES = (len(IDS), 72, 128)

KERNEL = KernelDefinition(
    name="moe_wgmma",
    summary="experts of a mixture, many tokens: wgmma's main loop, ragged over experts",
    # below ``moe``, which the batch-invariant mode takes: it cannot weigh kernels whose time nobody
    # predicts, and a token's bits must not depend on how many there are
    rung=10,
    config_type=MoeWgmmaConfig,
    parameters=(
        ("a", "u64"),
        ("b_map", "tensormap"),
        ("s_map", "tensormap"),
        ("z_map", "tensormap"),
        ("c", "u64"),
        ("scales", "u64"),
        ("factors", "u64"),
        ("bias", "u64"),
        ("partials", "u64"),
        ("locks", "u64"),
        ("pairs", "u64"),
        ("offsets", "u64"),
        ("n", "i32"),
        ("k", "i32"),
        ("a_stride", "i32"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    tensor_maps=tensor_maps,
    blocks_per_sm=lambda config: 1,
    dependent=lambda config: True,
    reads_early=(),
    behind=behind,
    takes=replace(
        TAKES,
        dtypes=(("float16", "float16"), ("bfloat16", "bfloat16")),
        k_step=STAGE_K,
        zeros_of_columns=(None, "integer"),
        zeros_of_gated=(None,),
    ),
    chooser=choose,
    method=lambda config: "weights" if config.scales_weights else "sums",
    order_of_sums=lambda config: config.order_of_sums,
    waits=False,
    min_arch="sm_90a",
    about=About(
        machine_cost=MachineCost(weight=0.108, result=0.2, warp=8),
        rows=lambda config, m: config.tile_m * config.most_row_blocks(m),
        sections={
            "setup": ("count_row_blocks",),
            "copy": (
                "produce",
                "find_rows",
                "gather_x",
                "of_expert",
                "copy_weights",
                "copy_scales",
                "copy_zeros",
            ),
            "multiply": ("multiply_steps", "multiply_scale_groups"),
            "reduce_grid": ("combine_stripes",),
            "write": ("find_pairs", "scatter", "scatter_unrounded", "activate"),
        },
        roles={
            "gather and copy": ("produce", "find_rows", "gather_x"),
            "multiply": ("consume", "multiply_steps"),
        },
        rings=(Ring(name="weights and gathered rows", barriers="barriers_at", stages="stages"),),
        shared_alignment=ALIGNMENT,
        stages=lambda config: stages_in_a_row(
            config.stages, config.stage_bytes, (0, config.stage_bytes)
        ),
        tile=lambda config: (config.tile_m, config.tile_n),
        division=DIVISION,
        demo=Demo(
            trace=(24, 256, 384),
            profile=(256, 4096, 2048),
        ),
        unmeasured=UNMEASURED,
        trials=(
            Trial(
                config=replace(SMALL, combine=True, x_of_pairs=True),
                sizes=SIZES,
                group_size=64,
                ids=IDS,
                sms=3,
                places=(1, 2),
            ),
            Trial(
                what="whole tiles",
                config=replace(SMALL, tile_n=128, split=False, bias=True, group_blocks=-1),
                sizes=SIZES,
                group_size=-1,
                ids=IDS,
                sms=2,
                places=(1,),
            ),
        ),
    ),
)

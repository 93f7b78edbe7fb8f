"""What others want to know of ``moe_wgmma_int8`` and ``moe_wgmma_fp8``: two definitions of one
kernel, which differ in the type of its 8-bit numbers. m: tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba_marlin.kernels.experts.about import IDS, TAKES, UNMEASURED, behind
from numba_marlin.kernels.experts.moe_wgmma.kernel import tensor_maps
from numba_marlin.kernels.experts.w4a8 import choose
from numba_marlin.kernels.experts.w4a8.config import MoeBytesConfig
from numba_marlin.kernels.experts.w4a8.kernel import make
from numba_marlin.kernels.hopper.shared import ALIGNMENT
from numba_marlin.kernels.language.about import (
    About,
    Demo,
    MachineCost,
    Ring,
    Trial,
    stages_in_a_row,
)
from numba_marlin.kernels.w4a8.config import STAGE_K

SIZES = (len(IDS), 72, 256)
DIVISION = (
    "The rows of each expert are cut into blocks of rows, and those times columns are tiles; blocks"
    " take the tiles of all experts by turns, whole ones."
)


def small(config_type: type[MoeBytesConfig]) -> MoeBytesConfig:
    """Tiles of 16 rows and 64 columns, one warpgroup that multiplies."""
    return config_type(experts=5, top_k=2, tile_m=16, tile_n=64, warpgroups=1, stages=2)


def shared(config_type: type[MoeBytesConfig]) -> dict[str, Any]:
    """Arguments of ``KernelDefinition`` for the type of activations that ``config_type`` is of."""
    least = small(config_type)
    return dict(
        parameters=(
            ("a", "u64"),
            ("b_map", "tensormap"),
            ("s_map", "tensormap"),
            ("z_map", "tensormap"),
            ("c", "u64"),
            ("scales", "u64"),
            ("bias", "u64"),
            ("a_scales", "u64"),
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
        tensor_maps=tensor_maps,
        dependent=lambda config: True,
        reads_early=(),
        behind=behind,
        takes=replace(
            TAKES,
            dtypes=(("float16", "float16"), ("bfloat16", "bfloat16")),
            bits=(4,),
            zeros=(None, "integer"),
            group_sizes=(-1, 32, 64, 128),
            fp4_groups=(),
            k_step=STAGE_K,
            zeros_of_columns=(None, "integer"),
            zeros_of_gated=(None,),
            kinds_of_x=(config_type.activations,),
        ),
        chooser=choose,
        method=lambda config: "sums",
        order_of_sums=lambda config: config.order_of_sums,
        waits=False,
        min_arch="sm_90a",
        about=About(
            machine_cost=MachineCost(weight=0.06, result=0.2, warp=8),
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
                "multiply": ("multiply_ahead", "multiply_in_order", "add_quad"),
                "write": (
                    "finish_quad",
                    "row_scale",
                    "find_pairs",
                    "scatter",
                    "scatter_unrounded",
                    "activate",
                ),
            },
            roles={
                "gather and copy": ("produce", "find_rows", "gather_x"),
                "multiply": ("consume", "multiply_ahead", "multiply_in_order"),
            },
            rings=(
                Ring(name="weights and gathered rows", barriers="barriers_at", stages="stages"),
            ),
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
            half_products=False,
            unmeasured=UNMEASURED,
            trials=(
                Trial(
                    config=replace(least, combine=True, x_of_pairs=True),
                    sizes=SIZES,
                    group_size=128,
                    ids=IDS,
                    sms=3,
                    places=(1, 2),
                ),
                Trial(
                    what="two warpgroups in turns",
                    config=replace(least, tile_n=128, warpgroups=2, ordered=True),
                    sizes=SIZES,
                    group_size=128,
                    ids=IDS,
                    sms=2,
                    places=(1,),
                ),
            ),
        ),
    )

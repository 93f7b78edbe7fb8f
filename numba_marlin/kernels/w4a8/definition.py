"""What others want to know of ``wgmma_int8`` and ``wgmma_fp8``: two definitions of one kernel,
which differ in the type of its 8-bit numbers."""

from dataclasses import replace
from typing import Any

from numba_marlin.kernels.hopper.shared import ALIGNMENT
from numba_marlin.kernels.language.about import (
    About,
    Demo,
    MachineCost,
    Trial,
    stages_in_a_row,
)
from numba_marlin.kernels.language.definition import TakesActivations
from numba_marlin.kernels.w4a8 import choose
from numba_marlin.kernels.w4a8.kernel import make, tensor_maps


def shared(config_type: type) -> dict[str, Any]:
    """Arguments of ``KernelDefinition`` for the type of activations that ``config_type`` is of."""
    small = config_type(tile_m=16, tile_n=64, warpgroups=1, stages=2)
    of_columns = replace(small, tile_n=128, warpgroups=2, group_blocks=-1)
    parts = replace(small, parts=2, group_blocks=-1)  # of int8, integers are added up
    if config_type.activations == "fp8":  # as they are chosen
        of_columns = replace(of_columns, offsets=True)
        parts = replace(small, parts=2, offsets=True)
    return dict(
        parameters=(
            ("a_map", "tensormap"),
            ("b_map", "tensormap"),
            ("s_map", "tensormap"),
            ("c_map", "tensormap"),
            ("z_map", "tensormap"),
            ("o_map", "tensormap"),
            ("c", "u64"),
            ("scales", "u64"),
            ("bias", "u64"),
            ("a_scales", "u64"),
            ("partials", "u64"),
            ("locks", "u64"),
            ("m", "i32"),
            ("n", "i32"),
            ("k", "i32"),
        ),
        make=make,
        threads=lambda config: config.threads,
        shared_bytes=lambda config: config.shared_bytes,
        grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
        workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
        tensor_maps=tensor_maps,
        takes=TakesActivations(
            dtypes=(("float16", "float16"), ("bfloat16", "bfloat16")),
            zeros=(None, "integer"),
            bias=True,
            column_step=8,
            activations=(config_type.activations,),
        ),
        method=lambda config: "sums",
        waits=False,
        dependent=lambda config: True,
        order_of_sums=lambda config: config.order_of_sums,
        min_arch="sm_90a",
        chooser=choose,
        about=About(
            machine_cost=MachineCost(weight=0.06, result=0.2, warp=8),
            sections={
                "copy": (
                    "fetch_weights",
                    "fetch_x",
                    "fill_first",
                    "fill_stages",
                    "produce",
                    "copy_boxes",
                ),
                "multiply": (
                    "multiply_ahead",
                    "multiply_then_offsets",
                    "multiply_in_order",
                    "add_quad",
                ),
                "reduce_grid": ("combine_parts",),
                "write": (
                    "finish_quad",
                    "row_scale",
                    "write_result",
                    "store_sixteen_rows",
                    "drain",
                ),
            },
            shared_alignment=ALIGNMENT,
            stages=lambda config: stages_in_a_row(
                config.stages, config.stage_bytes, (0, config.stage_bytes)
            ),
            tile=lambda config: (config.tile_m, config.tile_n),
            demo=Demo(profile=(1024, 8192, 8192)),
            half_products=False,
            unmeasured="no profile of it is kept: experiments/23_w4a8 times it",
            trials=(
                Trial(config=small, sizes=(20, 128, 384), group_size=128, sms=3, places=(1, 2)),
                Trial(
                    what="two warpgroups in turns",
                    config=replace(small, tile_n=128, warpgroups=2, ordered=True),
                    sizes=(20, 128, 384),
                    group_size=128,
                    sms=2,
                    places=(1,),
                ),
                Trial(
                    what="two warpgroups, one scale per column",
                    config=of_columns,
                    sizes=(20, 256, 256),
                    group_size=-1,
                    sms=2,
                    places=(1,),
                ),
                Trial(
                    what="two parts",
                    config=parts,
                    sizes=(20, 128, 640),
                    group_size=128 if parts.grouped else -1,
                    sms=4,
                    places=(1, 3),
                ),
            ),
        ),
    )

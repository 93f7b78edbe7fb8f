"""What others want to know of the kernel ``moe``, beside it. m: tokens."""

from __future__ import annotations

from dataclasses import replace

from numba_marlin.kernels.experts.about import DIVISION, IDS, TAKES, UNMEASURED, behind
from numba_marlin.kernels.experts.moe import choose
from numba_marlin.kernels.experts.moe.config import MoeConfig
from numba_marlin.kernels.experts.moe.kernel import make
from numba_marlin.kernels.language.about import (
    About,
    Demo,
    MachineCost,
    Ring,
    Trial,
    stages_in_a_row,
)
from numba_marlin.kernels.language.definition import KernelDefinition

# two by two warps; tiles of 8 rows and 128 columns
SMALL = MoeConfig(
    experts=5,
    top_k=2,
    batch=8,
    warps_n=2,
    warps_k=2,
    stage_k=64,
    stages=2,
    resident=1,
    group_blocks=2,
    ragged=True,
)

KERNEL = KernelDefinition(
    name="moe",
    summary="experts of a mixture: decode's main loop, ragged over experts in one launch",
    rung=20,
    config_type=MoeConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
        ("c", "u64"),
        ("scales", "u64"),
        ("zeros", "u64"),
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
    blocks_per_sm=lambda config: config.resident,
    dependent=lambda config: True,
    reads_early=(),
    behind=behind,
    takes=TAKES,
    chooser=choose,
    method=lambda config: (
        "weights" if config.block_scaled else "offset" if config.zeros == "float16" else "sums"
    ),
    order_of_sums=lambda config: config.order_of_sums,
    waits=False,
    min_arch="sm_90",
    about=About(
        machine_cost=MachineCost(weight=0.078, result=1.5, warp=3.5),
        rows=lambda config, m: config.batch * config.most_row_blocks(m),
        sections={
            "setup": ("count_row_blocks",),
            "copy": (
                "produce",
                "find_rows",
                "gather_x",
                "of_expert",
                "copy_weights_and_scales",
                "copy_rows",
                "copy_group_scales",
                "copy_block_scales",
                "copy_group_zeros",
            ),
            "multiply": (
                "multiply_stage",
                "multiply_full",
                "multiply_pairs",
                "multiply_tail",
                "multiply_row",
                "fetch_pair",
                "fetch_row",
                "fetch_pair_scales",
                "fetch_row_scales",
                "block_scales_of_pair",
                "block_scales_of_row",
                "unpack_zeros",
                "fetch_zeros",
                "fetch_words",
                "promote",
            ),
            "reduce_block": ("share_out",),
            "reduce_grid": ("leave_partial", "count_in", "add_partials"),
            "write": (
                "pair_of",
                "scatter",
                "scatter_unrounded",
                "leave_rows",
                "activate_rows",
                "scale_columns",
                "multiply_columns",
                "add_bias",
            ),
        },
        roles={
            "gather and copy": ("produce", "find_rows", "gather_x"),
            "multiply": ("consume", "multiply_stage", "finish_tile"),
        },
        rings=(Ring(name="weights and gathered rows", barriers="barriers_at", stages="stages"),),
        stages=lambda config: stages_in_a_row(
            config.stages, config.stage_bytes, (0, config.stage_bytes)
        ),
        tile=lambda config: (config.batch, config.columns),
        division=DIVISION,
        demo=Demo(
            trace=(6, 512, 384),
            profile=(16, 4096, 2048),
        ),
        unmeasured=UNMEASURED,
        trials=(
            Trial(
                config=replace(SMALL, combine=True, x_of_pairs=True),
                sizes=(len(IDS), 72, 96),
                group_size=32,
                ids=IDS,
                sms=3,
                places=(1, 2),
            ),
            Trial(
                what="rows of pairs",
                config=SMALL,
                sizes=(len(IDS), 72, 96),
                group_size=32,
                ids=IDS,
                sms=4,
                places=(1,),
            ),
            Trial(
                what="whole tiles",
                config=replace(SMALL, whole=True, group_blocks=-1, bias=True, combine=True),
                sizes=(len(IDS), 72, 96),
                group_size=-1,
                ids=IDS,
                sms=3,
                places=(1, 2),
            ),
        ),
    ),
)

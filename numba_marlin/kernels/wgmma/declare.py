"""What others want to know of the kernel ``wgmma``, beside it."""

from dataclasses import replace

from numba_marlin.kernels.hopper.shared import ALIGNMENT
from numba_marlin.kernels.language.about import About, MachineCost, Trial, stages_in_a_row
from numba_marlin.kernels.language.definition import KernelDefinition, Takes
from numba_marlin.kernels.wgmma import choose
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.kernels.wgmma.kernel import make, tensor_maps

SMALL = WgmmaConfig(tile_m=16, tile_n=64, warpgroups=1, stages=2, group_blocks=4)
# two k groups in each block of a pair
PAIRS = replace(
    SMALL, tile_m=32, tile_n=128, cluster=2, k_groups=2, stages=4, split=False, group_blocks=-1
)

KERNEL = KernelDefinition(
    name="wgmma",
    summary=(
        "the Hopper kernel for larger batches: TMA, wgmma with weights from registers, tiles shared"
        " along k"
    ),
    rung=60,
    config_type=WgmmaConfig,
    parameters=(
        ("a_map", "tensormap"),
        ("b_map", "tensormap"),
        ("s_map", "tensormap"),
        ("c_map", "tensormap"),
        ("c", "u64"),
        ("scales", "u64"),
        ("zeros", "u64"),
        ("bias", "u64"),
        ("partials", "u64"),
        ("locks", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
        ("a_stride", "i32"),
        ("z_map", "tensormap"),
        ("factors", "u64"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    tensor_maps=tensor_maps,
    takes=Takes(
        dtypes=(("float16", "float16"), ("bfloat16", "bfloat16")),
        bits=(4, 8),
        zeros=(None, "integer", "float16"),
        bias=True,
        column_step=8,
        group_sizes=(-1, 32, 64, 128, 256),
        fp4_groups=(16, 32),
    ),
    # of ``reference.METHODS``: what is rounded to 16 bits. "sums", nothing: it is sums that are
    # scaled, of scale groups (config.scaling="sums") or of all k (one scale per column)
    method=lambda config: "weights" if config.scales_weights else "sums",
    waits=False,
    cluster=lambda config: config.cluster,
    dependent=lambda config: True,
    order_of_sums=lambda config: config.order_of_sums,
    min_arch="sm_90a",
    chooser=choose,
    about=About(
        machine_cost=MachineCost(weight=0.108, result=0.2, warp=8),
        sections={
            "setup": ("open_exchange",),
            "copy": (
                "fetch_weights",
                "fetch_x",
                "fill_first",
                "fill_stages",
                "produce",
                "copy_boxes",
            ),
            "multiply": ("multiply_steps", "multiply_scale_groups"),
            "reduce_block": ("add_k_groups", "add_quad"),
            "reduce_grid": ("combine_parts", "combine_stripes", "add_blocks"),
            "write": ("write_result", "finish_columns", "store_sixteen_rows", "drain"),
        },
        waits={"wait_block": ("add_blocks", "close_exchange")},
        shared_alignment=ALIGNMENT,
        stages=lambda config: stages_in_a_row(
            config.stages, config.stage_bytes, (0, config.stage_bytes)
        ),
        tile=lambda config: (config.tile_m, config.tile_n),
        trials=(
            Trial(config=SMALL, sizes=(20, 128, 192), group_size=64, sms=3, places=(1, 2)),
            Trial(
                what="two parts",
                config=replace(SMALL, tile_m=32, parts=2, split=False, group_blocks=-1),
                sizes=(40, 128, 192),
                group_size=-1,
                sms=4,
                places=(1, 3),
            ),
            Trial(
                what="pairs of blocks",
                config=PAIRS,
                sizes=(40, 128, 256),
                group_size=-1,
                sms=2,
            ),
            Trial(
                what="MXFP4",
                config=replace(SMALL, codes="e2m1", group_blocks=2, split=False),
                sizes=(20, 128, 192),
                group_size=32,
                sms=3,
                places=(1, 2),
            ),
        ),
    ),
)

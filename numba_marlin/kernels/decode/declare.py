"""What others want to know of the kernel ``decode``, beside it."""

from dataclasses import replace

from numba_marlin.kernels.decode import choose
from numba_marlin.kernels.decode.config import DecodeConfig
from numba_marlin.kernels.decode.kernel import make
from numba_marlin.kernels.language.about import About, MachineCost, Trial, stages_in_a_row
from numba_marlin.kernels.language.definition import KernelDefinition, Takes

# two by two warps, stages of 128
SMALL = DecodeConfig(
    batch=8, warps_n=2, warps_k=2, stage_k=128, stages=2, resident=1, group_blocks=4
)
SMALL_FP4 = replace(
    SMALL, stages=3, ragged=True, codes="e2m1", group_blocks=1, scale_dtype="e5m3", bias=True
)

KERNEL = KernelDefinition(
    name="decode",
    summary=(
        "small batches: bulk copies by a producer warp, the transposed mma.sync, stream-K with"
        " partial results in the workspace"
    ),
    rung=50,
    config_type=DecodeConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
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
        ("factors", "u64"),
    ),
    make=make,
    threads=lambda config: config.threads,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    # of the launch bounds: as many as must fit, be it of two launches, not those of one launch
    blocks_per_sm=lambda config: config.resident,
    dependent=lambda config: True,
    takes=Takes(
        dtypes=tuple(
            (dtype, scales)
            for dtype in ("float16", "bfloat16")
            for scales in ("float16", "bfloat16")
        ),
        bits=(4, 8),
        zeros=(None, "integer", "float16"),
        bias=True,
        column_step=8,
        group_sizes=(-1, 32, 64, 128, 256),
        fp4_groups=(16, 32),
    ),
    method=lambda config: (
        "weights" if config.block_scaled else "offset" if config.zeros == "float16" else "sums"
    ),
    order_of_sums=lambda config: config.order_of_sums,
    waits=False,
    min_arch="sm_90",
    chooser=choose,
    about=About(
        machine_cost=MachineCost(weight=0.078, result=1.5, warp=3.5),
        sections={
            "copy": (
                "copy_weights_and_scales",
                "copy_x",
                "produce",
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
            "write": ("write_result", "scale_columns", "multiply_columns", "add_bias"),
        },
        stages=lambda config: stages_in_a_row(
            config.stages, config.stage_bytes, (0, config.stage_bytes)
        ),
        tile=lambda config: (config.batch, config.columns),
        trials=(
            Trial(config=SMALL, sizes=(2, 256, 640), group_size=64, sms=3, places=(1, 2)),
            Trial(
                what="NVFP4",
                config=SMALL_FP4,
                sizes=(2, 256, 640),
                group_size=16,
                sms=3,
                places=(1, 2),
            ),
        ),
    ),
)

"""What others want to know of ``decode_int8`` and ``decode_fp8``: two definitions of one kernel,
which differ in the type of their 8-bit numbers."""

from typing import Any

from numba_marlin.kernels.language.about import About, MachineCost, Trial, stages_in_a_row
from numba_marlin.kernels.language.definition import TakesActivations
from numba_marlin.kernels.w4a8.few_rows import choose
from numba_marlin.kernels.w4a8.few_rows.kernel import make

_COPY = {
    "copy": (
        "copy_weights_and_scales",
        "copy_x",
        "produce",
        "copy_rows",
        "copy_group_scales",
        "copy_group_zeros",
    )
}
_END = {
    "reduce_block": ("share_out",),
    "reduce_grid": ("leave_partial", "count_in", "add_partials"),
    "write": ("write_result", "scale_columns", "finish"),
}
SECTIONS = {
    "int8": {
        **_COPY,
        "multiply": (
            "multiply_stage",
            "multiply_full",
            "multiply_pairs",
            "multiply_pair",
            "multiply_tail",
            "multiply_row",
            "promote_group",
            "promote_columns",
        ),
        **_END,
    },
    "fp8": {
        **_COPY,
        "multiply": (
            "multiply_stage",
            "multiply_full",
            "multiply_pairs",
            "multiply_tail",
            "multiply_row",
            "fetch_pair",
            "fetch_row",
            "unpack_zeros",
            "fetch_zeros",
            "fetch_words",
            "promote",
        ),
        **_END,
    },
}


def small(config_type: type) -> Any:
    """A configuration of that type: two by two warps, stages of 128."""
    return config_type(
        batch=8, warps_n=2, warps_k=2, stage_k=128, stages=2, resident=1, group_blocks=4
    )


def shared(config_type: type) -> dict[str, Any]:
    """Arguments of ``KernelDefinition`` for the type of activations that ``config_type`` is of."""
    return dict(
        parameters=(
            ("a", "u64"),
            ("b", "u64"),
            ("c", "u64"),
            ("scales", "u64"),
            ("zeros", "u64"),
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
        blocks_per_sm=lambda config: config.resident,
        dependent=lambda config: True,
        takes=TakesActivations(
            dtypes=(("float16", "float16"), ("bfloat16", "bfloat16")),
            zeros=(None, "integer"),
            bias=True,
            column_step=8,
            activations=(config_type.activations,),
        ),
        method=lambda config: "sums",
        order_of_sums=lambda config: config.order_of_sums,
        waits=False,
        min_arch="sm_90",
        chooser=choose,
        about=About(
            machine_cost=MachineCost(weight=0.07, result=1.5, warp=3.5),
            sections=SECTIONS[config_type.activations],
            stages=lambda config: stages_in_a_row(
                config.stages, config.stage_bytes, (0, config.stage_bytes)
            ),
            tile=lambda config: (config.batch, config.columns),
            half_products=config_type.activations == "fp8",
            unmeasured="no GPU has profiled it yet: experiments/23_w4a8 times it",
            trials=(
                Trial(
                    config=small(config_type),
                    sizes=(2, 256, 640),
                    group_size=64,
                    sms=3,
                    places=(1, 2),
                ),
            ),
        ),
    )

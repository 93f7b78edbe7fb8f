"""What others want to know of the kernel ``wgmma``, beside it."""

from numba_marlin.kernels.language.definition import KernelDefinition, Takes
from numba_marlin.kernels.wgmma import choose
from numba_marlin.kernels.wgmma.config import WgmmaConfig
from numba_marlin.kernels.wgmma.kernel import make, tensor_maps

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
    method=lambda config: "weights" if config.scales_weights else "sums",
    waits=False,
    cluster=lambda config: config.cluster,
    dependent=lambda config: True,
    order_of_sums=lambda config: config.order_of_sums,
    min_arch="sm_90a",
    chooser=choose,
)

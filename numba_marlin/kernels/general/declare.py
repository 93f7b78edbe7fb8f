"""What others want to know of the kernel ``general``, beside it."""

from numba_marlin.kernels.general.kernel import THREADS, GeneralConfig, make
from numba_marlin.kernels.language.about import About, MachineCost, Trial
from numba_marlin.kernels.language.choice import ChooseTypes
from numba_marlin.kernels.language.definition import KernelDefinition, Takes, ceil_div

KERNEL = KernelDefinition(
    name="general",
    summary="a thread per output, for every type there is",
    rung=0,
    config_type=GeneralConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
        ("c", "u64"),
        ("scales", "u64"),
        ("zeros", "u64"),
        ("bias", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
        ("a_stride", "i32"),
        ("factors", "u64"),
    ),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: 0,
    grid=lambda config, m, n, k, sms: (ceil_div(m * n, THREADS), 1, 1),
    min_arch="sm_80",
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
        group_sizes=None,
        fp4_groups=(16, 32),
    ),
    method=lambda config: "sums",
    order_of_sums=lambda config: "one k after the other",
    chooser=ChooseTypes(
        GeneralConfig, "a thread per output, for every type: runs what the others refuse"
    ),
    about=About(
        trials=(Trial(config=GeneralConfig(64), sizes=(3, 64, 128), group_size=64, places=(1, 2)),),
        machine_cost=MachineCost(product=0.371, result=2.55, warp=0.034, step=5.7),
    ),
)

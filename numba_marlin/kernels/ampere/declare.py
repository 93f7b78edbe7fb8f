"""What others want to know of the kernel ``ampere``, beside it."""

from numba_marlin.kernels.ampere import choose
from numba_marlin.kernels.ampere.config import THREADS, AmpereConfig
from numba_marlin.kernels.ampere.kernel import make
from numba_marlin.kernels.language.definition import KernelDefinition

KERNEL = KernelDefinition(
    name="ampere",
    summary="the faithful Marlin kernel: stripes, a cp.async pipeline, mma.sync, two reductions",
    rung=40,
    config_type=AmpereConfig,
    parameters=(
        ("a", "u64"),
        ("b", "u64"),
        ("c", "u64"),
        ("scales", "u64"),
        ("partials", "u64"),
        ("locks", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    workspace_bytes=lambda config, m, n, k, sms: config.workspace_bytes(m, n, k, sms),
    min_arch="sm_80",
    order_of_sums=lambda config: config.order_of_sums,
    chooser=choose,
)

"""What others want to know of the kernel ``tcgen05``, beside it."""

import numpy as np

from numba_marlin.kernels.language.definition import KernelDefinition, TakesOperands
from numba_marlin.kernels.nvfp4.tcgen05 import choose
from numba_marlin.kernels.nvfp4.tcgen05.config import FORMATS, RESULT_BYTES, THREADS, Tcgen05Config
from numba_marlin.kernels.nvfp4.tcgen05.kernel import make, tensor_maps

KERNEL = KernelDefinition(
    name="tcgen05",
    summary=(
        "both operands block-scaled, on Blackwell: TMA, tcgen05 with sums and scales in tensor"
        " memory, roles for load, mma and epilogue"
    ),
    rung=30,
    config_type=Tcgen05Config,
    parameters=(
        ("a_map", "tensormap"),
        ("b_map", "tensormap"),
        ("sfa_map", "tensormap"),
        ("sfb_map", "tensormap"),
        ("d_map", "tensormap"),
        ("alpha", "u64"),
        ("m", "i32"),
        ("n", "i32"),
        ("k", "i32"),
    ),
    make=make,
    threads=lambda config: THREADS,
    shared_bytes=lambda config: config.shared_bytes,
    grid=lambda config, m, n, k, sms: config.grid(m, n, k, sms),
    tensor_maps=tensor_maps,
    waits=False,
    min_arch="sm_100a",
    takes=TakesOperands(formats=tuple(FORMATS), results=tuple(RESULT_BYTES)),
    factors=lambda alpha, beta, inverse: {"alpha": np.array([alpha], np.float32)},
    chooser=choose,
)

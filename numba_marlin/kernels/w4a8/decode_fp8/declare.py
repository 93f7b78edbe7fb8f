"""What others want to know of the kernel ``decode_fp8``, beside it."""

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.w4a8.few_rows.config import DecodeFp8Config
from numba_marlin.kernels.w4a8.few_rows.definition import shared

KERNEL = KernelDefinition(
    name="decode_fp8",
    summary="W4A8, small batches: e4m3 activations, widened to float16 for decode's main loop",
    rung=15,
    config_type=DecodeFp8Config,
    **shared(DecodeFp8Config),
)

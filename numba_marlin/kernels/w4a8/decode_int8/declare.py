"""What others want to know of the kernel ``decode_int8``, beside it."""

from numba_marlin.kernels.language.definition import KernelDefinition
from numba_marlin.kernels.w4a8.few_rows.config import DecodeInt8Config
from numba_marlin.kernels.w4a8.few_rows.definition import shared

KERNEL = KernelDefinition(
    name="decode_int8",
    summary="W4A8, small batches: Marlin's bytes times int8 activations by the transposed mma.sync",
    rung=5,
    config_type=DecodeInt8Config,
    **shared(DecodeInt8Config),
)

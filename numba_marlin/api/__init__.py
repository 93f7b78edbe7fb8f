"""The public calls; ``numba_marlin`` exports them. Each checks what it is given and leaves the rest
to the packages below.

Bad input is a TypeError (wrong kind of thing) or a ValueError (wrong value) that names the value
and the rule, raised before anything is written; ``CapabilityMissing`` says that this machine lacks
what was asked for by name.
"""

from numba_marlin.api.block_scaled_matmul import block_scaled_matmul
from numba_marlin.api.matmul import matmul
from numba_marlin.api.packing import pack, unpack
from numba_marlin.api.quantizing import quantize, quantize_blocks
from numba_marlin.api.reports import explain, last_run
from numba_marlin.execution.plan import RunInfo
from numba_marlin.execution.scratch import Workspace

__all__ = [
    "RunInfo",
    "Workspace",
    "block_scaled_matmul",
    "explain",
    "last_run",
    "matmul",
    "pack",
    "quantize",
    "quantize_blocks",
    "unpack",
]

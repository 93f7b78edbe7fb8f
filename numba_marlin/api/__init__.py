"""The public functions, which ``numba_marlin`` exports. Each one checks its arguments and leaves
the work to the packages below.

A wrong type raises TypeError, a wrong value ValueError; the message names the value and the rule,
and nothing has been written by then. ``CapabilityMissing`` is raised if the caller asks for
something by name that this computer does not have.

Those of mixtures of experts (``experts``) are imported when they are first named: few need them.
"""

from numba_marlin.api.activations import quantize_activations
from numba_marlin.api.block_scaled_matmul import block_scaled_matmul
from numba_marlin.api.matmul import matmul
from numba_marlin.api.packing import pack, unpack
from numba_marlin.api.quantizing import quantize, quantize_blocks
from numba_marlin.api.reports import explain, last_run
from numba_marlin.api.surgery import concat, merge, shard
from numba_marlin.api.warmup import warmup
from numba_marlin.execution.plan import RunInfo
from numba_marlin.execution.scratch import Workspace

__all__ = [
    "RunInfo",
    "Workspace",
    "block_scaled_matmul",
    "concat",
    "explain",
    "last_run",
    "matmul",
    "merge",
    "pack",
    "quantize",
    "quantize_activations",
    "quantize_blocks",
    "shard",
    "unpack",
    "warmup",
]

"""What declarations of kernels for mixtures of experts share."""

from __future__ import annotations

from typing import Any

from numba_marlin.kernels.experts.sum_experts import PASS, SumConfig
from numba_marlin.kernels.experts.tables import GATED_STEP
from numba_marlin.kernels.language.definition import Configured, TakesExperts

TAKES = TakesExperts(
    dtypes=tuple(
        (dtype, scales) for dtype in ("float16", "bfloat16") for scales in ("float16", "bfloat16")
    ),
    bits=(4, 8),
    zeros=(None, "integer", "float16"),
    bias=True,
    column_step=8,
    group_sizes=(-1, 32, 64, 128, 256),
    fp4_groups=(16, 32),
    activations=(None, "silu", "swiglu-oai"),
    gated_step=GATED_STEP,
)
DIVISION = (
    "The rows of each expert are cut into blocks of rows, and those times columns are tiles; the"
    " tiles of all experts in a row are cut into equal stripes, one for each block, so that every"
    " block reads as many bytes however uneven the routing is."
)
# expert 1 has more than a tile's rows, 3 has none, 4 a single one
IDS = ((1, 0), (0, 1), (1, 2), (1, 0), (2, 1), (1, 0), (0, 1), (1, 2), (1, 0), (1, 4))
UNMEASURED = "no GPU has profiled it: experiments/26_experts times it"


def behind(config: Any) -> tuple[Configured, ...]:
    """The passes that follow a launch (``KernelDefinition.behind``)."""
    return (Configured(PASS, SumConfig(config.dtype)),) if config.combine else ()

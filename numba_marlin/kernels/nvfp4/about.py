"""What declarations of kernels for two block-scaled operands share."""

from __future__ import annotations

from typing import Any

from numba_marlin.kernels.language.about import Stages, stages_in_a_row
from numba_marlin.kernels.language.definition import ceil_div

ALL_ROLES = "C is added, so that all roles have work: --config source=false leaves it out"
TIMED_ELSEWHERE = (
    "not these sizes: experiments/11_block_scaled times others on an H200, and on one this verb"
    " does"
)
# Fields of a configuration: where, in bytes, the parts of a stage begin. Each configuration lacks
# that of the first part, A or B.
PARTS = ("a_shared", "b_shared", "sfa_shared", "sfb_shared")


def operand_stages(config: Any, alignment: int, copied_bytes: int | None = None) -> Stages:
    """Where the stages of a ring lie that hold A, B and their scales: one behind the other, each
    from a multiple of ``alignment`` bytes on. ``copied_bytes`` of each are filled, by default all
    of stage_bytes."""
    pitch = ceil_div(config.stage_bytes, alignment) * alignment
    starts = sorted(getattr(config, name) for name in PARTS if hasattr(config, name))
    end = config.stage_bytes if copied_bytes is None else copied_bytes
    return stages_in_a_row(config.stages, pitch, (0, *starts, end))

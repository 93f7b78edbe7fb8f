"""What the choosers of kernels for two block-scaled operands share."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.problems import BlockProblem

# of a BlockProblem, what a configuration may have a field for
PROBLEM_FIELDS = tuple(each.name for each in fields(BlockProblem)[3:])


def wanted(config_type: type, problem: BlockProblem) -> dict[str, Any]:
    """The fields of ``config_type`` that ``problem`` decides."""
    names = {each.name for each in fields(config_type)}
    return {name: getattr(problem, name) for name in PROBLEM_FIELDS if name in names}


def check(config: Any, problem: BlockProblem) -> None:
    """ValueError unless ``config`` multiplies ``problem``."""
    fields_wanted = wanted(type(config), problem)
    if {name: getattr(config, name) for name in fields_wanted} != fields_wanted:
        raise ValueError(
            f"config={config} must have"
            f" {', '.join(f'{name}={value!r}' for name, value in fields_wanted.items())}: what was"
            " asked for"
        )
    if BlockProblem.of(config, problem.m, problem.n, problem.k) != problem:
        raise ValueError(f"config={config} does not multiply {problem}")


def described(
    problem: BlockProblem, tile: tuple[int, int], blocks: int, leads: bool = True
) -> Description:
    """Of tiles of so many rows and columns, divided among so many blocks. No time is predicted."""
    tile_m, tile_n = tile
    across = {"m": ceil_div(problem.m, tile_m), "n": ceil_div(problem.n, tile_n)}
    tiles = math.prod(across.values())
    if tiles == blocks:
        share = "a block each"
    elif blocks > tiles:
        share = f"{blocks // tiles} blocks, a cluster, share the k of each"
    else:
        share = f"{blocks} blocks, one per SM, take one after the other"
    reason = f"{tiles} tile{'s' * (tiles > 1)} of {tile_m} x {tile_n}: {share}"
    return Description(None, (reason,), {"tiles": across}, leads)

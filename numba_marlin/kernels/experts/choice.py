"""What choosers of kernels for experts share. Pure."""

from __future__ import annotations

from typing import Any

from numba_marlin.kernels.language.choice import (
    check_groups,
    check_types,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.problems.experts import ExpertsProblem

MANY_ROWS = 16
"""Of an expert, if the routing is even, from which on the kernel for many leads: the one for few
then dequantises weights of half of the experts twice, 16 rows at a time. Measured on an H200: level
at 16 rows (0.95 to 1.04), 1.5 to 2.3 times as slow at 8, 1.6 to 2.1 times as fast from 32 on
(experiments/26_experts)."""

# fields of a problem that a configuration has too, besides its types
OF_MIXTURE = ("experts", "top_k", "x_of_pairs", "combine", "activation")


def fitting(
    config_type: type, problem: ExpertsProblem, stages: int, least: int, **settings
) -> Any | None:
    """A configuration for ``problem``, with ``stages`` at most; None if not even ``least`` fit."""
    mixture = {name: getattr(problem, name) for name in OF_MIXTURE}
    fields = types_of(config_type, problem) | mixture | settings
    return with_stages_that_fit(
        config_type, stages, least, group_blocks=group_blocks_of(problem), **fields
    )


def configured(config_type: type, problem: ExpertsProblem, stages: int, **settings) -> Any:
    """``fitting``, with two stages at least; ValueError if they do not fit."""
    found = fitting(config_type, problem, stages, 2, **settings)
    if found is None:
        raise ValueError(f"no stages fit into shared memory for {problem.experts} experts")
    return found


def check_mixture(config: Any, problem: ExpertsProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types, groups and mixture."""
    check_types(config, problem)
    check_groups(config, problem)
    for name in OF_MIXTURE:
        if getattr(config, name) != getattr(problem, name):
            raise ValueError(
                f"config.{name}={getattr(config, name)} must be the problem's"
                f" {name}={getattr(problem, name)}"
            )


def of_sums(problem: ExpertsProblem) -> tuple[str, ...]:
    """What is to be said of what follows the products, a sentence each."""
    if problem.combine:
        return (
            f"rows are left in float32; a pass of its own behind the launch adds up a token's"
            f" {problem.top_k}, in the order of its experts: the same bits on every run",
        )
    if problem.activation is not None:
        return (f"gate and up become {problem.activation} of them before they are written",)
    return ()

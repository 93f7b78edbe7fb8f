"""The configuration of ``moe`` for a layer: that of ``decode`` that did best for as many rows as an
expert has if the routing is even (``decode.choose``).

Timed on an H200 with INT4 (experiments/26_experts): 8 rows to 4.35 TB/s. A tile of 32 rows has
never paid: beside 128 accumulators the registers do not suffice, 30 of them spill in every stage,
and it reads 1.6 TB/s where 16 rows read 3.7; so more rows are further tiles of 16, whose weights
are mostly in L2. (``decode``, of which these are the loops, has the last registers it needs.)
Eight warps side by side beat four by two along k by 1.12 to 1.24 times, from 8 rows per expert on,
where a ring of three of their stages fits; fewer rows were not timed so.
"""

from __future__ import annotations

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.decode.config import COLUMNS
from numba_marlin.kernels.experts.choice import (
    MANY_ROWS,
    check_mixture,
    configured,
    fitting,
    of_sums,
)
from numba_marlin.kernels.experts.moe.config import MoeConfig
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.problems.experts import ExpertsProblem

# (most rows of an expert if all have as many, batch, warps_n, warps_k, stage_k, stages)
ARRANGEMENTS = (
    (4, 8, 4, 2, 128, 11),
    (None, 16, 4, 2, 256, 4),
)
WIDE, WIDE_STAGES, WIDE_ROWS = (16, 8, 1, 256), 3, 8  # from so many rows on, where it fits
INVARIANT = (8, 1, 8, 256, 11)  # whole tiles: batch, warps_n, warps_k, stage_k, stages


def configurations(problem: ExpertsProblem, device: Device) -> list[MoeConfig]:
    rows = problem.rows_per_expert
    if problem.batch_invariant:
        *sizes, stages = INVARIANT
        return [configured(MoeConfig, problem, stages, **_fields(problem, *sizes, whole=True))]
    *sizes, stages = next(rest for most, *rest in ARRANGEMENTS if most is None or rows <= most)
    wide = None
    if rows >= WIDE_ROWS:
        wide = fitting(MoeConfig, problem, WIDE_STAGES, WIDE_STAGES, **_fields(problem, *WIDE))
    return [wide or configured(MoeConfig, problem, stages, **_fields(problem, *sizes))]


def _fields(problem: ExpertsProblem, batch, warps_n, warps_k, stage_k, whole=False) -> dict:
    return {
        "batch": batch,
        "warps_n": warps_n,
        "warps_k": warps_k,
        "stage_k": stage_k,
        "resident": 1,
        "whole": whole,
        "ragged": bool(problem.k % stage_k or problem.n % (COLUMNS * warps_n)),
    }


invariant_configurations = configurations


def described(problem: ExpertsProblem, config: MoeConfig, device: Device) -> Description:
    rows, blocks = problem.rows_per_expert, config.grid(problem.m, problem.n, problem.k, device.sms)
    most = config.most_row_blocks(problem.m)
    reasons = [
        f"an even routing gives an expert {rows:.3g} row{'s' * (rows != 1)} of x, in tiles of"
        f" {config.batch} x {config.columns}; an expert without a token costs nothing",
        f"{config.steps(problem.m, problem.n, problem.k):,} steps of {config.stage_k} of k at most,"
        + (
            " whole tiles for each block: a row's bits do not depend on the other tokens"
            if config.whole
            else f" in equal stripes for {blocks[0]} blocks, whatever the routing is"
        ),
        f"a ring of {config.stages} stages of {config.stage_bytes / 1024:g} KiB",
    ]
    reasons += of_sums(problem)
    tiles = {"n": ceil_div(problem.n, config.columns)}
    work = {"most_row_blocks": most, "tiles": tiles}
    return Description(None, tuple(reasons), work, leads=rows < MANY_ROWS)


def check(config: MoeConfig, problem: ExpertsProblem) -> None:
    check_mixture(config, problem)
    uneven = problem.k % config.stage_k or problem.n % config.columns
    if uneven and not config.ragged:
        raise ValueError(
            f"k={problem.k} must be a multiple of stage_k={config.stage_k} and n={problem.n} of"
            f" {config.columns}, or config.ragged=True"
        )

"""The configurations of ``wgmma_int8`` for a problem, and how long each is expected to take.

Nothing was timed yet: steps are as long as ``kernel`` expects them from counts, or as long as the
bare loop with promotion took on an H200 where that is more (1,110 TFLOP/s; 1,700 expected without).
Tiles are whole, so that few tiles leave SMs idle.
"""

from __future__ import annotations

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.language.choice import (
    Description,
    check_groups,
    check_types,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.w4a8.wgmma_int8.config import MOST_K, STAGE_K, WgmmaInt8Config
from numba_marlin.problems import ActivationsProblem

# tile_m, tile_n, warpgroups, stages; the last two with one scale per column only
GROUPED = ((16, 128, 2, 10), (32, 128, 2, 10), (64, 128, 2, 8), (64, 256, 2, 6), (128, 128, 2, 6))
COLUMNS = ((128, 256, 2, 4), (256, 128, 2, 4))
LAUNCH_US, TILE_US, LEAST_STEP_US = 2.5, 0.5, 0.2
GROUPED_FLOPS, COLUMN_FLOPS, FITTED_SMS = 1.11e15, 1.7e15, 132


def configurations(problem: ActivationsProblem, device: Device) -> list[WgmmaInt8Config]:
    """Every arrangement, with the problem's types."""
    blocks = group_blocks_of(problem)
    if blocks == -1 and problem.k > MOST_K:
        raise ValueError(f"k={problem.k} must be {MOST_K} at most with one scale per column")
    found = [
        with_stages_that_fit(
            WgmmaInt8Config,
            stages,
            2,
            tile_m=tile_m,
            tile_n=tile_n,
            warpgroups=warpgroups,
            group_blocks=blocks,
            **types_of(WgmmaInt8Config, problem),
        )
        for tile_m, tile_n, warpgroups, stages in GROUPED + (COLUMNS if blocks == -1 else ())
    ]
    return [config for config in found if config is not None]


invariant_configurations = configurations  # all have one order of sums


def described(problem: ActivationsProblem, config: WgmmaInt8Config, device: Device) -> Description:
    tiles = config.tiles(problem.m, problem.n)
    rounds, steps = ceil_div(tiles, device.sms), ceil_div(problem.k, STAGE_K)
    rate = (GROUPED_FLOPS if config.grouped else COLUMN_FLOPS) / FITTED_SMS
    step_us = 1e6 * 2 * config.tile_m * config.tile_n * STAGE_K / rate
    passes = ceil_div(problem.m, config.tile_m)
    reasons = (
        f"{tiles:,} tiles of {config.tile_m} rows by {config.tile_n} columns for {device.sms} SMs:"
        f" {'every weight is read once' if passes == 1 else f'weights are read {passes} times'}",
        "int8 products: sums of groups are exact",
        "nobody timed this kernel: its time is counted, not measured",
    )
    return Description(
        LAUNCH_US + rounds * (TILE_US + steps * max(LEAST_STEP_US, step_us)),
        reasons,
        {"tiles": {"m": passes, "n": ceil_div(problem.n, config.tile_n)}},
    )


def check(config: WgmmaInt8Config, problem: ActivationsProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types and groups."""
    check_types(config, problem)
    check_groups(config, problem)

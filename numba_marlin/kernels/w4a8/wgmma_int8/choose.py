"""The configurations of ``wgmma_int8`` for a problem, and how long each is expected to take.

Nothing was timed yet. A step of 128 of k takes what its instructions need of the schedulers'
cycles, or its products of the tensor cores', whichever is more, and a quarter in addition for what
two warpgroups do not hide of each other; never less than what a lone step waits for. Instructions
of a warp are those of the SASS to within 3%: 46, and for each strip 40 (77 with zero points) and 3
for each sum that is promoted. Tiles are whole, so that few tiles leave SMs idle.
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

# tile_m, tile_n, warpgroups, stages. Of those that are expected to take as long, the first is taken
COLUMNS = ((128, 256, 2, 4), (256, 128, 2, 4))  # with one scale per column only
GROUPED = ((128, 128, 2, 6), (64, 256, 2, 6), (64, 128, 2, 8), (32, 128, 2, 10), (16, 128, 2, 10))
LAUNCH_US, TILE_US = 2.5, 0.5
MHZ, PRODUCTS_PER_CYCLE, SCHEDULERS = 1750, 4096, 4  # of an SM of an H200 under load
STEP, STRIP, STRIP_WITH_ZEROS, PROMOTION = 46, 40, 77, 3  # instructions of a warp
NOT_HIDDEN, LEAST_CYCLES = 1.25, 400


def configurations(problem: ActivationsProblem, device: Device) -> list[WgmmaInt8Config]:
    """Every arrangement, with the problem's types, but for tiles that would be half empty."""
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
        for tile_m, tile_n, warpgroups, stages in (COLUMNS if blocks == -1 else ()) + GROUPED
        if tile_m < 2 * max(problem.m, 16)
    ]
    return [config for config in found if config is not None]


invariant_configurations = configurations  # all have one order of sums


def step_cycles(config: WgmmaInt8Config) -> float:
    """Of a step, expected."""
    strip = STRIP if config.zeros is None else STRIP_WITH_ZEROS
    promotions = config.scale_rows if config.grouped else 0
    instructions = STEP + config.strips * (strip + PROMOTION * config.accumulators * promotions)
    issue = instructions * 4 * config.warpgroups / SCHEDULERS
    tensor = config.tile_m * config.tile_n * STAGE_K / PRODUCTS_PER_CYCLE
    return max(LEAST_CYCLES, NOT_HIDDEN * max(issue, tensor))


def described(problem: ActivationsProblem, config: WgmmaInt8Config, device: Device) -> Description:
    tiles = config.tiles(problem.m, problem.n)
    rounds, steps = ceil_div(tiles, device.sms), ceil_div(problem.k, STAGE_K)
    passes = ceil_div(problem.m, config.tile_m)
    reasons = (
        f"{tiles:,} tiles of {config.tile_m} rows by {config.tile_n} columns for {device.sms} SMs:"
        f" {'every weight is read once' if passes == 1 else f'weights are read {passes} times'}",
        "int8 products: sums of groups are exact",
        "nobody timed this kernel: its time is counted, not measured",
    )
    return Description(
        LAUNCH_US + rounds * (TILE_US + steps * step_cycles(config) / MHZ),
        reasons,
        {"tiles": {"m": passes, "n": ceil_div(problem.n, config.tile_n)}},
    )


def check(config: WgmmaInt8Config, problem: ActivationsProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types and groups."""
    check_types(config, problem)
    check_groups(config, problem)

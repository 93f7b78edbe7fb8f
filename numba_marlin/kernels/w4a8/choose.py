"""The configurations of ``wgmma_int8`` and ``wgmma_fp8`` for a problem, and how long each is expected to take.

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
from numba_marlin.kernels.w4a8.config import CONFIGS, MOST_K, STAGE_K, WgmmaBytesConfig
from numba_marlin.problems import ActivationsProblem

# tile_m, tile_n, warpgroups, stages. Of those that are expected to take as long, the first is taken
COLUMNS = ((128, 256, 2, 4), (256, 128, 2, 4))  # with one scale per column only
GROUPED = ((128, 128, 2, 6), (64, 256, 2, 6), (64, 128, 2, 8), (32, 128, 2, 10), (16, 128, 2, 10))
LAUNCH_US, TILE_US = 2.5, 0.5
MHZ, PRODUCTS_PER_CYCLE, SCHEDULERS = 1750, 4096, 4  # of an SM of an H200 under load
# instructions of a warp: of a step; of a strip, without and with zero points; of a promotion
STEP, STRIP, PROMOTION = 46, {"int8": (40, 77), "fp8": (80, 93)}, {"int8": 3, "fp8": 1}
SUMS = {
    "int8": "int8 products: sums of groups are exact",
    "fp8": "e4m3 products: sums of 128 of k at most before they are added up in fp32",
}
NOT_HIDDEN, LEAST_CYCLES = 1.25, 400


def configurations(problem: ActivationsProblem, device: Device) -> list[WgmmaBytesConfig]:
    """Every arrangement, with the problem's types, but for tiles that would be half empty."""
    blocks, config_type = group_blocks_of(problem), CONFIGS[problem.activations]
    exact_columns = blocks == -1 and problem.activations == "int8"
    if exact_columns and problem.k > MOST_K:
        raise ValueError(f"k={problem.k} must be {MOST_K} at most with one scale per column")
    found = [
        with_stages_that_fit(
            config_type,
            stages,
            2,
            tile_m=tile_m,
            tile_n=tile_n,
            warpgroups=warpgroups,
            group_blocks=blocks,
            **types_of(config_type, problem),
        )
        for tile_m, tile_n, warpgroups, stages in (COLUMNS if exact_columns else ()) + GROUPED
        if tile_m < 2 * max(problem.m, 16)
    ]
    return [config for config in found if config is not None]


invariant_configurations = configurations  # all have one order of sums


def step_cycles(config: WgmmaBytesConfig) -> float:
    """Of a step, expected."""
    kind = config.activations
    promotion = PROMOTION[kind] * config.accumulators * config.scale_rows * config.promotes
    instructions = STEP + config.strips * (STRIP[kind][config.zeros is not None] + promotion)
    issue = instructions * 4 * config.warpgroups / SCHEDULERS
    tensor = config.tile_m * config.tile_n * STAGE_K / PRODUCTS_PER_CYCLE
    return max(LEAST_CYCLES, NOT_HIDDEN * max(issue, tensor))


def described(problem: ActivationsProblem, config: WgmmaBytesConfig, device: Device) -> Description:
    tiles = config.tiles(problem.m, problem.n)
    rounds, steps = ceil_div(tiles, device.sms), ceil_div(problem.k, STAGE_K)
    passes = ceil_div(problem.m, config.tile_m)
    reasons = (
        f"{tiles:,} tiles of {config.tile_m} rows by {config.tile_n} columns for {device.sms} SMs:"
        f" {'every weight is read once' if passes == 1 else f'weights are read {passes} times'}",
        SUMS[config.activations],
        "nobody timed this kernel: its time is counted, not measured",
    )
    return Description(
        LAUNCH_US + rounds * (TILE_US + steps * step_cycles(config) / MHZ),
        reasons,
        {"tiles": {"m": passes, "n": ceil_div(problem.n, config.tile_n)}},
    )


def check(config: WgmmaBytesConfig, problem: ActivationsProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types and groups."""
    check_types(config, problem)
    check_groups(config, problem)

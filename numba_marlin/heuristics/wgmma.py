"""The Hopper kernel's configurations for a problem, and how long each is likely to take.

The times are modelled: the steps (64 of k) that a block multiplies one after the other, each of a time that depends on the tile, and a fixed part for
the start, the output and, where blocks share tiles, the exchange of sums. Steps were fitted to runs on an H200 (132 multiprocessors, launches back to
back, weights not in L2): 8192 x 8192 and 16384 x 33792, m = 16 to 4096. At m = 4096 the card lowers its clocks, and the model is 15% too fast.

What was seen: tiles of 256 columns until their sums fill the registers (128 rows), then 128 columns by 256 rows. Where there are fewer tiles than
multiprocessors, pairs of blocks that add up through each other's shared memory cost less than equal parts of k with sums in the workspace, but only
if pairs of tiles come out even. A second row of consumers pays up to 32 rows: with so little to multiply, warps wait for their own latency.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from numba_marlin.devices import Device
from numba_marlin.heuristics.choice import Description, check_groups, check_types, group_blocks_of, types_of, with_stages_that_fit
from numba_marlin.heuristics.problem import Problem
from numba_marlin.kernels.definition import ceil_div
from numba_marlin.kernels.wgmma_config import STAGE_K, WgmmaConfig

FIXED_US = 5.0
SHARING_US = 9.0  # more, where blocks exchange a tile of 128 x 256 sums through the workspace
STEP_US = {  # of a tile of so many rows and columns
    (16, 256): 0.350, (32, 256): 0.385, (64, 256): 0.470, (128, 256): 0.680,
    (64, 128): 0.300, (128, 128): 0.395, (256, 128): 0.680, (256, 64): 0.370,
}
LARGEST_STEP_US, LARGEST_TILE = 0.680, 128 * 256


@dataclass(frozen=True)
class Arrangement:
    """The fields of a configuration that the problem does not fix."""

    tile_m: int
    tile_n: int
    warpgroups: int
    stages: int
    split: bool = False
    k_groups: int = 1
    cluster: int = 1


ARRANGEMENTS = (
    Arrangement(16, 256, 2, 12, False, 2), Arrangement(16, 256, 2, 12, True, 2),
    Arrangement(32, 256, 2, 8, False, 2), Arrangement(32, 256, 2, 8, True, 2),
    Arrangement(64, 256, 2, 8), Arrangement(64, 256, 2, 8, True), Arrangement(64, 128, 2, 10, False, 1, 2), Arrangement(64, 128, 2, 10, False, 1, 4),
    Arrangement(128, 256, 2, 6), Arrangement(128, 256, 2, 6, True),
    Arrangement(128, 128, 2, 7), Arrangement(128, 128, 2, 7, False, 1, 2), Arrangement(128, 128, 2, 7, False, 1, 4),
    Arrangement(256, 128, 2, 4), Arrangement(256, 128, 2, 4, True), Arrangement(256, 64, 1, 4),
)


def configurations(problem: Problem, device: Device) -> list[WgmmaConfig]:
    """Every arrangement, with fewer stages where small groups' scales take their place."""
    found = []
    for each in ARRANGEMENTS:
        if each.cluster > device.sms:
            continue
        settings = asdict(each)
        for stages in range(settings.pop("stages"), 2 * each.k_groups - 1, -each.k_groups):
            config = with_stages_that_fit(WgmmaConfig, stages, stages, **settings, group_blocks=group_blocks_of(problem), **types_of(WgmmaConfig, problem))
            if config is not None:
                found.append(config)
                break
    return [config for config in found if not config.split or shares_tiles(problem, config, device.sms)]


def shares_tiles(problem: Problem, config: WgmmaConfig, sms: int) -> bool:
    """Whether there are tiles left over that do not fill a wave, to be cut along k."""
    return config.split and config.tiles(problem.m, problem.n) % config.grid(problem.m, problem.n, problem.k, sms)[0] != 0


def described(problem: Problem, config: WgmmaConfig, device: Device) -> Description:
    return Description(predicted_us(problem, config, device), reasons(problem, config, device.sms), work(problem, config, device.sms))


def check(config: WgmmaConfig, problem: Problem) -> None:
    """ValueError unless ``config`` was made for the problem's types and groups."""
    check_types(config, problem)
    check_groups(config, problem)


def work(problem: Problem, config: WgmmaConfig, sms: int) -> dict:
    tiles = {"k": ceil_div(problem.k, STAGE_K), "n": ceil_div(problem.n, config.tile_n), "m": ceil_div(problem.m, config.tile_m)}
    blocks = config.grid(problem.m, problem.n, problem.k, sms)[0]
    count = tiles["n"] * tiles["m"]
    if config.split:
        per_block = ceil_div(count * tiles["k"], blocks)
    else:
        per_block = ceil_div(count, blocks // config.cluster) * ceil_div(tiles["k"], config.cluster)
    return {"tiles": tiles, "tiles_per_block": per_block, "busy": round(count * tiles["k"] / (per_block * max(blocks, sms)), 3)}


def predicted_us(problem: Problem, config: WgmmaConfig, device: Device) -> float:
    sums = config.tile_m * config.tile_n / LARGEST_TILE
    step_us = STEP_US.get((config.tile_m, config.tile_n), max(0.3, LARGEST_STEP_US * sums))
    sharing_us = SHARING_US * sums + 1 if shares_tiles(problem, config, device.sms) else 0
    return FIXED_US + sharing_us + work(problem, config, device.sms)["tiles_per_block"] * step_us


def reasons(problem: Problem, config: WgmmaConfig, sms: int) -> tuple[str, ...]:
    tiles, passes = config.tiles(problem.m, problem.n), ceil_div(problem.m, config.tile_m)
    read = "every weight is read once" if passes == 1 else f"weights are read {passes} times, mostly from L2"
    found = [f"{tiles:,} tiles of {config.tile_m} rows by {config.tile_n} columns for {sms} SMs: {read}"]
    if problem.m < config.tile_m:
        found.append(f"m={problem.m} fills {problem.m / config.tile_m:.0%} of a tile's rows")
    if config.cluster > 1:
        found.append(f"{config.cluster} blocks share each tile along k and add up through each other's shared memory")
    elif shares_tiles(problem, config, sms):
        found.append("tiles that do not fill a wave are cut along k into equal parts; who comes last adds up, nobody waits")
    else:
        found.append("whole tiles only: no sums to exchange")
    if config.k_groups > 1:
        found.append("two rows of consumers take turns with the stages: with few rows to multiply, a warp waits for its own latency")
    return tuple(found)

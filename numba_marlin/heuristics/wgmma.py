"""The Hopper kernel's configurations for a problem, and how long each is likely to take.

The times are modelled: a fixed part of the launch, a part for each tile of the busiest block, and the steps of k = 64 that it multiplies, each as long as
its arrangement took on an H200 (132 multiprocessors, graphs of launches, weights not in L2). Fitted to m = 32 to 4096, 8192 x 8192 and
16384 x 33792, g = 128. Within 10% of those.

What was seen: up to m = 64 the integer units are the limit, not the memory (the loads alone run at 4.3 TB/s): ALU 40-50% busy, issue slots 50-60%, and
warps wait to be dispatched while wgmma uses the registers. A second row of consumers is worth 5% at m = 32, nothing at m = 64. From 128 rows on
the tensor pipe is 94% busy, at a clock that falls with the power drawn. Sharing k by stripes costs 4 us and loses to whole tiles, and to pairs of blocks, wherever
128 sums a thread go through the workspace. A device of 132 multiprocessors holds 66 clusters of two, but only 30 of four: clusters of four lost everywhere.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from numba_marlin.devices import Device
from numba_marlin.heuristics.choice import Description, check_groups, check_types, group_blocks_of, types_of, with_stages_that_fit
from numba_marlin.heuristics.problem import Problem
from numba_marlin.kernels.definition import ceil_div
from numba_marlin.kernels.wgmma_config import STAGE_K, WgmmaConfig

SUSTAINED_US, SUSTAINED_SLOWER = 400, 1.12  # what a long launch loses to falling clocks
LARGEST_TILE, LARGEST_STEP_US = 128 * 256, 0.680


@dataclass(frozen=True)
class Arrangement:
    """The fields of a configuration that the problem does not fix."""

    tile_m: int
    tile_n: int
    warpgroups: int
    stages: int
    k_groups: int
    cluster: int
    split: bool

    def like(self, config: WgmmaConfig) -> bool:
        """Whether ``config`` is arranged so, be it with fewer stages."""
        return all(getattr(config, name) == value for name, value in asdict(self).items() if name != "stages")


FITTED = {  # us of a launch, of a tile besides its steps, of a step
    Arrangement(32, 256, 2, 8, 2, 1, True): (7.0, 0.0, 0.39),
    Arrangement(32, 256, 2, 8, 2, 1, False): (4.0, 0.5, 0.39),
    Arrangement(64, 256, 2, 8, 1, 1, True): (8.0, 0.0, 0.485),
    Arrangement(64, 256, 2, 8, 1, 1, False): (4.0, 0.5, 0.485),
    Arrangement(128, 128, 2, 7, 1, 2, False): (0.5, 4.5, 0.40),
    Arrangement(128, 128, 2, 7, 1, 1, False): (4.0, 0.5, 0.40),
    Arrangement(128, 256, 2, 6, 1, 1, False): (4.0, 0.5, 0.68),
    Arrangement(256, 64, 1, 4, 1, 1, False): (4.0, 0.5, 0.375),
    Arrangement(256, 128, 2, 4, 1, 1, False): (3.0, 0.5, 0.675),
}


# Whole tiles, for the batch-invariant mode: pairs of blocks, and blocks of narrow tiles, for few rows as well. Nobody timed the added ones.
WHOLE = tuple(each for each in FITTED if not each.split) + (
    Arrangement(32, 128, 2, 8, 1, 2, False), Arrangement(64, 128, 2, 8, 1, 2, False), Arrangement(32, 128, 2, 8, 1, 1, False), Arrangement(64, 128, 2, 8, 1, 1, False),
)


def configurations(problem: Problem, device: Device) -> list[WgmmaConfig]:
    """Every arrangement that was measured; those that share tiles only where there are any to share."""
    return [config for config in _arranged(FITTED, problem, device) if not config.split or shares_tiles(problem, config, device.sms)]


def invariant_configurations(problem: Problem, device: Device) -> list[WgmmaConfig]:
    """Whole tiles."""
    return _arranged(WHOLE, problem, device)


def _arranged(arrangements, problem: Problem, device: Device) -> list[WgmmaConfig]:
    """With fewer stages where small groups' scales take their place."""
    found = []
    for each in arrangements:
        # A tile of 256 rows of which half or more do not exist took twice the time of a full one; why is not known.
        half_empty = each.tile_m == 256 and 0 < problem.m % 256 <= 128 and problem.m < 512
        if each.cluster > device.sms or half_empty:
            continue
        settings = asdict(each)
        for stages in range(settings.pop("stages"), 2 * each.k_groups - 1, -each.k_groups):
            config = with_stages_that_fit(WgmmaConfig, stages, stages, **settings, group_blocks=group_blocks_of(problem), **types_of(WgmmaConfig, problem))
            if config is not None:
                found.append(config)
                break
    return found


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
    # for what nobody measured
    guess = (*((0.5, 4.5) if config.cluster > 1 else (8.0 if config.split else 4.0, 0.5)), max(0.3, LARGEST_STEP_US * config.tile_m * config.tile_n / LARGEST_TILE))
    fixed_us, tile_us, step_us = next((fit for each, fit in FITTED.items() if each.like(config)), guess)
    tiles, steps, teams = config.tiles(problem.m, problem.n), ceil_div(problem.k, STAGE_K), max(1, device.sms // config.cluster)
    if config.split:
        rounds, left = divmod(tiles, teams)
        busiest = rounds * steps + ceil_div(left * steps, teams)
    else:
        rounds = ceil_div(tiles, teams)
        busiest = rounds * ceil_div(steps, config.cluster)
    time = fixed_us + rounds * tile_us + busiest * step_us
    return time * SUSTAINED_SLOWER if time > SUSTAINED_US and config.tile_m >= 128 else time


def was_timed(config: WgmmaConfig) -> bool:
    return any(each.like(config) for each in FITTED)


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
    if not was_timed(config):
        found.append("nobody timed this arrangement: its time is a guess")
    return tuple(found)

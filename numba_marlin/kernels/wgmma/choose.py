"""The Hopper kernel's configurations for a problem, and how long each is likely to take.

The times are modelled: the launch, what each tile of the busiest block costs besides its steps, and
the steps of k = 64 that it multiplies, each as long as its arrangement took on an H200 (132
multiprocessors, graphs of launches, weights not in L2). Fitted to rows of m = 1 to 4096, 32 real
layers and, at a few m, layers up to 135168 x 33792, g = 128 (experiments/25_every_cell, ``refit``,
2026-11-28): 4% off on average, and as much for layers that were held out.
Block-scaled FP4 takes INT4's times (experiments/06_nvfp4).

Tiles of other rows than powers of two fill 132 multiprocessors where those do not: 512 rows by 5120
columns are three by forty tiles of 176 x 128, one wave. A step of a tile that was not timed is
interpolated over tile_m between its timed neighbours of the same columns and consumers.
Columns between 128 and 256 are not there: a warp of a warpgroup has strips of one panel, and four
warps share three panels with neither equal work nor one m64 of ``wgmma``.

What was seen: up to m = 64 neither the memory (a step of 256 columns is 0.26 us of it) nor the
tensor cores are the limit. At 8192 x 57344 a launch took, of all / without dequantising / without
multiplying: 79 / 62 / 58 us at m = 16, 89 / 69 / 60 at 32, 118 / 94 / 67 at 64: warps wait to be
dispatched while wgmma uses the registers. From 128 rows on the tensor pipe is 94% busy, at a clock
that falls with the power drawn.

Who shares a tile (sizes of W are k x n): equal parts (``parts``), as many as there are
multiprocessors for, win where tiles are few: 28672 x 8192, m = 256: 157 us, stripes 165, whole
tiles 180. Stripes win where tiles fill a wave and some more: 8192 x 57344, m = 256: 325 us, whole
383. But row tiles that stripes cut are at other steps of k at the same time, and weights come from
memory once for each: 28672 x 8192, m = 1024: 782 us, whole 685.

Dead ends: pairs of blocks that add up in each other's shared memory (``cluster``) were level with
two parts, or up to 5% behind; a device of 132 multiprocessors holds 66 clusters of two, but only 30
of four. Four k16 rows in flight instead of two gained 5% at m = 16 and 1% from 32 on, and ptxas
serialised more. Two blocks a multiprocessor, so that those of the next launch copy weights
meanwhile: 16% faster to 65% slower, and never the fastest of a problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.hopper.parts import PARTS
from numba_marlin.kernels.language.choice import (
    Description,
    check_groups,
    check_types,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.wgmma.config import STAGE_K, WgmmaConfig
from numba_marlin.problems import WeightProblem

LARGEST_TILE = 128 * 256


@dataclass(frozen=True)
class Arrangement:
    """The fields of a configuration that the problem does not fix, but for who shares a tile."""

    tile_m: int
    tile_n: int
    warpgroups: int
    k_groups: int
    stages: int

    def like(self, config: WgmmaConfig) -> bool:
        """Whether ``config`` is arranged so, be it with fewer stages."""
        return self.tile_m == config.tile_m and self.columns_like(config)

    def columns_like(self, config: WgmmaConfig) -> bool:
        """Whether ``config`` is arranged so but for its rows and stages."""
        return (self.tile_n, self.warpgroups, self.k_groups) == (
            config.tile_n,
            config.warpgroups,
            config.k_groups,
        )


STEP_US = {
    Arrangement(16, 128, 1, 2, 12): 0.217,
    Arrangement(16, 256, 2, 2, 12): 0.33,
    Arrangement(32, 128, 1, 2, 12): 0.222,
    Arrangement(32, 256, 2, 2, 8): 0.358,
    Arrangement(32, 256, 2, 1, 12): 0.363,
    Arrangement(48, 128, 1, 2, 12): 0.2336,
    Arrangement(48, 256, 2, 1, 8): 0.3826,
    Arrangement(64, 128, 1, 2, 12): 0.2533,
    Arrangement(64, 128, 2, 1, 12): 0.2923,
    Arrangement(64, 256, 2, 1, 8): 0.4228,
    Arrangement(96, 128, 1, 2, 8): 0.2896,
    Arrangement(96, 256, 2, 1, 8): 0.5039,
    Arrangement(112, 256, 2, 1, 7): 0.556,
    Arrangement(128, 64, 1, 2, 8): 0.2246,
    Arrangement(128, 128, 1, 2, 6): 0.3448,
    Arrangement(128, 256, 2, 1, 6): 0.629,
    Arrangement(160, 128, 2, 1, 6): 0.42,
    Arrangement(176, 128, 2, 1, 6): 0.448,
    Arrangement(192, 128, 2, 1, 6): 0.4771,
    Arrangement(256, 128, 2, 1, 4): 0.6298,
}
INVARIANT_PARTS = (1, 2, 4)


@dataclass(frozen=True, eq=False)
class Costs:
    """What the prediction adds up, in microseconds unless a line says otherwise.
    ``experiments/25_every_cell`` fits it to rows."""

    launch: float = 2.37
    #: less of it where multiprocessors are left without a block, as blocks of the next launch begin
    #: there: for all of them; and the least that is left
    idle: float = 3.99
    least_launch: float = 0.5
    #: of a product, at least: none that was timed took less than 4.1
    least: float = 3.0
    #: of a tile that a cluster shares
    cluster_tile: float = 5.0
    #: of a tile, where two k groups add up
    k_groups: float = 0.544
    #: of a KiB of fp32 sums: of a tile that a block has alone; of one in parts, and each part more;
    #: of stripes, once a launch, and for each block that shares a tile
    whole_tile: float = 0.0133
    parts: float = 0.034
    part: float = 0.0127
    stripes: float = 0.0737
    sharer: float = 0.0101
    #: factors of steps in stripes: at least; more for each row of tiles but one; at most
    stripes_slower: float = 1.09
    row_slower: float = 0.0135
    at_most_slower: float = 1.4
    #: falling clocks: between which lengths of a launch, of tiles of how many rows, by which
    #: factor at most
    sustained_from: float = 60.0
    sustained_to: float = 500.0
    sustained_rows: int = 64
    sustained_slower: float = 1.14
    #: a step of 128 x 256, which others are guessed from, and the least guess
    largest_step: float = 0.629
    least_step: float = 0.2
    #: {Arrangement: a step of k = 64}
    step: Mapping[Arrangement, float] = field(default_factory=lambda: STEP_US)

    def of_clocks(self, us: float, tile_m: int) -> float:
        """The factor of falling clocks for a launch that would take ``us`` without."""
        if us <= self.sustained_from or tile_m < self.sustained_rows:
            return 1.0
        length = math.log(us / self.sustained_from) / math.log(
            self.sustained_to / self.sustained_from
        )
        return 1 + (self.sustained_slower - 1) * min(length, 1.0)

    def step_of(self, config: WgmmaConfig) -> float:
        """Of an arrangement that was not timed: between its neighbours, or, if it has none on both
        sides, in proportion to its tile."""
        steps = {each.tile_m: us for each, us in self.step.items() if each.columns_like(config)}
        if config.tile_m in steps:
            return steps[config.tile_m]
        above = min((rows for rows in steps if rows > config.tile_m), default=None)
        below = max((rows for rows in steps if rows < config.tile_m), default=None)
        if above is None or below is None:
            share = config.tile_m * config.tile_n / LARGEST_TILE
            return max(self.least_step, self.largest_step * share)
        share = (config.tile_m - below) / (above - below)
        return steps[below] + share * (steps[above] - steps[below])


COSTS = Costs()


def configurations(problem: WeightProblem, device: Device) -> list[WgmmaConfig]:
    """Every arrangement of STEP_US: with whole tiles, with as many parts of each as there
    are multiprocessors for, and in stripes if they cut any."""
    found = []
    for arrangement in STEP_US:
        tiles = ceil_div(problem.m, arrangement.tile_m) * ceil_div(problem.n, arrangement.tile_n)
        parts = max((each for each in PARTS if tiles * each <= device.sms), default=1)
        sharing = [{"parts": parts}] if parts > 1 else []
        if tiles % min(device.sms, tiles * ceil_div(problem.k, STAGE_K)):
            sharing.append({"split": True})
        found += [_arranged(arrangement, problem, **each) for each in ({}, *sharing)]
    return [config for config in found if config is not None]


def invariant_configurations(problem: WeightProblem, device: Device) -> list[WgmmaConfig]:
    """Whole tiles, and those in as many parts whatever m is."""
    found = [
        _arranged(arrangement, problem, parts=parts)
        for arrangement in STEP_US
        for parts in INVARIANT_PARTS
    ]
    return [config for config in found if config is not None]


def _arranged(
    arrangement: Arrangement, problem: WeightProblem, split: bool = False, parts: int = 1
) -> WgmmaConfig | None:
    """With fewer stages where small groups' scales take their place; None if a tile would be all
    but empty."""
    # A tile of 256 rows of which half or more do not exist took twice the time of a full one; why
    # is not known.
    if arrangement.tile_m == 256 and 0 < problem.m % 256 <= 128 and problem.m < 512:
        return None
    settings, k_groups = asdict(arrangement), arrangement.k_groups
    return with_stages_that_fit(
        WgmmaConfig,
        settings.pop("stages"),
        2 * k_groups,
        k_groups,
        **settings,
        split=split,
        parts=parts,
        group_blocks=group_blocks_of(problem),
        **types_of(WgmmaConfig, problem),
    )


def described(problem: WeightProblem, config: WgmmaConfig, device: Device) -> Description:
    return Description(
        predicted_us(problem, config, device),
        reasons(problem, config, device.sms),
        work(problem, config, device.sms),
    )


def check(config: WgmmaConfig, problem: WeightProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types and groups."""
    check_types(config, problem)
    check_groups(config, problem)


def shares_tiles(problem: WeightProblem, config: WgmmaConfig, sms: int) -> bool:
    """Whether there are tiles left over that do not fill a wave, to be cut along k."""
    return (
        config.split
        and config.tiles(problem.m, problem.n)
        % config.grid(problem.m, problem.n, problem.k, sms)[0]
        != 0
    )


def work(problem: WeightProblem, config: WgmmaConfig, sms: int) -> dict:
    tiles = {
        "k": ceil_div(problem.k, STAGE_K),
        "n": ceil_div(problem.n, config.tile_n),
        "m": ceil_div(problem.m, config.tile_m),
    }
    blocks = config.grid(problem.m, problem.n, problem.k, sms)[0]
    count = tiles["n"] * tiles["m"]
    if config.split:
        per_block = ceil_div(count * tiles["k"], blocks)
    else:
        per_block = ceil_div(count, blocks // config.team) * ceil_div(tiles["k"], config.team)
    return {
        "tiles": tiles,
        "tiles_per_block": per_block,
        "busy": round(count * tiles["k"] / (per_block * max(blocks, sms)), 3),
    }


def predicted_us(
    problem: WeightProblem, config: WgmmaConfig, device: Device, costs: Costs = COSTS
) -> float:
    """The time that ``costs`` add up to."""
    step_us = costs.step_of(config)
    tiles, steps, teams = (
        config.tiles(problem.m, problem.n),
        ceil_div(problem.k, STAGE_K),
        max(1, device.sms // config.team),
    )
    sums_kib, groups_us = config.partial_bytes / 1024, costs.k_groups * (config.k_groups - 1)
    whole_tile_us = costs.whole_tile * sums_kib
    blocks = config.grid(problem.m, problem.n, problem.k, device.sms)[0]
    time = max(costs.least_launch, costs.launch - costs.idle * (1 - blocks / device.sms))
    if config.split:
        rounds, left = divmod(tiles, teams)
        row_tiles = ceil_div(problem.m, config.tile_m)
        slower = min(
            costs.stripes_slower + costs.row_slower * (row_tiles - 1), costs.at_most_slower
        )
        time += rounds * (whole_tile_us + groups_us + steps * step_us)
        if left:
            sharers = min(teams, left * steps) / left
            time += (costs.stripes + costs.sharer * sharers) * sums_kib + groups_us
            time += ceil_div(left * steps, teams) * slower * step_us
    else:
        if config.team == 1:
            tile_us = whole_tile_us
        elif config.cluster > 1:
            tile_us = costs.cluster_tile
        else:
            tile_us = (costs.parts + costs.part * config.parts) * sums_kib
        tile_us += groups_us + ceil_div(steps, config.team) * step_us
        time += ceil_div(tiles, teams) * tile_us
    return max(costs.least, time * costs.of_clocks(time, config.tile_m))


def was_timed(config: WgmmaConfig) -> bool:
    return config.cluster == 1 and any(each.like(config) for each in STEP_US)


def reasons(problem: WeightProblem, config: WgmmaConfig, sms: int) -> tuple[str, ...]:
    tiles, passes = config.tiles(problem.m, problem.n), ceil_div(problem.m, config.tile_m)
    read = (
        "every weight is read once"
        if passes == 1
        else f"weights are read {passes} times, mostly from L2"
    )
    found = [
        f"{tiles:,} tiles of {config.tile_m} rows by {config.tile_n} columns for {sms} SMs: {read}"
    ]
    if problem.m < config.tile_m:
        found.append(f"m={problem.m} fills {problem.m / config.tile_m:.0%} of a tile's rows")
    if config.cluster > 1:
        found.append(
            f"{config.cluster} blocks share each tile along k and add up through each other's"
            " shared memory"
        )
    elif config.parts > 1:
        found.append(
            f"{config.parts} blocks share each tile along k, in equal parts; who comes last adds"
            " up, nobody waits"
        )
    elif shares_tiles(problem, config, sms):
        found.append(
            "tiles that do not fill a wave are cut along k into equal stripes; who comes last adds"
            " up, nobody waits"
        )
    else:
        found.append("whole tiles only: no sums to exchange")
    if config.k_groups > 1:
        found.append(
            "two k groups of consumers take turns with the stages: with few rows to multiply, a"
            " warp waits for its own latency"
        )
    if not was_timed(config):
        found.append("nobody timed this arrangement: its time is a guess")
    return tuple(found)

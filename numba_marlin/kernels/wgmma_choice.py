"""Which configurations of the Hopper kernel for larger batches suit a problem, and how long each is likely to take. Pure.

``choices(m, n, k, group_size, sms, ...)`` -> tuple of Choice(config, microseconds), the fastest first. The times are modelled: a fixed part of the launch,
a part for each tile of the busiest block, and the steps of k = 64 that it multiplies, each as long as its arrangement took on an H200 (132
multiprocessors, graphs of launches, weights not in L2). Fitted to m = 32 to 4096, 8192 x 8192 and 16384 x 33792, g = 128. Within 10% of those.

What was seen: up to m = 64 the integer units are the limit, not the memory (the loads alone run at 4.3 TB/s): ALU 40-50% busy, issue slots 50-60%, and
warps wait to be dispatched while wgmma uses the registers. A second row of consumers is worth 5% at m = 32, nothing at m = 64. From 128 rows on
the tensor pipe is 94% busy, at a clock that falls with the power drawn. Sharing k by stripes costs 4 us and loses to whole tiles, and to pairs of blocks, wherever
128 sums a thread go through the workspace. A device of 132 multiprocessors holds 66 clusters of two, but only 30 of four: clusters of four lost everywhere.
"""
from dataclasses import dataclass

from numba_marlin.kernels.definition import ceil_div
from numba_marlin.kernels.wgmma_config import STAGE_K, WgmmaConfig

SUSTAINED_US, SUSTAINED_SLOWER = 400, 1.12  # what a long launch loses to falling clocks


@dataclass(frozen=True)
class Arrangement:
    """The fields of a configuration that the problem does not fix; fixed_us: of a launch; tile_us: of a tile besides its steps; step_us: of a step."""
    tile_m: int
    tile_n: int
    warpgroups: int
    stages: int
    k_groups: int
    cluster: int
    split: bool
    fixed_us: float
    tile_us: float
    step_us: float


ARRANGEMENTS = (
    Arrangement(32, 256, 2, 8, 2, 1, True, 7.0, 0.0, 0.39),
    Arrangement(32, 256, 2, 8, 2, 1, False, 4.0, 0.5, 0.39),
    Arrangement(64, 256, 2, 8, 1, 1, True, 8.0, 0.0, 0.485),
    Arrangement(64, 256, 2, 8, 1, 1, False, 4.0, 0.5, 0.485),
    Arrangement(128, 128, 2, 7, 1, 2, False, 0.5, 4.5, 0.40),
    Arrangement(128, 128, 2, 7, 1, 1, False, 4.0, 0.5, 0.40),
    Arrangement(128, 256, 2, 6, 1, 1, False, 4.0, 0.5, 0.68),
    Arrangement(256, 64, 1, 4, 1, 1, False, 4.0, 0.5, 0.375),
    Arrangement(256, 128, 2, 4, 1, 1, False, 3.0, 0.5, 0.675),
)


@dataclass(frozen=True)
class Choice:
    """microseconds: modelled, see the module."""
    config: WgmmaConfig
    microseconds: float


def choices(m, n, k, group_size, sms, dtype="float16", bias=False):
    """Choices for C[m, n] = A[m, k] @ W[k, n] on a device of ``sms`` multiprocessors of Hopper's kind, the fastest first. Never empty."""
    found = []
    for arrangement in ARRANGEMENTS:
        # A tile of 256 rows of which half or more do not exist took twice the time of a full one; why is not known.
        if arrangement.tile_m == 256 and m % 256 and m % 256 <= 128 and m < 512:
            continue
        config = config_of(arrangement, -1 if group_size == -1 else group_size // 16, dtype, bias)
        found.append(Choice(config, predicted_us(arrangement, config, m, n, k, sms)))
    return tuple(sorted(found, key=lambda choice: choice.microseconds))


def config_of(arrangement, group_blocks, dtype="float16", bias=False):
    a = arrangement
    return WgmmaConfig(a.tile_m, a.tile_n, a.warpgroups, a.stages, group_blocks, a.split, k_groups=a.k_groups, cluster=a.cluster, dtype=dtype, bias=bias)


def predicted_us(arrangement, config, m, n, k, sms):
    tiles, steps, teams = config.tiles(m, n), ceil_div(k, STAGE_K), sms // config.cluster
    if config.split:
        waves, left = divmod(tiles, teams)
        busiest = waves * steps + ceil_div(left * steps, teams)
        rounds = waves
    else:
        rounds = ceil_div(tiles, teams)
        busiest = rounds * ceil_div(steps, config.cluster)
    time = arrangement.fixed_us + rounds * arrangement.tile_us + busiest * arrangement.step_us
    return time * SUSTAINED_SLOWER if time > SUSTAINED_US and config.tile_m >= 128 else time

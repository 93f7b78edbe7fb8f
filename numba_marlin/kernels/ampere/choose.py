"""The faithful kernel's configurations for a problem: the original's two tile shapes, with as many
m16 blocks as m needs, four at most.

Which shape leads depends on whether wide tiles keep three quarters of the SMs busy without sharing
a tile column. If not, blocks share tile columns, and of the deep, narrow tile fewer share one, and
they hand on half as much. (The original decides by m alone: deep up to m = 16, wide above. On an
H200, 8192 x 8192, m = 64: 28.8 us deep, 34.0 wide; 8192 x 57344, m = 1: 91.7 deep, 83.5 wide.)
"""

from __future__ import annotations

from dataclasses import replace

from numba_marlin.hardware.devices import Device
from numba_marlin.hardware.limits import SYSTEM_SHARED_BYTES
from numba_marlin.kernels.ampere.config import AmpereConfig
from numba_marlin.kernels.language.choice import (
    FITTED_BANDWIDTH_PER_SM,
    Description,
    check_groups,
    group_blocks_of,
)
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.layout.stripes import iterations_per_block
from numba_marlin.problems import WeightProblem

DEEP, WIDE = (8, 8), (16, 4)  # the original's tile shapes: (columns, depth) in units of 16
# tiles of each block, with two blocks per SM, from which the second one pays for the tile columns
# that more blocks then share
TILES_FOR_TWO = 100
M_BLOCKS = 4  # most m16 blocks of a tile: above, accumulators no longer fit in registers

# Times on an H200 (experiments/01_faithful), fitted by eye to 10%: us to start and to end, a tile
# of so many m16 blocks, a block more that shares a tile column.
LAUNCH_US = 3.5
TILE_US = {1: 0.37, 2: 0.49, 3: 0.62, 4: 0.745}
PAIR_TILE_US = 0.58  # two blocks on an SM, a tile of each
OTHER_SHAPE = 1.1  # the shape that does not lead takes so many times as long, or longer
SHARING_US = {1: 1.1, 2: 1.5, 3: 1.9, 4: 2.3}


def wide_tile_columns(problem: WeightProblem) -> int:
    """Tile columns of the wide shape, over all row tiles: as many blocks can work without sharing
    one."""
    return ceil_div(problem.n, 16 * WIDE[0]) * ceil_div(problem.m, 16 * M_BLOCKS)


def wide_leads(problem: WeightProblem, sms: int) -> bool:
    """Whether wide tiles, none of them shared, keep at least three quarters of the SMs busy."""
    return 4 * wide_tile_columns(problem) >= 3 * sms


def configuration(
    problem: WeightProblem, tile_shape: tuple[int, int], device: Device
) -> AmpereConfig:
    """The original's configuration for a tile shape; where two blocks fit on an SM and have enough
    to do, those, with a deeper pipeline: more copies in flight (H200, m = 1: 135168 x 33792 655 us
    instead of 741, 8192 x 57344 73.4 instead of 82.6).
    """
    n_blocks, k_blocks = tile_shape
    config = AmpereConfig(
        thread_m_blocks=min(M_BLOCKS, ceil_div(problem.m, 16)),
        thread_n_blocks=n_blocks,
        thread_k_blocks=k_blocks,
        group_blocks=group_blocks_of(problem),
        ragged=bool(problem.k % (16 * k_blocks) or problem.n % (16 * n_blocks)),
    )
    tiles = ceil_div(problem.k, 16 * k_blocks) * ceil_div(problem.n, 16 * n_blocks)
    if config.thread_m_blocks > 1 or tiles < TILES_FOR_TWO * 2 * device.sms:
        return config
    pair = replace(config, stages=6, blocks_per_sm=2)
    fits = 2 * (pair.shared_bytes + SYSTEM_SHARED_BYTES) <= device.architecture.shared_bytes_per_sm
    return pair if fits else config


def configurations(problem: WeightProblem, device: Device) -> list[AmpereConfig]:
    """Both tile shapes, the one that leads first."""
    shapes = (WIDE, DEEP) if wide_leads(problem, device.sms) else (DEEP, WIDE)
    return [configuration(problem, shape, device) for shape in shapes]


def invariant_configurations(problem: WeightProblem, device: Device) -> list[AmpereConfig]:
    """The same with tile columns that are not shared, at the price of SMs that have none."""
    return [replace(config, whole=True) for config in configurations(problem, device)]


def described(problem: WeightProblem, config: AmpereConfig, device: Device) -> Description:
    return Description(
        predicted_us(problem, config, device),
        reasons(problem, config, device.sms),
        work(problem, config, device.sms),
    )


def check(config: AmpereConfig, problem: WeightProblem) -> None:
    """ValueError unless ``config`` was made for the problem's groups and tails."""
    check_groups(config, problem)
    tile_n, tile_k = 16 * config.thread_n_blocks, 16 * config.thread_k_blocks
    if not config.ragged and (problem.n % tile_n or problem.k % tile_k):
        raise ValueError(
            f"config.ragged=False needs n={problem.n} to be a multiple of {tile_n} and"
            f" k={problem.k} of {tile_k}"
        )


def work(problem: WeightProblem, config: AmpereConfig, sms: int) -> dict:
    blocks = config.grid(problem.m, problem.n, problem.k, sms)[0]
    tiles = {
        "k": ceil_div(problem.k, 16 * config.thread_k_blocks),
        "n": ceil_div(problem.n, 16 * config.thread_n_blocks),
        "m": ceil_div(problem.m, 16 * config.thread_m_blocks),
    }
    count = tiles["k"] * tiles["n"] * tiles["m"]
    if config.whole:
        per_block = ceil_div(tiles["n"] * tiles["m"], blocks) * tiles["k"]
    else:
        per_block = iterations_per_block(tiles["k"], tiles["n"], tiles["m"], blocks)
    return {
        "tiles": tiles,
        "tiles_per_block": per_block,
        "busy": round(count / (per_block * max(blocks, sms)), 3),
    }


def predicted_us(problem: WeightProblem, config: AmpereConfig, device: Device) -> float:
    """Tiles of a block one after the other, and the blocks that share a tile column one after the
    other. Another device's memory makes tiles of few rows slower or faster; nothing else was
    fitted."""
    found = work(problem, config, device.sms)
    m_blocks, per_block = config.thread_m_blocks, found["tiles_per_block"]
    tile_us = PAIR_TILE_US if config.blocks_per_sm == 2 else TILE_US[m_blocks]
    if device.bandwidth_bytes and m_blocks <= 2:
        tile_us *= FITTED_BANDWIDTH_PER_SM / (device.bandwidth_bytes / device.sms)
    # How many further blocks share a tile column, at most. If per_block divides k_tiles, stripes
    # begin where tile columns do; else they may begin anywhere in one, and cut it once more. (At
    # worst one too many: so where stripes are two or more whole tile columns, which nobody shares.)
    k_tiles = found["tiles"]["k"]
    sharing = ceil_div(k_tiles, per_block) - (k_tiles % per_block == 0)
    other_shape = (
        1.0
        if (config.thread_n_blocks == WIDE[0]) == wide_leads(problem, device.sms)
        else OTHER_SHAPE
    )
    return other_shape * (LAUNCH_US + per_block * tile_us + SHARING_US[m_blocks] * sharing)


def reasons(problem: WeightProblem, config: AmpereConfig, sms: int) -> tuple[str, ...]:
    m, n, k = problem.m, problem.n, problem.k
    tile_m, tile_n, tile_k = (
        16 * config.thread_m_blocks,
        16 * config.thread_n_blocks,
        16 * config.thread_k_blocks,
    )
    wide = config.thread_n_blocks == WIDE[0]
    columns, wide_first = wide_tile_columns(problem), wide_leads(problem, sms)
    if config.whole:
        rule = (
            f"{work(problem, config, sms)['tiles_per_block']} tiles for each of"
            f" {config.grid(m, n, k, sms)[0]} blocks, whole tile columns only, on {sms} SMs: no"
            " sums to exchange"
        )
    elif wide_first:
        rule = (
            f"wide tiles make {columns:,} tile columns, enough for {sms} SMs: few are shared, and A"
            " is read less often"
        )
    else:
        rule = (
            f"wide tiles make only {columns} tile column{'s' * (columns > 1)} for {sms} SMs, so"
            " blocks share tile columns: with deep tiles, fewer share one"
        )
    found = [
        f"tile k{tile_k} x n{tile_n}: "
        + (
            rule
            if config.whole or wide == wide_first
            else f"the other shape, to compare with: {rule}"
        )
    ]
    if not config.whole and wide != (m > 16):
        found.append(f"the original would take the other shape for m={m}: it goes by m alone")
    if m <= 16 * M_BLOCKS:
        found.append(f"m={m} fits a tile of {tile_m} rows: every weight is read once")
    else:
        found.append(
            f"m={m} takes {ceil_div(m, tile_m)} passes of {tile_m} rows: weights are read that"
            " often, mostly from L2"
        )
    if config.blocks_per_sm > 1:
        found.append(
            f"{config.blocks_per_sm} blocks an SM and {config.stages} stages: more copies in"
            " flight, and every block still has many tiles"
        )
    tails = [
        f"{name}={size} % {tile}"
        for name, size, tile in (("n", n, tile_n), ("k", k, tile_k))
        if size % tile
    ]
    if tails:
        found.append(f"a tail is left by {' and '.join(tails)}: the kernel with bounds checks")
    return tuple(found)

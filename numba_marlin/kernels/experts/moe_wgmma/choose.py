"""The configuration of ``moe_wgmma`` for a layer: the tile that takes least.

How long a step of a tile takes beside that of another was timed on an H200 (16 to 1,024 rows per
expert; experiments/26_experts, 2026-11-28): tiles of 48, 64, 96 and 128 x 256, and of 128, 160 and
192 x 128. The others lie between. ``wgmma``'s own steps, where rows are not gathered, make tiles of
128 columns look 10 to 20% cheaper than they are here. Rows that are not there cost as much as
others. So a tile that is too high multiplies zeros, and one that is too low dequantises weights
again for each row block.

How many row blocks an expert has is not known when a launch is chosen: the mean is taken over five
numbers of rows about that of an even routing, as far apart as chance, and an eighth more, makes
them (``SPREAD``, in deviations).
"""

from __future__ import annotations

import math

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.experts.choice import MANY_ROWS, check_mixture, configured, of_sums
from numba_marlin.kernels.experts.moe_wgmma.config import MoeWgmmaConfig
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.wgmma.config import STAGE_K
from numba_marlin.problems.experts import ExpertsProblem

STEP_US = {  # {(tile_m, tile_n): a step of k = 64}
    (32, 256): 0.358,
    (48, 256): 0.409,
    (64, 256): 0.46,
    (80, 256): 0.513,
    (96, 256): 0.565,
    (128, 256): 0.67,
    (128, 128): 0.51,
    (160, 128): 0.48,
    (176, 128): 0.512,
    (192, 128): 0.543,
}
TILE_US = 0.5  # of a tile, beside its steps
MOST_STAGES = 8
WARPGROUPS = 2
SPREAD = (-1.28, -0.52, 0.0, 0.52, 1.28)  # the middles of five equal parts of a normal distribution
UNEVEN = 1 / 8  # of its rows, what an expert is busier or less busy than others, beside chance


def row_blocks(rows: float, tile_m: int) -> float:
    """Of an expert, on average."""
    deviation = math.hypot(math.sqrt(rows), UNEVEN * rows)
    found = (max(1, ceil_div(int(rows + part * deviation), tile_m)) for part in SPREAD)
    return sum(found) / len(SPREAD)


def expert_us(rows: float, n: int, k: int, tile_m: int, tile_n: int) -> float:
    """Of an expert's tiles, on one multiprocessor, before clocks fall."""
    tile = k / STAGE_K * STEP_US[tile_m, tile_n] + TILE_US
    return row_blocks(rows, tile_m) * ceil_div(n, tile_n) * tile


def configurations(problem: ExpertsProblem, device: Device) -> list[MoeWgmmaConfig]:
    """Batch-invariant: whole tiles, whose sums have one order for every height."""
    rows, n, k = problem.rows_per_expert, problem.n, problem.k
    tile_m, tile_n = min(STEP_US, key=lambda tile: expert_us(rows, n, k, *tile))
    found = configured(
        MoeWgmmaConfig,
        problem,
        MOST_STAGES,
        tile_m=tile_m,
        tile_n=tile_n,
        warpgroups=WARPGROUPS,
        split=not problem.batch_invariant,
    )
    return [found]


invariant_configurations = configurations


def described(problem: ExpertsProblem, config: MoeWgmmaConfig, device: Device) -> Description:
    rows, blocks = problem.rows_per_expert, config.grid(problem.m, problem.n, problem.k, device.sms)
    reasons = (
        f"an even routing gives an expert {rows:.3g} row{'s' * (rows != 1)} of x, in tiles of"
        f" {config.tile_m} x {config.tile_n}, which take least",
        f"{config.tiles(problem.m, problem.n):,} tiles at most,"
        + (
            f" their steps of k in equal stripes for {blocks[0]} blocks, whatever the routing is"
            if config.split
            else " whole tiles for each block: a row's bits do not depend on the other tokens"
        ),
        f"a ring of {config.stages} stages of {config.stage_bytes / 1024:g} KiB",
        *of_sums(problem),
    )
    work = {
        "most_row_blocks": config.most_row_blocks(problem.m),
        "tiles": {"n": ceil_div(problem.n, config.tile_n)},
    }
    return Description(None, reasons, work, leads=rows >= MANY_ROWS)


def check(config: MoeWgmmaConfig, problem: ExpertsProblem) -> None:
    check_mixture(config, problem)

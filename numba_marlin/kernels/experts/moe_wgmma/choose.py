"""The configuration of ``moe_wgmma`` for a layer, by counts of work: **not measured**.

A step of k = 64 takes the tensor cores ``tile_m * tile_n / 64`` cycles (4096 products a cycle and
SM), and the schedulers what dequantising takes, about ISSUE cycles for 256 columns (168
instructions of each of eight warps, ``wgmma.tensor``), whatever the rows; the larger counts, and
BESIDES. Rows that are not there cost as much as others. So a tile that is too high multiplies
zeros, and one that is too low dequantises weights again for each row block.

How many row blocks an expert has is not known when a launch is chosen: the mean is taken over
experts with 3/4, all and 5/4 of the rows of an even routing.
"""

from __future__ import annotations

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.experts.choice import MANY_ROWS, check_mixture, configured, of_sums
from numba_marlin.kernels.experts.moe_wgmma.config import MoeWgmmaConfig
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.problems.experts import ExpertsProblem

TILES = ((48, 256), (64, 256), (96, 256), (128, 256), (128, 128), (192, 128))
MOST_STAGES = 8
ISSUE, BESIDES = 336, 60
SPREAD = (0.75, 1.0, 1.25)


def row_blocks(rows: float, tile_m: int) -> float:
    """Of an expert, on average."""
    return sum(max(1, ceil_div(int(rows * part), tile_m)) for part in SPREAD) / len(SPREAD)


def step_cycles(tile_m: int, tile_n: int) -> float:
    return max(tile_m * tile_n / 64, ISSUE * tile_n / 256) + BESIDES


def cycles(rows: float, n: int, tile_m: int, tile_n: int) -> float:
    """Of an expert's steps of k = 64, each, all tiles together."""
    return row_blocks(rows, tile_m) * ceil_div(n, tile_n) * step_cycles(tile_m, tile_n)


def configurations(problem: ExpertsProblem, device: Device) -> list[MoeWgmmaConfig]:
    """Batch-invariant: whole tiles, whose sums have one order for every height."""
    rows, n = problem.rows_per_expert, problem.n
    tile_m, tile_n = min(TILES, key=lambda tile: cycles(rows, n, *tile))
    found = configured(
        MoeWgmmaConfig,
        problem,
        MOST_STAGES,
        tile_m=tile_m,
        tile_n=tile_n,
        warpgroups=2,
        split=not problem.batch_invariant,
    )
    return [found]


invariant_configurations = configurations


def described(problem: ExpertsProblem, config: MoeWgmmaConfig, device: Device) -> Description:
    rows, blocks = problem.rows_per_expert, config.grid(problem.m, problem.n, problem.k, device.sms)
    reasons = (
        f"an even routing gives an expert {rows:.3g} row{'s' * (rows != 1)} of x, in tiles of"
        f" {config.tile_m} x {config.tile_n}: chosen by counted cycles, not measured",
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

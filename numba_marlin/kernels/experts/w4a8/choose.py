"""The configurations of ``moe_wgmma_int8`` and ``moe_wgmma_fp8`` for a layer, and how long each is
expected to take: modelled with constants of one run, 80 products of four models with 16 to 4096
tokens, to within 30% (an H200, 2026-11-29; experiments/26_experts).

A step takes 1.2 times a step of ``wgmma_int8`` or ``wgmma_fp8`` (``kernels.w4a8.choose``), for
rows are gathered; the epilogue, which nothing overlaps, 0.25 us for 1,000 numbers of a tile, 0.36
where they stay in fp32 for a sum (``combine``): with k = 768 that is most of a tile of 176 x 128.
An expert is taken to have as many row blocks on average as ``moe_wgmma.choose`` reckons with, and
rows that are not there to cost as much as others; tiles are whole, so the last round of them takes
as long as any. No launch is expected to be faster than it takes to read its bytes.

Beside it stands what the same model says of ``moe_wgmma``, which has x in 16 bits: whether x is
quantised is the caller's choice, never that of a ranking, because it changes the numbers.
"""

from __future__ import annotations

import math

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.experts.choice import check_mixture, fitting, of_sums
from numba_marlin.kernels.experts.moe_wgmma.choose import STEP_US as TILES_OF_16_BITS
from numba_marlin.kernels.experts.moe_wgmma.choose import expert_us, row_blocks
from numba_marlin.kernels.experts.w4a8.config import CONFIGS, MoeBytesConfig
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.w4a8 import choose as dense
from numba_marlin.kernels.w4a8.config import MOST_K, STAGE_K
from numba_marlin.problems.experts import ExpertsProblem

# what the dense kernel has and spills here, 16 to 56 bytes: 256 x 128, and 192 rows that are
# promoted where words are loaded ahead
COLUMNS = tuple(each for each in dense.COLUMNS if each[0] < 256)
MOST_LOADED_AHEAD = 176
GATHERED = 1.2  # a step, in those of the dense kernel
EPILOGUE_US = {False: 0.25, True: 0.36}  # of 1,000 numbers; left in fp32 for a sum


def configurations(problem: ExpertsProblem, device: Device) -> list[MoeBytesConfig]:
    """Every arrangement of the dense kernel that the problem's types allow, but for tiles more than
    twice as high as an even routing's rows."""
    config_type = CONFIGS[problem.activations]
    exact_columns = problem.group_size == -1 and problem.activations == "int8"
    if exact_columns and problem.k > MOST_K:
        raise ValueError(f"k={problem.k} must be {MOST_K} at most with one scale per column")
    most = 2 * max(16, rows_of_touched(problem))
    found = []
    for tile_m, tile_n, warpgroups, stages in (
        *(COLUMNS if exact_columns else ()),
        *dense.OTHERS,
    ):
        if tile_m <= most:
            in_turns = not exact_columns and tile_m >= dense.LEAST_ROWS_IN_TURNS
            for ordered in (True, False) if in_turns else (False,):
                tile = {"tile_m": tile_m, "tile_n": tile_n, "warpgroups": warpgroups}
                found.append(fitting(config_type, problem, stages, 2, ordered=ordered, **tile))
    return [config for config in found if config is not None and not spills(config)]


def spills(config: MoeBytesConfig) -> bool:
    return config.promotes and config.loads_ahead and config.tile_m > MOST_LOADED_AHEAD


invariant_configurations = configurations  # all have one order of sums


def rows_of_touched(problem: ExpertsProblem) -> float:
    """Of an expert that has some, if the routing is even."""
    return problem.pairs / problem.most_touched


def modelled_us(problem: ExpertsProblem, config: MoeBytesConfig, device: Device) -> float:
    blocks = problem.most_touched * row_blocks(rows_of_touched(problem), config.tile_m)
    rounds = math.ceil(blocks * ceil_div(problem.n, config.tile_n) / device.sms)
    step = GATHERED * dense.step_cycles(config) / dense.MHZ
    epilogue = EPILOGUE_US[problem.combine] * config.tile_m * config.tile_n / 1000
    tile = epilogue + problem.k / STAGE_K * step
    return dense.LAUNCH_US + max(rounds * tile, read_us(problem, device))


def read_us(problem: ExpertsProblem, device: Device) -> float:
    return problem.least_bytes / device.bandwidth_bytes * 1e6 if device.bandwidth_bytes else 0


def us_in_16_bits(problem: ExpertsProblem, device: Device) -> float:
    """The same model's time for ``moe_wgmma``'s best tile."""
    rows, sizes = rows_of_touched(problem), (problem.n, problem.k)
    least = min(expert_us(rows, *sizes, *tile) for tile in TILES_OF_16_BITS)
    every = problem.most_touched * least / device.sms
    return dense.LAUNCH_US + max(every, read_us(problem, device))


def described(problem: ExpertsProblem, config: MoeBytesConfig, device: Device) -> Description:
    rows, us = problem.rows_per_expert, modelled_us(problem, config, device)
    reasons = (
        f"an even routing gives an expert {rows:.3g} row{'s' * (rows != 1)} of x, in tiles of"
        f" {config.tile_m} x {config.tile_n}, {config.tiles(problem.m, problem.n):,} at most",
        f"modelled: {us:.1f} us by the steps of the dense {config.activations} kernel,"
        f" {us_in_16_bits(problem, device):.1f} us with x in 16 bits by those of its own",
        dense.SUMS[config.activations],
        "whole tiles for each block: a row's bits do not depend on the other tokens",
        f"a ring of {config.stages} stages of {config.stage_bytes / 1024:g} KiB",
        *of_sums(problem),
    )
    work = {
        "most_row_blocks": config.most_row_blocks(problem.m),
        "tiles": {"n": ceil_div(problem.n, config.tile_n)},
    }
    return Description(us, reasons, work)


def check(config: MoeBytesConfig, problem: ExpertsProblem) -> None:
    check_mixture(config, problem)
    if config.activations != problem.activations:
        raise ValueError(
            f"config.activations={config.activations} must be the problem's"
            f" activations={problem.activations}"
        )

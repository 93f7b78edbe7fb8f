"""The configurations of ``wgmma_int8`` and ``wgmma_fp8`` for a problem, and how long each is
expected to take.

A step of 128 of k needs issue slots of the schedulers and cycles of the tensor cores. Instructions
of a warp are those of the SASS to within 4%: 46, for each strip those of its bytes (``STRIP``), and
of each sum that is promoted (``PROMOTION``). One hides little of the other (``multiply`` says why):
steps took 196 cycles and 3/4 of both where sums are promoted, and 205 and 0.69 of both where they
are not, to within 13% of the times in ``kernel`` (m = 16 to 4096, k and n of 4096 and 8192, an
H200, 2026-11-29). Launches take up to 1.44 of what follows from it (experiments/23_w4a8). In turns
(``ordered``) they take 2 to 3% less; with offsets tiles of up to 128 rows 1 to 6% less, those of
192 rows 7% less to 8% more, and those of 176 12 to 20% more. Behind the quantisation of x tiles of
128 columns and up to 128 rows of int8 take 2% more in turns, and fp8 with one scale per column. 176
rows are there for their number of tiles.

Where tiles are fewer than SMs, equal parts of them (``parts``), as many as there are SMs for, take
less: 28672 x 8192, m = 64, quantisation included, 43 us where 69 had been (fp8 in groups of 128,
64 x 256 in 4 parts). Their steps take as long as those of whole tiles, 6% longer with 256 columns,
and turns gain 2% at most. No step takes less than its weights and scales need on their way from
memory. Fitted to launches behind the quantisation of x (m = 1 to 256, six sizes, an H200,
2026-11-29; ``arrangements.py`` in experiments/23_w4a8): 4 to 5% off on average, and what is chosen
takes 0.5 to 0.8% more than the fastest on average, 11% at most.

Where x brings offsets and the weights are such that they serve (``offset_types``), they are used
for all tiles, so that the order of sums does not depend on m: bytes in 5 instructions, not 10,
which with groups of 128 took 8 to 15% less of a product, with one scale per column 6 to 17%
(five sizes, m = 256 to 4096, the same rounds), and one more product for every 16 groups.
"""

from __future__ import annotations

from dataclasses import replace

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.hopper.parts import PARTS
from numba_marlin.kernels.language.choice import (
    FITTED_BANDWIDTH_PER_SM,
    Description,
    check_groups,
    check_types,
    group_blocks_of,
    types_of,
    with_stages_that_fit,
)
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.w4a8.config import CONFIGS, MOST_K, STAGE_K, WgmmaBytesConfig
from numba_marlin.layout.offsets import OFFSET_STEP
from numba_marlin.problems import ActivationsProblem

# tile_m, tile_n, warpgroups, stages. Of those that are expected to take as long, the first is taken
COLUMNS = ((128, 256, 2, 4), (256, 128, 2, 4))  # where nothing is promoted
OTHERS = (
    (192, 128, 2, 5),
    (176, 128, 2, 5),
    (128, 128, 2, 6),
    (64, 256, 2, 6),
    (64, 128, 2, 8),
    (32, 128, 2, 10),
    (16, 128, 2, 10),
)
LEAST_ROWS_IN_TURNS = 64
LAUNCH_US, TILE_US = 2.5, 0.5
PARTS_US, PART_US = 2.18, 0.0126  # of a tile in parts: once; for each part, of a KiB of its sums
# of a part, for each stage of offsets with scales of groups (in whole tiles it is in the steps)
OFFSETS_US = 0.7
WIDE_IN_PARTS = 1.06  # a step of 256 columns in parts, in steps of whole tiles
BYTES_NS = 34.2  # that an SM takes at most
MOST_ROWS_IN_PARTS = 176  # in parts 192 rows spill, with offsets, 8 to 24 bytes
MHZ, PRODUCTS_PER_CYCLE, SCHEDULERS = 1750, 4096, 4  # of an SM of an H200 under load
# instructions of a warp: of a step; of a strip, without and with zero points; of a promotion
STEP, STRIP, PROMOTION = 46, {"int8": (40, 77), "fp8": (80, 95)}, {"int8": 3, "fp8": 1}
STRIP_WITH_OFFSETS = 40
SUMS = {
    "int8": "int8 products: sums of groups are exact",
    "fp8": "e4m3 products: sums of a group, or of 1,024 of k, before they are added up in fp32",
}
# cycles of a step, and which part of what it needs: where sums are promoted, and where not
PROMOTED, PLAIN = (196, 0.756), (205, 0.69)
IN_TURNS = {"int8": 0.98, "fp8": 0.97}  # of the same without
IN_TURNS_WITH_OFFSETS = 0.98, 1.03  # of tiles of up to 128 rows, and of more
# behind the quantisation of x, in turns: of int8, tiles of 128 columns and up to 128 rows, in parts
# up to 64; of fp8, one scale per column; and rows of the lowest tile
NARROW_IN_TURNS, COLUMNS_IN_TURNS, LOWEST_BEHIND = 1.04, 1.05, 1.03
LOWEST, OF_LOWEST = 16, 1.07  # rows of the lowest tile, which takes so much more than its steps say


def configurations(problem: ActivationsProblem, device: Device) -> list[WgmmaBytesConfig]:
    """Every arrangement, with the problem's types, but for tiles that would be half empty: with
    whole tiles, and with as many parts of each as there are SMs for."""
    found = _arranged(problem)
    for whole in tuple(found):
        tiles, steps = whole.tiles(problem.m, problem.n), ceil_div(problem.k, STAGE_K)
        most = min(device.sms // tiles, steps) if tiles else 1
        parts = max((each for each in PARTS if each <= most), default=1)
        if parts > 1 and whole.tile_m <= MOST_ROWS_IN_PARTS:
            found.append(replace(whole, parts=parts))
    return found


def invariant_configurations(problem: ActivationsProblem, device: Device) -> list[WgmmaBytesConfig]:
    """Whole tiles, and parts whose sums are integers: all have one order of sums. (Others in as
    many parts whatever m is would cost many rows more than they gain for few.)"""
    found = configurations(problem, device)
    return [each for each in found if each.parts == 1 or not each.promotes]


def _arranged(problem: ActivationsProblem) -> list[WgmmaBytesConfig]:
    """Every arrangement of whole tiles."""
    blocks, config_type = group_blocks_of(problem), CONFIGS[problem.activations]
    exact_columns = blocks == -1 and problem.activations == "int8"
    if exact_columns and problem.k > MOST_K:
        raise ValueError(f"k={problem.k} must be {MOST_K} at most with one scale per column")
    arrangements = [
        (*each, False)
        for each in (COLUMNS if exact_columns else ()) + OTHERS
        if each[0] < 2 * max(problem.m, 16)
    ]
    if not exact_columns:
        in_turns = [each for each in arrangements if each[0] >= LEAST_ROWS_IN_TURNS]
        arrangements = [(*each[:-1], True) for each in in_turns] + arrangements
    found = [
        with_stages_that_fit(
            config_type,
            stages,
            2,
            tile_m=tile_m,
            tile_n=tile_n,
            warpgroups=warpgroups,
            group_blocks=blocks,
            ordered=ordered,
            offsets=offset_types(problem),
            **types_of(config_type, problem),
        )
        for tile_m, tile_n, warpgroups, stages, ordered in arrangements
    ]
    return [config for config in found if config is not None]


def offset_types(problem: ActivationsProblem) -> bool:
    """Whether weights can be multiplied as codes, with the offsets that x brings."""
    blocks = group_blocks_of(problem)
    return problem.activations == "fp8" and problem.zeros is None and blocks in (-1, 8)


def instructions(config: WgmmaBytesConfig) -> int:
    """Of a warp, for a step; of a promotion's as if every step had one."""
    kind = config.activations
    promotion = PROMOTION[kind] * config.accumulators * config.scale_rows * config.promotes
    strip = STRIP_WITH_OFFSETS if config.offsets else STRIP[kind][config.zeros is not None]
    return STEP + config.strips * (strip + promotion)


def step_cycles(config: WgmmaBytesConfig) -> float:
    """Of a step of whole tiles, expected, in a product alone."""
    issue = instructions(config) * 4 * config.warpgroups / SCHEDULERS
    tensor = config.tile_m * config.tile_n * STAGE_K / PRODUCTS_PER_CYCLE
    fixed, part = PROMOTED if config.promotes else PLAIN
    turns = IN_TURNS[config.activations]
    if config.offsets:
        turns = IN_TURNS_WITH_OFFSETS[config.tile_m > 128]
    turns = turns if config.ordered else 1
    lowest = OF_LOWEST if config.tile_m == LOWEST else 1
    return turns * lowest * (fixed + part * (issue + tensor))


def behind_quantisation(config: WgmmaBytesConfig) -> float:
    """Of a step, in those of ``step_cycles``: behind the quantisation of x, and in parts."""
    whole, factor = config.parts == 1, 1.0
    if config.tile_m == LOWEST:
        factor *= LOWEST_BEHIND
    if not whole and config.tile_n == 256:
        factor *= WIDE_IN_PARTS
    if config.ordered and not config.grouped:
        factor *= COLUMNS_IN_TURNS
    elif config.ordered and config.activations == "int8" and config.tile_n == 128:
        factor *= NARROW_IN_TURNS if config.tile_m <= (128 if whole else 64) else 1
    return factor


def step_us(config: WgmmaBytesConfig, device: Device) -> float:
    """Of a step, with the way of its weights and scales from the device's memory."""
    rate = BYTES_NS
    if device.bandwidth_bytes:
        rate *= device.bandwidth_bytes / device.sms / FITTED_BANDWIDTH_PER_SM
    fetched = config.copied_bytes - config.x_stage_bytes
    cycles = step_cycles(config) * behind_quantisation(config)
    return max(cycles / MHZ, fetched / (1000 * rate))


def described(problem: ActivationsProblem, config: WgmmaBytesConfig, device: Device) -> Description:
    tiles, steps = config.tiles(problem.m, problem.n), ceil_div(problem.k, STAGE_K)
    teams = max(1, device.sms // config.parts)
    rounds, steps = ceil_div(tiles, teams), ceil_div(steps, config.parts)
    tile_us = TILE_US + steps * step_us(config, device)
    passes = ceil_div(problem.m, config.tile_m)
    reasons = (
        f"{tiles:,} tiles of {config.tile_m} rows by {config.tile_n} columns for {device.sms} SMs:"
        f" {'every weight is read once' if passes == 1 else f'weights are read {passes} times'}",
        SUMS[config.activations],
    )
    if config.offsets:
        reasons += ("weights are multiplied as codes, and the sums of x that x brings taken off",)
    if config.parts > 1:
        tile_us += PARTS_US + PART_US * config.parts * config.partial_bytes / 1024
        if config.offsets and config.grouped:
            tile_us += OFFSETS_US * ceil_div(steps, OFFSET_STEP)
        reasons += (
            f"{config.parts} blocks share each tile along k, in equal parts; who comes last adds"
            " up, nobody waits",
        )
    if config.ordered:
        reasons += ("two warpgroups take turns: one promotes sums while the other multiplies",)
    if config.zeros is not None or config.group_blocks in (2, 4):
        reasons += ("nobody timed this arrangement: its time is counted, not measured",)
    return Description(
        LAUNCH_US + rounds * tile_us,
        reasons,
        {"tiles": {"m": passes, "n": ceil_div(problem.n, config.tile_n)}},
    )


def check(config: WgmmaBytesConfig, problem: ActivationsProblem) -> None:
    """ValueError unless ``config`` was made for the problem's types and groups."""
    check_types(config, problem)
    check_groups(config, problem)
    if config.offsets and not offset_types(problem):
        raise ValueError(f"offsets=True is not for {problem.in_words()}")

"""Which arrangement the kernel for few rows gets, and up to how many rows it is preferred."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.nvfp4 import choice
from numba_marlin.kernels.nvfp4.block_decode.config import COLUMNS, RUNS, BlockDecodeConfig
from numba_marlin.problems import BlockProblem

# (k_warps, split): ((fixed time with 8 tokens, with more), time of a block with all of k). The
# fullest SM ends after the fixed time plus, for every block that it has, one after the other or at
# once, 1 / split of the second: a block has that share of k. In units of that time of the first
# arrangement. Fitted to an H200's times at k = 8192 and ten n from 1024 to 57344
# (experiments/11_block_scaled, measure --arrangements, says how well).
ARRANGEMENTS = {
    (4, 1): ((0.1, 0.1), 1.0),
    (4, 2): ((0.1, 0.1), 1.15),
    (2, 2): ((0.2, 0.2), 1.0),
    (2, 4): ((0.43, 0.3), 1.0),
    (2, 8): ((0.4, 0.25), 1.2),
}
# Rows of A up to which it is faster than the kernel of large tiles (``block_scaled``), measured
# there too. A tile has 32 at most: from 33 on two tiles have the same rows of B.
FEW_ROWS = 64

check = choice.check


def choose_few_rows(m: int, n: int, sms: int, **epilogue) -> BlockDecodeConfig:
    """The arrangement in which the fullest SM ends first. ``epilogue``: the fields that
    the product decides: result, source, bias, activation."""
    tokens = next((each for each in (8, 16) if m <= each), 32)
    blocks = -(-n // COLUMNS) * -(-m // tokens)

    def ends(arrangement: tuple[int, int]) -> float:
        fixed, per_block = ARRANGEMENTS[arrangement]
        return fixed[tokens > 8] + per_block * -(-blocks * arrangement[1] // sms) / arrangement[1]

    k_warps, split = min(ARRANGEMENTS, key=ends)
    return BlockDecodeConfig(tokens, k_warps, split, stages=k_warps, **epilogue)


def changed(config: BlockDecodeConfig, changes: dict[str, Any]) -> BlockDecodeConfig:
    """With other k_warps the fewest stages that go with them, which always fit into shared memory;
    unless ``changes`` has them too."""
    if "k_warps" in changes:
        changes = {"stages": max(2, changes["k_warps"] // RUNS)} | changes
    return replace(config, **changes)


def configurations(problem: BlockProblem, device: Device) -> list[BlockDecodeConfig]:
    return [
        choose_few_rows(
            problem.m, problem.n, device.sms, **choice.wanted(BlockDecodeConfig, problem)
        )
    ]


def invariant_configurations(problem: BlockProblem, device: Device) -> list[BlockDecodeConfig]:
    return []


def described(problem: BlockProblem, config: BlockDecodeConfig, device: Device) -> Description:
    return choice.described(
        problem,
        (config.tile_m, config.tile_n),
        math.prod(config.grid(problem.m, problem.n)),
        leads=problem.m <= FEW_ROWS,
    )

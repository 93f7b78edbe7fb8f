"""Consumer Blackwell's configuration for a problem: there is one size of tile. Nobody has timed
it."""

from __future__ import annotations

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.language.definition import ceil_div
from numba_marlin.kernels.nvfp4 import choice
from numba_marlin.kernels.nvfp4.block_mma.config import TILE, BlockMmaConfig
from numba_marlin.problems import BlockProblem

check = choice.check


def configurations(problem: BlockProblem, device: Device) -> list[BlockMmaConfig]:
    return [BlockMmaConfig(**choice.wanted(BlockMmaConfig, problem))]


def invariant_configurations(problem: BlockProblem, device: Device) -> list[BlockMmaConfig]:
    return []


def described(problem: BlockProblem, config: BlockMmaConfig, device: Device) -> Description:
    tiles = ceil_div(problem.m, TILE) * ceil_div(problem.n, TILE)
    return choice.described(problem, (TILE, TILE), tiles)

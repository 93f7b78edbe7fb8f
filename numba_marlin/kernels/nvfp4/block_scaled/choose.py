"""Which tiles the block-scaled kernel gets for a problem: those whose waves end first (a wave: as
many tiles as SMs)."""

from __future__ import annotations

import math

from numba_marlin.hardware.devices import Device
from numba_marlin.kernels.language.choice import Description
from numba_marlin.kernels.nvfp4 import choice
from numba_marlin.kernels.nvfp4.block_scaled.config import RESULTS, BlockScaledConfig
from numba_marlin.problems import BlockProblem

# (tile_m, tile_n): time of a tile relative to that of the first; packed stages; expanded stages.
# Measured on an H200
# at 8192 x 8192 x 8192 (experiments/11_block_scaled, measure --quick).
TILES = {(256, 128): (1.0, 4, 3), (128, 128): (0.69, 4, 4), (128, 64): (0.59, 4, 4)}

check = choice.check


def choose_tiles(m: int, n: int, sms: int, **epilogue) -> BlockScaledConfig:
    """``epilogue``: the fields that the product decides: result, source, bias, activation,
    rounding."""

    def waves_end(tile: tuple[int, int]) -> float:
        tiles = -(-m // tile[0]) * -(-n // tile[1])
        return -(-tiles // sms) * TILES[tile][0]

    stored_in_halves = (
        RESULTS.get(epilogue.get("result", "float16")) == "halves"
        and epilogue.get("activation") == "gated_silu"
    )
    tile_m, tile_n = min(
        (tile for tile in TILES if tile[1] == 128 or not stored_in_halves), key=waves_end
    )
    _, stages, expanded_stages = TILES[tile_m, tile_n]
    return BlockScaledConfig(tile_m, tile_n, stages, expanded_stages, group_m=8, **epilogue)


def configurations(problem: BlockProblem, device: Device) -> list[BlockScaledConfig]:
    return [
        choose_tiles(problem.m, problem.n, device.sms, **choice.wanted(BlockScaledConfig, problem))
    ]


def invariant_configurations(problem: BlockProblem, device: Device) -> list[BlockScaledConfig]:
    """None: the batch-invariant mode (``heuristics.invariance``) is for packed weights, and
    ``BlockProblem.batch_invariant`` is always False. The order of sums would be no obstacle, it is
    one for all configurations (``kernel``)."""
    return []


def described(problem: BlockProblem, config: BlockScaledConfig, device: Device) -> Description:
    blocks = math.prod(config.grid(problem.m, problem.n, problem.k, device.sms))
    return choice.described(problem, (config.tile_m, config.tile_n), blocks)

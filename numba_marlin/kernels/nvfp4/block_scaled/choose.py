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
# Measured on an H200 at 8192 x 8192 x 8192 (experiments/11_block_scaled, measure --quick).
#
# What was compared: one later run of the same (2026-11-23, quick.jsonl there), speed relative to
# cuBLAS's fp16 product of the same numbers in the same rounds, group_m 8. The spread of such a
# run is about 3 %:
#
#     tile         (stages, expanded_stages)   4096 cubed   8192 cubed
#     256 x 128    (4, 3)                      0.882        0.918
#     256 x 128    (3, 4)                      0.899        0.944
#     128 x 128    (4, 4)                      0.650        0.627
#     128 x 64     (4, 4)                      0.386        0.376
#
# So (4, 3) and (3, 4) are equal within noise. No other pairs of stage counts were compared, for no
# tile, and 256 x 64 was not measured: what fits (``config``) is right, how fast it is, unknown.
# group_m of 256 x 128, (4, 3), at 8192 cubed: 0.963 with 4, 0.918 with 8, 0.957 with 16, once.
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

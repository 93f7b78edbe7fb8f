"""Which configuration of the block-scaled kernel a product gets: the tiles whose waves end first."""

from __future__ import annotations

from numba_marlin.kernels.block_scaled_config import RESULTS, BlockScaledConfig

# (tile_m, tile_n): time of a tile relative to that of the first, and its rings. Measured on an H200 at 8192 x 8192 x 8192 but for the last, which is modelled.
TILES = {(256, 128): (1.0, 3, 4), (128, 128): (0.65, 4, 4), (128, 64): (0.45, 4, 4)}


def choose(m: int, n: int, sms: int, **epilogue) -> BlockScaledConfig:
    """``epilogue``: the fields of the configuration that the product decides: result, source, bias, activation, rounding."""

    def waves_end(tile: tuple[int, int]) -> float:
        tiles = -(-m // tile[0]) * -(-n // tile[1])
        return -(-tiles // sms) * TILES[tile][0]

    stored_in_halves = RESULTS[epilogue.get("result", "float16")] == "halves" and epilogue.get("activation") == "gated_silu"
    tile_m, tile_n = min((tile for tile in TILES if tile[1] == 128 or not stored_in_halves), key=waves_end)
    _, stages, expanded_stages = TILES[tile_m, tile_n]
    return BlockScaledConfig(tile_m, tile_n, stages, expanded_stages, group_m=16, **epilogue)

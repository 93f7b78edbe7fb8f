"""Small configurations of the kernels that more than one test module runs, so that each is compiled
once. Nothing is compiled here.
"""

from dataclasses import replace

from numba_marlin.kernels.decode import DecodeConfig
from numba_marlin.kernels.general import GeneralConfig
from numba_marlin.kernels.wgmma.config import WgmmaConfig

FAITHFUL = ("ampere", 16, 256, 512, 128)  # as ``config_for`` takes them

# 4 bits, symmetric, float16, groups of 64, two by two warps with stages of 128; n and k must come
# out even
DECODE = DecodeConfig(
    batch=8, warps_n=2, warps_k=2, stage_k=128, stages=2, resident=1, group_blocks=4
)

WGMMA = WgmmaConfig(tile_m=16, tile_n=64, warpgroups=1, stages=2)
ARRANGEMENTS = {  # of wgmma: words per warp, warpgroups, rows of consumers, who shares a tile
    "one word, one warpgroup": WGMMA,
    "two words": replace(WGMMA, tile_n=128),
    "four words": replace(WGMMA, tile_n=256, stages=3),
    "two warpgroups, one word": replace(WGMMA, tile_n=128, warpgroups=2),
    "two warpgroups, two words": replace(WGMMA, tile_m=32, tile_n=256, warpgroups=2),
    "two rows of consumers": replace(WGMMA, k_groups=2, stages=4),
    "two rows of two": replace(WGMMA, tile_n=128, warpgroups=2, k_groups=2, stages=4),
    "a pair of blocks": replace(WGMMA, tile_m=32, cluster=2, split=False),
    "pairs, two rows of consumers": replace(
        WGMMA, tile_m=32, tile_n=128, cluster=2, k_groups=2, stages=4, split=False
    ),
    "four blocks, two words": replace(WGMMA, tile_m=32, tile_n=128, cluster=4, split=False),
    "whole tiles": replace(WGMMA, split=False),
    "two parts": replace(WGMMA, tile_m=32, parts=2, split=False),
    "four parts, two rows of consumers": replace(
        WGMMA, tile_n=128, k_groups=2, stages=4, parts=4, split=False
    ),
    "three parts, one after the other": replace(WGMMA, tile_m=128, parts=3, split=False),
}
BETWEEN = {  # tiles of rows between powers of two: a swizzle's pattern is eight rows of x
    "192 rows, whole": replace(WGMMA, tile_m=192, tile_n=128, warpgroups=2, split=False),
    "176 rows, stripes": replace(WGMMA, tile_m=176, tile_n=128, warpgroups=2),
    "160 rows, parts": replace(WGMMA, tile_m=160, tile_n=128, warpgroups=2, parts=3, split=False),
    "112 rows, two warpgroups": replace(WGMMA, tile_m=112, tile_n=256, warpgroups=2),
    "96 rows, two warpgroups": replace(WGMMA, tile_m=96, tile_n=256, warpgroups=2, split=False),
    "96 rows, two rows of consumers": replace(WGMMA, tile_m=96, tile_n=128, k_groups=2, stages=4),
    "48 rows, two warpgroups": replace(
        WGMMA, tile_m=48, tile_n=256, warpgroups=2, parts=2, split=False
    ),
    "48 rows, two rows of consumers": replace(
        WGMMA, tile_m=48, tile_n=128, k_groups=2, stages=4, parts=2, split=False
    ),
}

BLOCKS = {"nvfp4": 1, "mxfp4": 2}  # k16 rows that share a scale
FEW_ROWS = DecodeConfig(
    warps_n=2,
    warps_k=2,
    stage_k=128,
    stages=3,
    resident=1,
    ragged=True,
    codes="e2m1",
    group_blocks=1,
    scale_dtype="e5m3",
    bias=True,
)
# k16 rows go through registers one by one
SINGLE_ROWS = replace(FEW_ROWS, batch=24, warps_n=1, warps_k=4, whole=True)
MANY_ROWS = WgmmaConfig(
    tile_m=16, tile_n=256, warpgroups=1, stages=3, codes="e2m1", group_blocks=1, bias=True
)
TWO_WORDS = replace(MANY_ROWS, tile_n=128, k_groups=2, stages=4)
SLOW = GeneralConfig(16, codes="e2m1", scale_dtype="e5m3")
ONE_WORD = replace(MANY_ROWS, tile_n=64, stages=2, split=False, bias=False)


def configured(config, kind, dtype):
    """One of the configurations for FP4, with blocks of ``kind`` and activations of ``dtype``."""
    return replace(
        config,
        dtype=dtype,
        **(
            {"group_size": 16 * BLOCKS[kind]}
            if isinstance(config, GeneralConfig)
            else {"group_blocks": BLOCKS[kind]}
        ),
    )


def group_size_of(config):
    """-1 for per-column scales."""
    return 16 * config.group_blocks if config.grouped else -1

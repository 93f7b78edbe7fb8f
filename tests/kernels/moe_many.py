"""Configurations of ``moe_wgmma`` that tests run: small tiles, every type and epilogue, and what a
GPU is given."""

from dataclasses import replace

from numba_marlin.kernels.experts.moe_wgmma.declare import SMALL

DOWN = replace(SMALL, combine=True, x_of_pairs=True)
TWO = replace(SMALL, tile_n=128, warpgroups=2, stages=3)
GATED = replace(TWO, activation="silu")
CONFIGURATIONS = {
    "of tokens": SMALL,
    "down": DOWN,
    "silu": GATED,
    "swiglu-oai, bias, bfloat16": replace(
        GATED, activation="swiglu-oai", bias=True, dtype="bfloat16", group_blocks=2
    ),
    "silu, 256 columns, one scale per column": replace(
        GATED, tile_n=256, tile_m=32, group_blocks=-1
    ),
    "silu, MXFP4": replace(GATED, codes="e2m1", group_blocks=2),
    "silu, NVFP4, 256 columns": replace(GATED, codes="e2m1", group_blocks=1, tile_n=256),
    "silu, 8 bits, 256 columns": replace(GATED, bits=8, tile_n=256),
    "whole, bfloat16, bias": replace(
        TWO, split=False, dtype="bfloat16", bias=True, group_blocks=-1, tile_m=48
    ),
    "down, bias, 256 columns": replace(
        DOWN, tile_n=256, warpgroups=2, tile_m=64, group_blocks=8, bias=True, stages=3
    ),
    "down, 37 experts, 64 columns a warp": replace(
        DOWN, experts=37, top_k=3, tile_n=256, group_blocks=2, stages=3
    ),
    "down, MXFP4, bfloat16": replace(DOWN, codes="e2m1", group_blocks=2, dtype="bfloat16"),
    "NVFP4": replace(TWO, codes="e2m1", group_blocks=1),
    "zero points": replace(TWO, zeros="integer", group_blocks=2),
    "8 bits, zero points": replace(SMALL, bits=8, zeros="integer", tile_n=128),
    "float16 zero points": replace(TWO, zeros="float16"),
    "scaled sums": replace(TWO, scaling="sums", group_blocks=8),
}
# what a GPU is given (``choose``)
LARGE = {(192, 128): replace(TWO, tile_m=192), (128, 256): replace(TWO, tile_m=128, tile_n=256)}
WHAT = (
    {},
    {"combine": True, "x_of_pairs": True},
    {"combine": True, "x_of_pairs": True, "top_k": 5, "bias": True, "group_blocks": 2},
    {"activation": "swiglu-oai", "bias": True, "dtype": "bfloat16"},
    {"activation": "silu", "codes": "e2m1", "group_blocks": 2, "bias": True},
    {"zeros": "integer", "group_blocks": 2},
)
GATES = CONFIGURATIONS | {
    f"{tile}, {change}": replace(config, stages=4, **change)
    for tile, config in LARGE.items()
    for change in WHAT
}


def k_of(config):
    return 256 if config.group_blocks == 8 else 192


def columns_of(config):
    """Not whole tiles: an n, or a gate's and an up's."""
    return 2 * 192 if config.gated and config.tile_n > 128 else 2 * 64 if config.gated else 200

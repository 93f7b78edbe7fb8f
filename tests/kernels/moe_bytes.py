"""Configurations of ``moe_wgmma_int8`` and ``moe_wgmma_fp8`` that tests run: small tiles, every
type and epilogue, and what a GPU is given."""

from dataclasses import replace

from numba_marlin.hardware import devices
from numba_marlin.kernels.experts.w4a8 import choose
from numba_marlin.kernels.experts.w4a8.config import CONFIGS
from numba_marlin.kernels.experts.w4a8.definition import small
from numba_marlin.problems import ExpertsProblem

KINDS = tuple(CONFIGS)
SMALL = {kind: small(CONFIGS[kind]) for kind in KINDS}
PAIR = {"tile_n": 128, "warpgroups": 2, "ordered": True}
DOWN = {"combine": True, "x_of_pairs": True}
CHANGES = {
    "of tokens": {},
    "down": DOWN,
    "in turns": PAIR,
    "silu": PAIR | {"activation": "silu"},
    "swiglu-oai, bias, bfloat16, groups of 32": PAIR
    | {"activation": "swiglu-oai", "bias": True, "dtype": "bfloat16", "group_blocks": 2},
    "silu, 256 columns, one scale per column": {
        "tile_n": 256,
        "warpgroups": 2,
        "tile_m": 32,
        "group_blocks": -1,
        "activation": "silu",
    },
    "down, zero points, bias, 37 experts": DOWN
    | {"zeros": "integer", "bias": True, "experts": 37, "top_k": 3},
    "zero points, one scale per column": {"zeros": "integer", "group_blocks": -1},
    "down, bfloat16, groups of 64, 256 columns": DOWN
    | {"dtype": "bfloat16", "group_blocks": 4, "tile_n": 256, "warpgroups": 2},
}
CONFIGURATIONS = {
    f"{kind}, {name}": replace(SMALL[kind], **change)
    for kind in KINDS
    for name, change in CHANGES.items()
}


def proposed(kind, **changes):
    """What a layer of many tokens may get on an H200."""
    problem = replace(
        ExpertsProblem(8192, 4096, 4096, experts=8, top_k=2, activations=kind), **changes
    )
    return choose.configurations(problem, devices.device("H200"))


OF_LAYERS = (
    {},
    {"combine": True, "x_of_pairs": True},
    {"activation": "silu"},
    {"group_size": -1},
    {"group_size": 32, "zeros": "integer", "bias": True},
)
PROPOSED = {
    f"{kind}, {config.tile_m} x {config.tile_n}, {config.ordered}, {changes}": config
    for kind in KINDS
    for changes in OF_LAYERS
    for config in proposed(kind, **changes)
}
ON_GPU = CONFIGURATIONS | {
    name: config
    for name, config in PROPOSED.items()
    if (config.tile_m, config.tile_n) in ((16, 128), (176, 128), (192, 128), (128, 256))
    and config.ordered == (config.tile_m > 128)
}


def columns_of(config):
    """Not whole tiles: an n, or a gate's and an up's."""
    return 2 * 192 if config.gated and config.tile_n > 128 else 2 * 64 if config.gated else 200

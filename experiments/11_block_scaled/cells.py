"""The measured cells: shapes, and the kernels for each shape as (part, configuration). A part is
the whole kernel or one of ``variants``."""

from dataclasses import replace

from variants import VARIANTS

from numba_marlin.hardware.devices import device
from numba_marlin.heuristics import rank
from numba_marlin.kernels.nvfp4.block_decode.config import BlockDecodeConfig
from numba_marlin.kernels.nvfp4.block_scaled.choose import choose_tiles
from numba_marlin.problems import BlockProblem

H200 = device("H200")
LARGE = ((4096, 4096, 4096), (8192, 8192, 8192))
# m, n, k
LAYERS = (
    (512, 8192, 8192),
    (1024, 8192, 8192),
    (2048, 8192, 8192),
    (4096, 8192, 8192),
    (4096, 57344, 8192),
    (4096, 8192, 28672),
)
# rows; block_decode's
FEW = tuple(
    (m, n, k)
    for n, k in (
        (4096, 4096),
        (8192, 8192),
        (11008, 4096),
        (18432, 8192),
        (28672, 8192),
        (57344, 8192),
        (8192, 28672),
    )
    for m in (1, 8, 16, 32, 64)
)
EPILOGUES = (
    {"result": "float32"},
    {"source": True, "bias": True},
    {"bias": True, "activation": "silu"},
    {"activation": "gelu"},
    {"activation": "gated_silu"},
    {"result": "nvfp4"},
    {"result": "mxfp4"},
    {"result": "mxfp8-e4m3"},
    {"result": "nvfp4", "activation": "gated_silu"},
)


def chosen_for(shape, **epilogue):
    """Return the configuration of the kernel that is chosen first on an H200."""
    return rank(BlockProblem(*shape, **epilogue), H200)[0].config


def quick():
    """Return neighbours of the chosen configuration, at the two sizes that the kernel is designed
    for."""
    usual = chosen_for(LARGE[0])
    others = [
        replace(usual, **fields)
        for fields in (
            {},
            {"group_m": 4},
            {"group_m": 16},
            {"stages": 3, "expanded_stages": 4},
            {"expander_registers": 64},
            {"tile_m": 128, "expanded_stages": 4},
            {"tile_m": 128, "tile_n": 64, "expanded_stages": 4},
        )
    ]
    return [(shape, [("whole", config) for config in others]) for shape in LARGE]


def arrangements():
    """Return every division of block_decode's k (split-K), at many widths. Its ARRANGEMENTS are
    fitted to these measurements."""
    shapes = [
        (m, n, 8192)
        for n in (1024, 4096, 5120, 8192, 9216, 11008, 14336, 18432, 28672, 57344)
        for m in (1, 16, 32)
    ]
    return [
        (
            (m, n, k),
            [
                ("whole", BlockDecodeConfig(8 if m == 1 else m, k_warps, split, stages=k_warps))
                for k_warps in (2, 4)
                for split in (1, 2, 4, 8)
            ],
        )
        for m, n, k in shapes
    ]


def full():
    """Return the chosen configuration of every shape; the parts of the kernel at the largest shape,
    and each epilogue at the other."""
    small, large = LARGE
    chosen = {shape: chosen_for(shape) for shape in (*LARGE, *LAYERS, *FEW)}
    kernels = {shape: [("whole", config)] for shape, config in chosen.items()}
    for shape in FEW:  # and what the other kernel takes
        kernels[shape].append(("whole", choose_tiles(*shape[:2], H200.sms)))
    kernels[large] += [(part, chosen[large]) for part in VARIANTS if part != "whole"]
    kernels[small] += [("whole", chosen_for(small, **epilogue)) for epilogue in EPILOGUES]
    return list(kernels.items())

"""Configurations of ``moe`` that tests run: small tiles, every type and epilogue."""

from dataclasses import replace

from numba_marlin.kernels.experts.moe.declare import SMALL

DOWN = replace(SMALL, combine=True, x_of_pairs=True)
CONFIGURATIONS = {
    "of tokens": SMALL,
    "down": DOWN,
    "silu": replace(SMALL, activation="silu"),
    "swiglu-oai, bias, bfloat16, 24 rows": replace(
        SMALL,
        activation="swiglu-oai",
        bias=True,
        dtype="bfloat16",
        scale_dtype="bfloat16",
        batch=24,
        warps_k=1,
        warps_n=4,
    ),
    "silu, four owners, MXFP4": replace(
        SMALL,
        activation="silu",
        codes="e2m1",
        scale_dtype="e5m3",
        warps_k=4,
        warps_n=1,
        stage_k=128,
    ),
    "whole": replace(SMALL, whole=True, group_blocks=4),
    "16 rows, bfloat16, bias": replace(
        SMALL, batch=16, dtype="bfloat16", scale_dtype="bfloat16", bias=True, group_blocks=-1
    ),
    "32 rows, down, bias": replace(DOWN, batch=32, stage_k=128, group_blocks=8, bias=True),
    "one warp, 37 experts": replace(DOWN, experts=37, top_k=3, warps_n=1, warps_k=1),
    "MXFP4": replace(DOWN, codes="e2m1", scale_dtype="e5m3", group_blocks=2),
    "NVFP4, bfloat16": replace(
        SMALL, codes="e2m1", scale_dtype="e5m3", group_blocks=1, dtype="bfloat16", batch=24
    ),
    "8 bits, zero points": replace(SMALL, bits=8, zeros="integer", group_blocks=4),
    "float16 zero points, one scale per column": replace(
        SMALL, zeros="float16", group_blocks=-1, whole=True
    ),
    "eight warps along k": replace(
        SMALL, warps_n=1, warps_k=8, stage_k=256, stages=3, group_blocks=8, ragged=False
    ),
}

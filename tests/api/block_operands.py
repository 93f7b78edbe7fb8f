"""Operands and configurations of block_scaled_matmul that its tests share."""

from dataclasses import replace

import numpy as np

import numba_marlin as nm
from tests.kernels.block_problems import SMALL

# those of tests.kernels.test_block_scaled: compiled once
FLOATS = replace(SMALL, result="float32", source=False, bias=False)
BLOCKS = replace(FLOATS, result="nvfp4")


def operands(m=20, n=32, k=64, seed=0):
    rng = np.random.default_rng(seed)
    return nm.quantize_blocks(rng.normal(size=(m, k)).astype(np.float32)), nm.quantize_blocks(
        rng.normal(size=(n, k)).astype(np.float32) / k**0.5
    )


A, B = operands()
ONES = np.ones(32, np.float32)

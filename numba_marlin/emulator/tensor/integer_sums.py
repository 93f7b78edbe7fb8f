"""How a tensor core adds products of integers: exactly. A sum wraps in 32 bits, or with .satfinite
stops at their ends, once an instruction.

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.state import numerics

DTYPES = {"s8": np.int8, "u8": np.uint8}


def add_integers(
    left: np.ndarray, right: np.ndarray, c: np.ndarray, saturated: bool = False
) -> np.ndarray:
    """int32 [..., rows, columns]: c + left @ right.T; left [..., rows, k] and right [..., columns,
    k] of up to 8 bits, k of at most 256, so that sums of products are exact in float32."""
    products = numerics.matrix_product(left.astype(np.float32), right.astype(np.float32))
    total = products.astype(np.int64) + c
    if saturated:
        limits = np.iinfo(np.int32)
        total = np.clip(total, limits.min, limits.max)
    return total.astype(np.int32)


def add_bits(left: np.ndarray, right: np.ndarray, c: np.ndarray, operation: str) -> np.ndarray:
    """int32 [..., rows, columns]: c + how many bits are left of a row "and" or "xor" a column; left
    and right 0 or 1, shapes as above."""
    if operation == "and":
        return add_integers(left, right, c)
    return add_integers(left, 1 - right, add_integers(1 - left, right, c))

"""Random block-scaled FP4 weights on the GPU, in the kernels' layout, and the same weights in 16
bits. Needs torch.

This repeats in torch what ``formats.fp4_words`` and ``fp4_marlin`` do in NumPy, which would take
minutes for a large matrix. Scales are like those of quantised normal data, within a factor of 16 of
each other.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.bench.timing import torch_on_gpu
from numba_marlin.formats.fp4_marlin import SCALE_ROWS, pack_scales
from numba_marlin.formats.fp4_words import byte_tables
from numba_marlin.formats.small_floats import table
from numba_marlin.heuristics import Problem

PERIOD = 4096  # rows after which the scales repeat


def random_scales(problem: Problem, columns: int):
    """(the kernel's words of scales, factors, scales of a period's rows as float32 [rows, columns],
    the factor of the accumulators), on the GPU."""
    torch = torch_on_gpu()
    rng = np.random.default_rng(0)
    rows = min(PERIOD, -(-problem.k // SCALE_ROWS) * SCALE_ROWS)
    groups = rows // problem.group_size
    stored = rng.integers(0x80, 0xA0, (groups, columns), dtype=np.uint8)  # 2 to 30
    if problem.group_size == SCALE_ROWS:
        stored &= 0xF8
    words = pack_scales(stored, problem.group_size).view(np.int32)
    times = -(-problem.k // rows)
    wanted = -(-problem.k // SCALE_ROWS)
    packed = torch.from_numpy(
        np.tile(words, (1, times))[:, : wanted * words.shape[1] // (rows // SCALE_ROWS)].copy()
    ).cuda()
    values = torch.from_numpy(
        (stored.astype(np.uint16) << 7).view(np.float16).astype(np.float32)
    ).cuda()
    factor = 2.0**14 * 2.0**-11  # so that weights are about 0.01
    return (
        packed,
        torch.full((columns,), factor, dtype=torch.float32, device="cuda"),
        values,
        factor * 2.0**-14,
    )


def dense(codes, first: int, problem: Problem, values, factor: float):
    """uint8 codes [rows, n] of the weight's rows from ``first`` on -> their numbers, float32."""
    torch = torch_on_gpu()
    group = (
        torch.arange(first, first + codes.shape[0], device="cuda")
        % (values.shape[0] * problem.group_size)
        // problem.group_size
    )
    numbers = torch.from_numpy(table("e2m1").copy()).cuda()[codes.long()]
    return numbers * values[group][:, : codes.shape[1]] * factor


def turn(words, dtype: str):
    """``fp4_words.turn_codes`` of int32 words."""
    torch = torch_on_gpu()
    tables = torch.from_numpy(byte_tables(dtype).view(np.int32).copy()).cuda()
    result = tables[0][(words & 255).long()]
    for byte in range(1, 4):
        result ^= tables[byte][(words >> 8 * byte & 255).long()]
    return result

"""A product by the float64 reference: no kernel, no device."""

from __future__ import annotations

import time

import numpy as np

from numba_marlin.execution.plan import RunInfo
from numba_marlin.formats.floats import round_to
from numba_marlin.heuristics import Problem


def run_reference(
    x: np.ndarray, weight, problem: Problem, reason: str, bias: np.ndarray | None = None
) -> tuple[np.ndarray, RunInfo]:
    """x [m, k] -> [m, n] of its type: the float64 product, and the bias, rounded once.
    Batch-invariant: row by row, for NumPy's order hangs on m."""
    from numba_marlin import reference
    from numba_marlin.quantizers.dequantize import as_quantized

    start = time.perf_counter()
    # above the largest number the right answer is infinity
    with np.errstate(over="ignore", invalid="ignore"):
        if problem.batch_invariant:
            q = as_quantized(weight)
            exact = np.concatenate([reference.matmul(row[None], q) for row in x])
        else:
            exact = reference.matmul(x, weight)
        y = round_to(exact if bias is None else exact + bias.astype(np.float64), x.dtype)
    return y, RunInfo("reference", reason, problem, "CPU, float64", time.perf_counter() - start)

"""``explain`` says what would run, ``last_run`` what did."""

from __future__ import annotations

import threading

from numba_marlin import heuristics
from numba_marlin.execution import driver
from numba_marlin.execution.plan import RunInfo
from numba_marlin.hardware import devices
from numba_marlin.problems import BlockProblem, WeightProblem

thread = threading.local()  # last: the RunInfo of this thread's last product


def last_run() -> RunInfo | None:
    """What this thread's last successful product did: backend and why, kernel, configuration,
    grid, device."""
    return getattr(thread, "last", None)


def explain(
    m: int,
    n: int,
    k: int,
    group_size: int | None = None,
    device: str | devices.Device | None = None,
    *,
    format: str | None = None,
    **types,
):
    """What would run for a product, on which grid, and why: an ``Explanation``; ``str()`` it, or
    take ``.to_dict()``.

    format: None for ``matmul``, ``x [m, k] @ w [k, n]`` with a weight of ``group_size`` (default
    128; -1: a scale per column); for ``block_scaled_matmul`` the format of both operands, "nvfp4",
    "mxfp4" or "mxfp8-e4m3", whose blocks are the groups. device: a name (``devices.names()``) or a
    Device; None: this machine's GPU, or an H200 by its data sheet. types: what is not the default
    of ``problems.WeightProblem``: dtype="bfloat16", bits=8, zeros="integer" or "float16",
    scale_dtype, bias=True, batch_invariant=True, codes="e2m1" (block-scaled FP4: NVFP4 with
    group_size=16, MXFP4 with 32); or of ``problems.BlockProblem``: result="nvfp4", source=True
    (a C), bias=True, activation="silu", rounding="ceil". ValueError: nothing runs there, and why.
    """
    if device is None:
        probe = driver.probe()
        device = probe.devices[0] if probe.usable else "H200"
    return heuristics.explain_problem(problem_of(m, n, k, group_size, format, **types), device)


def problem_of(
    m: int, n: int, k: int, group_size: int | None = None, format: str | None = None, **types
):
    """The problem that ``explain``'s arguments describe."""
    if format is None:
        return WeightProblem(m, n, k, 128 if group_size is None else group_size, **types)
    problem = BlockProblem(m, n, k, format, **types)
    if group_size not in (None, problem.group_size):
        raise ValueError(
            f"group_size={group_size} must be {problem.group_size}, the block of {format}: leave it"
            " out"
        )
    return problem

"""``explain`` reports what would run for a problem, ``last_run`` what ran."""

from __future__ import annotations

import threading

from numba_marlin import heuristics
from numba_marlin.execution import driver
from numba_marlin.execution.plan import RunInfo
from numba_marlin.hardware import devices
from numba_marlin.problems import ActivationsProblem, BlockProblem, ExpertsProblem, WeightProblem

thread = threading.local()  # last: the RunInfo of this thread's last product


def last_run() -> RunInfo | None:
    """The RunInfo of this thread's last successful product: backend and why, kernel, configuration,
    grid, device. None before the first one."""
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
    """Which kernel, configuration and grid would run a product [m, k] @ [k, n], and why. Nothing is
    compiled or launched.

    format: None for ``matmul``; for ``block_scaled_matmul`` the format of both operands, "nvfp4",
        "mxfp4" or "mxfp8-e4m3".
    group_size: rows that share a scale, for ``matmul`` only (default 128; -1: one scale per
        column).
    device: a Device or the name of one (``devices.names()``); None: this computer's first GPU, or
        an H200 by its data sheet.
    types: fields of the problem that differ from their defaults. ``problems.WeightProblem``:
        dtype="bfloat16", bits=8, zeros="integer" or "float16", scale_dtype, bias=True,
        batch_invariant=True, codes="e2m1" (block-scaled FP4: NVFP4 with group_size=16, MXFP4 with
        32). ``problems.ActivationsProblem``: the same, and activations="int8" or "fp8" (W4A8).
        ``problems.ExpertsProblem`` (``moe_matmul``): the same as a WeightProblem's, and
        experts=128, top_k=8, x_of_pairs=True, combine=True, activation="silu", and
        activations="int8" or "fp8".
        ``problems.BlockProblem``: result="nvfp4", source=True (a C), bias=True,
        activation="silu", rounding="ceil".

    Returns an ``Explanation``: ``str()`` for people, ``.to_dict()`` for programs; times in it are
    predictions of a model, in microseconds. Raises ValueError, with the reasons, if no kernel runs
    there.
    """
    if device is None:
        probe = driver.probe()
        device = probe.devices[0] if probe.usable else "H200"
    return heuristics.explain_problem(problem_of(m, n, k, group_size, format, **types), device)


def problem_of(
    m: int, n: int, k: int, group_size: int | None = None, format: str | None = None, **types
):
    """``explain``'s arguments as a WeightProblem, an ActivationsProblem, an ExpertsProblem or a
    BlockProblem."""
    if format is None:
        if types.get("activations") is None:
            types.pop("activations", None)
        kind: type[WeightProblem] = ActivationsProblem if "activations" in types else WeightProblem
        if types.get("experts") is not None:
            kind = ExpertsProblem
        return kind(m, n, k, 128 if group_size is None else group_size, **types)
    problem = BlockProblem(m, n, k, format, **types)
    if group_size not in (None, problem.group_size):
        raise ValueError(
            f"group_size={group_size} must be {problem.group_size}, the block of {format}: leave it"
            " out"
        )
    return problem

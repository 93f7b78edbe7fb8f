"""A product on the PTX machine: the compiled kernel's PTX, executed on the CPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from numba_marlin.execution import arrays
from numba_marlin.execution.operands import operands
from numba_marlin.execution.plan import Plan, RunInfo
from numba_marlin.execution.scratch import Workspace, workspace_need, workspace_views
from numba_marlin.heuristics import Problem


@dataclass(frozen=True, eq=False)
class EmulatorLaunch:
    """A product set up on the PTX machine, which ``machine.run(**launch)`` executes once: ``y`` is
    then the result, and ``locks`` must be zero again."""

    machine: object
    launch: dict
    y: np.ndarray
    locks: np.ndarray


def prepare_emulator(
    x: np.ndarray,
    weight,
    problem: Problem,
    chosen: Plan,
    compiled,
    workspace: Workspace | None = None,
    bias: np.ndarray | None = None,
) -> EmulatorLaunch:
    """x [m, k] times ``weight`` by ``compiled``, a kernel of the plan's. C and partials start as
    NaN."""
    from numba_marlin.emulator import Machine

    definition, config = chosen.definition, chosen.candidate.config
    y = arrays.aligned_empty((problem.m, problem.n), x.dtype)
    y.fill(np.nan)
    partials_bytes, lock_count = needs = workspace_need(problem, chosen)
    if workspace is None:
        partials = np.full(max(1, -(-partials_bytes // 4)), np.nan, dtype=np.float32)
        locks = np.zeros(max(1, lock_count), dtype=np.int32)
    else:
        partials, locks = (each.host for each in workspace_views(workspace, needs, None))
    machine = Machine(compiled.ptx)
    readable = {"a": x, **operands(weight)} | ({} if bias is None else {"bias": bias})
    written = {"c": y} | ({"partials": partials, "locks": locks} if any(needs) else {})
    addresses = {
        name: machine.memory.buffer(array, name=name, readonly=True).address
        for name, array in readable.items()
    }
    addresses |= {
        name: machine.memory.buffer(array, name=name, readonly=False).address
        for name, array in written.items()
    }
    arguments = definition.arguments(
        config,
        addresses,
        problem.m,
        problem.n,
        problem.k,
        problem.k,
        lambda tensor_map, address: tensor_map.encode(address),
    )
    cluster = definition.cluster(config)
    launch = dict(
        entry=compiled.entry,
        grid=chosen.candidate.grid,
        block=(compiled.threads,),
        shared_bytes=compiled.shared_bytes,
        args=arguments,
    )
    return EmulatorLaunch(machine, launch | ({"cluster": cluster} if cluster > 1 else {}), y, locks)


def run_emulator(
    x: np.ndarray,
    weight,
    problem: Problem,
    chosen: Plan,
    compiler: str,
    workspace: Workspace | None = None,
    bias: np.ndarray | None = None,
) -> tuple[np.ndarray, RunInfo]:
    """x [m, k] -> [m, n] of its type, by executing the compiled kernel's PTX."""
    compiled, device = chosen.compile(compiler), chosen.device
    start = time.perf_counter()
    prepared = prepare_emulator(x, weight, problem, chosen, compiled, workspace, bias)
    result = prepared.machine.run(**prepared.launch)
    if prepared.locks.any():
        raise RuntimeError(
            f"kernel {compiled.kernel!r} left locks[{int(np.flatnonzero(prepared.locks)[0])}] set:"
            " the next launch would hang"
        )
    info = RunInfo(
        "emulator",
        chosen.reason,
        problem,
        f"{device.name} ({device.sms} SMs, {device.arch})",
        time.perf_counter() - start,
        chosen.candidate,
        compiled,
        result.instructions,
    )
    return prepared.y, info

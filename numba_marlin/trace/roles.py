"""The roles of warps in a warp-specialised kernel, recognised by the verbs that only one role
executes. They come from recorded steps, and need line numbers in the PTX.

The kernel declares its roles and their verbs (``kernels.language.about``), and the trace keeps
them: about["roles"], {role: verbs}. A warp is in a role from the first instruction of one of its
verbs to the first of another role's: what it waits for and computes in between, in verbs that all
share, belongs to that role. about["ring_waits"] has the verbs in which a warp waits at a barrier of
a ring.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.trace.record import Trace, remembered

WAITING = "waits"


def roles_of(trace: Trace) -> list[str]:
    """The roles of the kernel, in the order in which it declares them; [] if all warps do the
    same."""
    return list(trace.about.get("roles") or ())


@remembered
def activities(trace: Trace, warp: int) -> tuple[np.ndarray, np.ndarray]:
    """(number of the role, -1 before the first; whether it was waiting) of every step of a warp
    of the grid."""
    number = {
        verb: index
        for index, role in enumerate(roles_of(trace))
        for verb in trace.about["roles"][role]
    }
    phases, waits = [ins["phase"] for ins in trace.instructions], trace.about.get("ring_waits", ())
    pcs = trace.step_pc[trace.steps_of(warp)]
    told = np.array([number.get(phase, -1) for phase in phases], np.int64)[pcs]
    last = (
        np.maximum.accumulate(np.where(told >= 0, np.arange(len(told)), -1)) if len(told) else told
    )
    return np.where(last >= 0, told[last], -1), np.array([phase in waits for phase in phases])[pcs]


def roles_of_warp(trace: Trace, warp: int) -> list[str]:
    """The roles that a warp of the grid took, in the order of ``roles_of``."""
    names = roles_of(trace)
    return (
        [names[index] for index in np.unique(activities(trace, warp)[0]).tolist() if index >= 0]
        if names
        else []
    )


def warps_of_role(trace: Trace, block: int, role: str) -> list[int]:
    """The warps of a block that took this role, by their number in the block."""
    return [
        warp
        for warp in range(trace.warps)
        if role in roles_of_warp(trace, block * trace.warps + warp)
    ]


@remembered
def multipliers(trace: Trace, block: int) -> list[int]:
    """Warps of a block that ran a tensor-core instruction, by their number in the block."""
    tensor = np.array([ins["kind"] == "tensor" for ins in trace.instructions])
    return [
        warp
        for warp in range(trace.warps)
        if tensor[trace.step_pc[trace.steps_of(block * trace.warps + warp)]].any()
    ]

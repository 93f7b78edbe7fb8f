"""Who does what in a kernel whose warps have roles: told by the verbs that only one role has. From
recorded steps; nothing where no line numbers were compiled in.

``ROLES``: kernel -> role -> its verbs. A warp is in a role from the first instruction of one of its
verbs to the first of another's: what it waits for and computes in between, in verbs that all share,
is that role's.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.trace.record import Trace, remembered

ROLES = {
    "block_scaled": {
        "scheduler": ("hand_out_tiles",),
        "main-loop load": ("load_operands",),
        "epilogue load": ("load_source",),
        "expand": ("expand_tiles", "load_row", "put_pair", "publish"),
        "mma": ("multiply_steps", "take_packed", "go_on", "start"),
        "epilogue": ("epilogue", "put_block", "finish", "store", "free_output", "drain"),
    },
    "tcgen05": {
        "load": ("load_tiles",),
        "mma": ("multiply_tiles", "copy_scales", "multiply_stage"),
        "epilogue": ("finish_tiles", "store_tile", "store_chunk"),
    },
    "block_decode": {
        "load": ("load_stages",),
        "multiply": ("multiply_stages", "fetch", "multiply"),
        "epilogue": ("leave_sums", "add_shares", "add_blocks", "finish_columns"),
    },
    "block_mma": {
        "load": ("load_tile",),
        "mma": ("multiply_stages", "multiply_step", "fetch"),
        "epilogue": ("store_pair",),
    },
}
WAITS = ("wait_full", "wait_empty")
WAITING = "waits"


def roles_of(trace: Trace) -> list[str]:
    """Of the kernel, in the order of ROLES; [] for one whose warps are alike."""
    return list(ROLES.get(trace.about.get("kernel", ""), ()))


@remembered
def activities(trace: Trace, warp: int) -> tuple[np.ndarray, np.ndarray]:
    """(number of the role, -1 before the first; whether it stood at a wait) of every step of a warp
    of the grid."""
    number = {
        verb: index
        for index, role in enumerate(roles_of(trace))
        for verb in ROLES[trace.about["kernel"]][role]
    }
    phases = [ins["phase"] for ins in trace.instructions]
    pcs = trace.step_pc[trace.steps_of(warp)]
    told = np.array([number.get(phase, -1) for phase in phases], np.int64)[pcs]
    last = (
        np.maximum.accumulate(np.where(told >= 0, np.arange(len(told)), -1)) if len(told) else told
    )
    return np.where(last >= 0, told[last], -1), np.array([phase in WAITS for phase in phases])[pcs]


def roles_of_warp(trace: Trace, warp: int) -> list[str]:
    """Those that a warp of the grid took, in the order of ROLES."""
    names = roles_of(trace)
    return (
        [names[index] for index in np.unique(activities(trace, warp)[0]).tolist() if index >= 0]
        if names
        else []
    )


def warps_of_role(trace: Trace, block: int, role: str) -> list[int]:
    """Warps of a block, by their number in it."""
    return [
        warp
        for warp in range(trace.warps)
        if role in roles_of_warp(trace, block * trace.warps + warp)
    ]


@remembered
def multipliers(trace: Trace, block: int) -> list[int]:
    """Warps of a block that ran a tensor-core instruction, by their number in it."""
    tensor = np.array([ins["kind"] == "tensor" for ins in trace.instructions])
    return [
        warp
        for warp in range(trace.warps)
        if tensor[trace.step_pc[trace.steps_of(block * trace.warps + warp)]].any()
    ]

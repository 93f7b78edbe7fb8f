"""cp.async and its groups.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async

Bulk copies are in ``bulk_copy``.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.instructions.load_store import HINT
from numba_marlin.emulator.instructions.mbarrier import SHARED, barrier_at
from numba_marlin.emulator.limits import MOST_GROUPS
from numba_marlin.emulator.state.registers import PREDICATE
from numba_marlin.emulator.text.program import Register

SPACES = ("shared", "global")
HINTS = (
    "ca",
    "cg",
    "shared",
    "shared::cta",
    "global",
    HINT,
    "L2::64B",
    "L2::128B",
    "L2::256B",
)


@instruction("cp.async")
def cp_async(ins, m):
    """cp.async.{ca|cg}.shared.global [dst], [src], cp-size{, src-size | ignore-src}{,
    cache-policy}"""
    allow(ins, *HINTS)
    spaces = tuple(mod.split("::")[0] for mod in ins.modifiers if mod.split("::")[0] in SPACES)
    if spaces != SPACES:
        raise unsupported(ins, "copies from global to shared memory: .shared.global")
    target, origin, _, *rest = operands(ins, 3, 4, 5)
    nbytes = m.immediate(ins, 2)
    if nbytes not in ((16,) if "cg" in ins.modifiers else (4, 8, 16)):
        raise unsupported(ins, f"cp-size {nbytes} is not allowed")
    if HINT in ins.modifiers:
        rest = rest[:-1]
    if len(rest) > 1:
        raise unsupported(
            ins, f"{len(ins.operands)} operands are one too many without .L2::cache_hint"
        )
    valid, ignore = None, None
    if rest and isinstance(rest[0], Register) and rest[0].width == PREDICATE:
        ignore = m.source(ins, rest[0], "pred")
    elif rest:
        valid = m.source(ins, rest[0], "u32")
    at, source = m.address(ins, target), m.address(ins, origin)
    copies = m.copies

    def step(lanes):
        given = np.full(lanes.shape, nbytes, np.int64)
        if ignore is not None:
            given[...] = np.where(ignore[lanes.sel], 0, nbytes)
        elif valid is not None:
            given[...] = valid[lanes.sel]
            if given.max() > nbytes:
                raise lanes.fault(
                    OutOfBounds,
                    f"src-size {given.max()} must be at most cp-size {nbytes}",
                    ins,
                    given > nbytes,
                )
        copies.issue(ins, lanes, at(lanes), source(lanes), nbytes, given)

    return step


@instruction("cp.async.mbarrier.arrive")
def arrive(ins, m):
    """#...-cp-async-mbarrier-arrive: at the mbarrier, when what the thread has copied before is
    there."""
    allow(ins, "noinc", *SHARED)
    words = barrier_at(ins, m, operands(ins, 1)[0])
    counted = "noinc" in ins.modifiers
    return lambda lanes: m.copy_arrivals.add(ins, lanes, words(lanes), counted)


@instruction("cp.async.commit_group")
def commit_group(ins, m):
    """#...-cp-async-commit-group"""
    allow(ins)
    operands(ins, 0)
    return lambda lanes: m.copies.commit(ins, lanes)


@instruction("cp.async.wait_group")
def wait_group(ins, m):
    """#...-cp-async-wait-group: all but the N most recent groups of the thread have landed."""
    allow(ins)
    operands(ins, 1)
    latest = m.immediate(ins, 0)
    if not 0 <= latest <= MOST_GROUPS:
        raise unsupported(ins, f"{latest} groups must be between 0 and {MOST_GROUPS}")
    m.copies.reserve(latest)
    return lambda lanes: m.copies.wait_group(ins, lanes, latest)


@instruction("cp.async.wait_all")
def wait_all(ins, m):
    """#...-cp-async-wait-all"""
    allow(ins)
    operands(ins, 0)
    return lambda lanes: m.copies.wait_all(ins, lanes)

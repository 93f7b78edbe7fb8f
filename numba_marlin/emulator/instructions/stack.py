"""alloca, stacksave, stackrestore: local memory that a thread takes as it goes.

https://docs.nvidia.com/cuda/parallel-thread-execution/#stack-manipulation-instructions

A kernel that has alloca gets ALLOCA_BYTES behind its local variables, what a CUDA program has
unless it asks for more (cudaLimitStackSize). The stack grows down.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.state.memory import ALLOCA_BYTES

LEAST_ALIGNMENT, MOST_ALIGNMENT = 8, 1 << 23


@instruction("alloca")
def alloca(ins, m):
    """#stack-manipulation-instructions-alloca: alloca.type ptr, size{, alignment}"""
    allow(ins)
    kind = type_of(ins, "u32", "u64")
    given = operands(ins, 2, 3)
    alignment = m.immediate(ins, 2) if len(given) == 3 else LEAST_ALIGNMENT
    if not 1 <= alignment <= MOST_ALIGNMENT or alignment & alignment - 1:
        raise unsupported(ins, f"alignment {alignment} must be a power of two, at most 2^23")
    d, size = m.destination(ins, given[0], kind), m.source(ins, given[1], kind)
    alignment = max(alignment, LEAST_ALIGNMENT)

    def step(lanes):
        s = lanes.sel
        wanted = np.broadcast_to(size[s], lanes.shape).astype(np.int64)
        at = m.stack[s] - wanted & -alignment
        bad = (wanted < 0) | (wanted > ALLOCA_BYTES) | (at < m.stack_end)
        if bad.any():
            first = lanes.first(bad)[2]
            raise lanes.fault(
                OutOfBounds,
                f"alloca of {wanted[first]} bytes: {m.stack[s][first] - m.stack_end} of the stack's"
                f" {ALLOCA_BYTES} are left",
                ins,
                bad,
            )
        m.stack[s] = at
        d[s] = at.astype(d.dtype)

    return step


@instruction("stacksave")
def stacksave(ins, m):
    """#stack-manipulation-instructions-stacksave"""
    allow(ins)
    d = m.destination(ins, operands(ins, 1)[0], type_of(ins, "u32", "u64"))

    def step(lanes):
        d[lanes.sel] = m.stack[lanes.sel].astype(d.dtype)

    return step


@instruction("stackrestore")
def stackrestore(ins, m):
    """#stack-manipulation-instructions-stackrestore: to what stacksave gave."""
    allow(ins)
    a = m.source(ins, operands(ins, 1)[0], type_of(ins, "u32", "u64"))

    def step(lanes):
        s = lanes.sel
        to = np.broadcast_to(a[s], lanes.shape).astype(np.int64)
        bad = (to < m.stack[s]) | (to > m.stack_end + ALLOCA_BYTES)
        if bad.any():
            raise lanes.fault(OutOfBounds, "restores a stack that was not saved before", ins, bad)
        m.stack[s] = to

    return step

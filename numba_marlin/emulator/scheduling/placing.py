"""Where the variables of a kernel lie in shared and local memory."""

from __future__ import annotations

from collections.abc import Sequence

from numba_marlin.emulator.limits import LEAST_FRAME
from numba_marlin.emulator.state.memory import LOCAL_BASE, SHARED_BASE
from numba_marlin.emulator.text.program import Address, Kernel, Special, Symbol, Variable

DYNAMIC_ALIGNMENT = 16
RESERVED = "%reserved_smem_offset"  # names of special registers begin so


def lay_out(space: str, base: int, variables: Sequence[Variable], kernel: Kernel, dynamic: int):
    """Addresses of the variables of a space: ([(address, size, name)], bytes in all, bytes before
    the dynamic part).

    Module-scope variables count when the kernel's text names them, as ptxas does. All [] arrays
    start at the same place.
    """
    mine = [v for v in variables if v.space == space]
    if mine:
        used = {op.name for ins in kernel.instructions for op in symbols(ins.operands)}
        mine = [v for v in mine if v.name in used]
    mine += [v for v in kernel.variables if v.space == space and not v.frame]
    placed, end, alignment = [], base, DYNAMIC_ALIGNMENT
    for variable in mine:
        if variable.size:
            start = -(-end // variable.align) * variable.align
            placed.append((start, variable.size, variable.name))
            end = start + variable.size
        else:
            alignment = max(alignment, variable.align)
    start = -(-end // alignment) * alignment if dynamic else end
    placed += [(start, dynamic, v.name) for v in mine if not v.size]
    return placed, start + dynamic - base, start - base


def reserved_bytes(kernel: Kernel) -> int:
    """Of the shared memory below SHARED_BASE that the system reserves: none, if the kernel never
    asks where it lies."""
    operands = (operand for ins in kernel.instructions for operand in ins.operands)
    asks = any(isinstance(op, Special) and op.name.startswith(RESERVED) for op in operands)
    return SHARED_BASE if asks else 0


def lay_out_frames(kernel: Kernel, local_size: int) -> tuple[dict[str, int], dict[str, int]]:
    """Of the recursive functions: (addresses of their variables in a thread's first frame, bytes of
    a frame of each; of the kernel, under "", none)."""
    addresses, ends = {}, dict.fromkeys(kernel.saved, 0)
    for variable in kernel.variables:
        if variable.frame:
            start = align(ends[variable.frame], variable.align)
            addresses[variable.name] = LOCAL_BASE + align(local_size) + start
            ends[variable.frame] = start + variable.size
    return addresses, {"": 0} | {name: align(max(end, LEAST_FRAME)) for name, end in ends.items()}


def align(count: int, unit: int = LEAST_FRAME) -> int:
    return -(-count // unit) * unit


def rebase(placed: list, base: int) -> list:
    return [(start - base, size, name) for start, size, name in placed]


def symbols(operands: Sequence):
    """All Symbol operands, inside addresses too."""
    for operand in operands:
        if isinstance(operand, Symbol):
            yield operand
        elif isinstance(operand, Address) and isinstance(operand.base, Symbol):
            yield operand.base

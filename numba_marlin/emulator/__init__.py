"""The PTX machine: runs compiled kernels on the CPU, lane by lane as the PTX ISA says, and catches
what they do wrong.

``Machine`` is the way in: ``Machine(ptx).run(...)`` on NumPy arrays, with a ``Schedule`` for
another legal interleaving and a ``Listener`` to look on. ``errors`` names what can go wrong,
``limits`` how much the machine takes on.
The groups, in the order to read them in, which is also who may import whom: a group imports only
those above it in this list.

``text``
    from PTX text to kernels made of decoded instructions and basic blocks.
``state``
    what a running kernel has: lanes and their paths, registers, memory; numbers and how they are
    rounded; listeners.
``asynchronous``
    what happens outside of program order: copies in flight, barriers, mbarriers, clusters, the
    asynchronous proxy.
``ordering``
    happens-before: which accesses nothing orders, and how a race is reported. (Imports ``text``
    and ``state`` only.)
``tensor``
    tensor cores: how they add, wgmma and tcgen05 in flight, tensor memory.
``instructions``
    what each opcode does, one handler per family.
``scheduling``
    who runs next: one run of a kernel (``execution``), its basic blocks made executable, the
    interleaving of warps and blocks, deadlocks.

``machine`` stands above all of them. The room imports ``hardware``, ``layout`` and NumPy, nothing
else of the package and never numba. Upward references (a Memory's proxy, who records races) are
objects that ``scheduling.execution`` hands down; their types are imported for type checkers only.
"""

from numba_marlin.emulator.errors import (
    BadDescriptor,
    BadMetadata,
    BarrierMisuse,
    Deadlock,
    DivergentCollective,
    LimitExceeded,
    MachineError,
    Misaligned,
    OutOfBounds,
    PendingCopyRead,
    ProxyHazard,
    PtxSyntaxError,
    Race,
    ReadOnlyWrite,
    RegisterHazard,
    TensorMemoryHazard,
    TensorMemoryMisuse,
    Trap,
    UninitializedRead,
    UnknownInstruction,
)
from numba_marlin.emulator.machine import Machine, RunResult
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.emulator.state.listener import Listener

__all__ = [
    "BadDescriptor",
    "BadMetadata",
    "BarrierMisuse",
    "Deadlock",
    "DivergentCollective",
    "LimitExceeded",
    "Listener",
    "Machine",
    "MachineError",
    "Misaligned",
    "OutOfBounds",
    "PendingCopyRead",
    "ProxyHazard",
    "PtxSyntaxError",
    "Race",
    "ReadOnlyWrite",
    "RegisterHazard",
    "RunResult",
    "Schedule",
    "TensorMemoryHazard",
    "TensorMemoryMisuse",
    "Trap",
    "UninitializedRead",
    "UnknownInstruction",
]

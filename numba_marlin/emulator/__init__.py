"""The PTX machine: runs compiled kernels on the CPU, lane by lane as the PTX ISA says, and catches
what they do wrong.

``machine.Machine`` is the way in. ``parser``, ``body``, ``scopes``, ``calls`` and ``cfg`` decode
the text; ``instructions/`` says what each opcode does; ``registers``, ``memory`` and ``copies``
hold the state; ``mbarriers``, ``bulk``, ``warpgroups`` and ``clusters`` what Hopper adds,
``proxies`` what it does not see yet; ``tensor_memory``, ``tensor_hazards``, ``tensor_cores`` and
``block_scaled`` what Blackwell adds; ``scheduler`` interleaves warps and blocks; ``schedules`` says
in which order; ``races`` says which accesses nothing orders; ``errors`` names what can go wrong.
The room imports ``layout`` and NumPy, nothing else of the package and never numba.
"""

from numba_marlin.emulator.errors import (
    BadDescriptor,
    BarrierMisuse,
    Deadlock,
    DivergentCollective,
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
    "BarrierMisuse",
    "Deadlock",
    "DivergentCollective",
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

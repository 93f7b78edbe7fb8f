"""What a run on the PTX machine moved and did, counted: per instruction, per phase (the kernel's
verbs), per buffer.

``count(machine, ...)`` runs a kernel and returns Counts. ``transactions`` has the rules of the
memory system (sectors, wavefronts), ``observer`` collects while the machine runs, ``instructions``
sorts opcodes into classes and knows their tensor-core operations, ``liveness`` the registers,
``phases`` where an instruction comes from, ``tally`` what is added up, ``report`` the result.
Nothing is counted unless asked for: the machine calls one hook per memory access, and none without
a listener. Everything here is counted, nothing measured or modelled: a cache, a clock and an
assembler have no part in it. The room imports the emulator, ``layout`` and NumPy.
"""

from numba_marlin.counts.observer import count
from numba_marlin.counts.report import BufferCounts, Counts, InstructionCounts, PhaseCounts
from numba_marlin.counts.tally import GlobalTally, SharedTally, Tally

__all__ = [
    "BufferCounts",
    "Counts",
    "GlobalTally",
    "InstructionCounts",
    "PhaseCounts",
    "SharedTally",
    "Tally",
    "count",
]

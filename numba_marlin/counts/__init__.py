"""Counts of a run on the PTX machine, its traffic and its operations: per instruction, per phase
(the kernel's verbs) and per buffer.

``count(machine, ...)`` runs a kernel and returns Counts. ``transactions`` has the rules of the
memory system (sectors, wavefronts), ``observer`` collects while the machine runs, ``instructions``
classifies opcodes and counts their tensor-core operations, ``liveness`` counts live registers,
``phases`` maps an instruction to its source, ``tally`` adds up, ``report`` is the result. Counting
is off by default: the machine calls one hook per memory access, and none without a listener.
Everything here is counted, nothing is measured or modelled: no cache, clock or assembler is
involved. The room imports the emulator, ``layout`` and NumPy.
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

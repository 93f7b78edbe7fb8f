"""Whether races are looked for: what their records may take, before any memory is taken.

A run takes about twice as long with it; what grows faster than the run is memory, because every
thread may come to know something of its own about every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.conflicts import GLOBAL_READERS, smallest
from numba_marlin.emulator.state.lanes import WARP

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution

MOST_BYTES = 1 << 30  # of records, where nobody insists
MOST_INSTRUCTIONS, MOST_THREADS = (1 << marks.PC_BITS) - 1, (1 << marks.WHO_BITS - 1) - 1
RECORD, FLAG, CLOCK = 8, 1, 4  # bytes of a record and a flag of ``shadow``, a number of ``clocks``
NOT_ASKED = "they were not asked for"


def why_not(execution: Execution, blocks: int, asked: bool | None) -> str:
    """Why a run of ``blocks`` does not look for races; "" if it does. ``asked``: as ``races`` of
    Machine. ValueError if it must and cannot."""
    if asked is False:
        return NOT_ASKED
    instructions = len(execution.kernel.instructions)
    threads = blocks * execution.placement.warps_per_block * WARP
    if instructions > MOST_INSTRUCTIONS or threads > MOST_THREADS:
        reason = (
            f"they can be looked for in {MOST_INSTRUCTIONS} instructions and {MOST_THREADS}"
            f" threads at most, not in {instructions} and {threads}"
        )
        if asked:
            raise ValueError(f"races=True: {reason}")
        return reason
    wanted = 0 if asked else records(execution, threads)
    if wanted <= MOST_BYTES:
        return ""
    return (
        f"their records may take {wanted / 2**30:.1f} GiB, more than {MOST_BYTES >> 30}, for"
        f" {threads} threads and the arrays that they may write (--races, races=True: all the same)"
    )


def records(execution: Execution, threads: int) -> int:
    """Bytes that the records of a run of ``threads`` may take in all."""
    placement, instructions = execution.placement, execution.kernel.instructions
    # rows double until every resident thread may have its own
    clocks = 2 * placement.warps * WARP * threads * CLOCK
    written = sum(
        buffer.nbytes
        for buffer in execution.memory.globals.buffers
        if not buffer.readonly or buffer.earlier
    )
    shared, readers = execution.memory.shared.data.size, placement.warps_per_block
    return (
        clocks
        + written // smallest(instructions, "global") * (RECORD * (1 + GLOBAL_READERS) + FLAG)
        + shared
        // smallest(instructions, "shared")
        * (RECORD * (1 + readers * execution.cluster.size) + FLAG)
    )

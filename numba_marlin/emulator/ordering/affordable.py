"""Whether races are looked for: what their records may take, before any memory is taken.

A run takes one and a half to three times as long with it. Memory grows with the grid and with what
it touches, and faster than the grid only where blocks talk: every thread may then come to know
something of its own about every other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_marlin.emulator.ordering import shadow as marks
from numba_marlin.emulator.ordering.conflicts import GLOBAL_READERS, smallest
from numba_marlin.emulator.ordering.messages import order_of
from numba_marlin.emulator.state.lanes import WARP

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution

MOST_BYTES = 1 << 30  # of records, where nobody insists
MOST_INSTRUCTIONS, MOST_THREADS = (1 << marks.PC_BITS) - 1, (1 << marks.WHO_BITS - 1) - 1
# bytes of a record, a number of a row and a flag of ``shadow``, a number of ``clocks``
RECORD, ROW, FLAG, CLOCK = 8, 4, 1, 4
SPARE = 1.5  # of what grows
COLUMNS = 64  # of a block, in ``clocks``
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
    known = threads if talks(execution) else placement.warps_per_block * WARP
    clocks = 2 * placement.warps * WARP * (known + COLUMNS) * CLOCK
    written = sum(
        buffer.nbytes
        for buffer in execution.memory.globals.buffers
        if not buffer.readonly or buffer.earlier
    )
    # in the worst case every unit has its row of readers
    of_unit = RECORD * (3 + SPARE * GLOBAL_READERS) + ROW + 2 * FLAG
    shared, readers = execution.memory.shared.data.size, placement.warps_per_block
    return int(
        clocks
        + written // smallest(instructions, "global") * of_unit
        + shared
        // smallest(instructions, "shared")
        * (RECORD * (2 + readers * execution.cluster.size) + FLAG)
    )


def talks(execution: Execution) -> bool:
    """Whether threads may learn what those of other blocks have done."""
    return execution.cluster.size > 1 or any(
        ins.root.split(".")[0] in ("fence", "membar")
        or ins.root in ("ld", "atom", "red")
        and order_of(ins).acquires
        for ins in execution.kernel.instructions
    )

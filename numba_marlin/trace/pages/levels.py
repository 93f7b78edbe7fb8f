"""How far away each level of memory is, and how fast: what probes measured on a GPU
(``data.measured("levels")``, of experiments/30_levels), for the drawing of the memory hierarchy.

``rows_of(level)`` gives the rows of a box of that drawing, each (label, words, source);
``pictures()`` two figures: latencies, and bytes per cycle. Every one names the GPU of the probes,
which need not be the one whose sizes the drawing shows.
"""

from __future__ import annotations

from numba_marlin.data import measured
from numba_marlin.hardware.devices import specified
from numba_marlin.views import MEASURED, Bar, Bars

GLOBAL, L2, L1, REGISTERS, TENSOR = "global", "l2", "l1", "registers", "tensor"
LEVELS_OF = {  # box of the drawing: names of levels in the rows
    GLOBAL: ("memory",),
    L2: ("L2 cache", "L2 to shared memory"),
    L1: ("shared memory", "shared memory of a cluster", "L1 cache"),
    REGISTERS: ("registers",),
    TENSOR: ("tensor cores",),
}
CYCLES = "cycles"


def gpu_of(row: dict) -> str:
    known = specified(row["device"])
    return row["device"] if known is None else known.name


def words(row: dict) -> str:
    """What a probe found, with the instruction that it timed and the GPU it ran on."""
    if row["unit"] == CYCLES:
        found = f"{row['cycles']:.0f} cycles"
    else:
        found = f"{row['per_cycle_and_sm']:,.4g} {row['unit']} per cycle of an SM"
    return f"{found}: {row['probe']} ({gpu_of(row)})"


def rows_of(level: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        ("latency" if row["unit"] == CYCLES else "rate", words(row), MEASURED)
        for row in measured("levels")
        if row["level"] in LEVELS_OF[level]
    )


def pictures() -> tuple[Bars, ...]:
    rows = measured("levels")
    gpus = ", ".join(dict.fromkeys(map(gpu_of, rows)))
    waits: dict[str, float] = {}  # the shortest of each level
    for row in rows:
        if row["unit"] == CYCLES:
            waits[row["level"]] = min(row["cycles"], waits.get(row["level"], row["cycles"]))
    rates = [row for row in rows if row["unit"] == "bytes"]
    return (
        Bars(
            tuple(
                Bar(level, cycles, f"{cycles:.0f}", level)
                for level, cycles in sorted(waits.items(), key=lambda item: item[1])
            ),
            "cycles",
            title=f"Latency of each level, on {gpus}",
            source=MEASURED,
            note=(
                "Cycles until an instruction has a value that it needs, if each needs the one"
                " before it. A pipeline of stages is there to hide the long bars: as many bytes"
                " must be under way as memory delivers in that time."
            ),
        ),
        Bars(
            tuple(
                Bar(
                    row["level"],
                    row["per_cycle_and_sm"],
                    f"{row['per_cycle_and_sm']:.0f}",
                    row["level"],
                )
                for row in sorted(rates, key=lambda row: -row["per_cycle_and_sm"])
            ),
            "bytes",
            title=f"Bytes per cycle of an SM, on {gpus}",
            source=MEASURED,
            note="All warps load, none waits for an address. L2 and memory serve all SMs at once.",
        ),
    )

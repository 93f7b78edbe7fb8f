"""What a GPU left beside what the machine makes of the same probe: one row a probe.

``judge(probe, kept, about)`` -> dict; kept: arrays as ``record.keep`` makes them; about:
``visit.meta`` of them. ``outcome`` is "equal" (bit for bit), "NaN differ" (equal but for bits of
NaN), "differs", "refused" (by both, as it must be), "failed" (the GPU ended it with an error, or
the machine did), "not run" (the GPU ran no such probe, or one with other operands), or "not run:
needs sm_100a" (or another architecture than the GPU's).
"""

from __future__ import annotations

from numba_marlin.emulator import MachineError
from numba_marlin.witness import record
from numba_marlin.witness.probe import TARGET, Probe, run_on_machine

GOOD = ("equal", "NaN differ", "refused")
ELSEWHERE = "not run: needs "


def good(row: dict) -> bool:
    """Nothing speaks against the machine: it agrees, or the GPU has no such instruction."""
    return row["outcome"] in GOOD or row["outcome"].startswith(ELSEWHERE)


def judge(probe: Probe, kept, about: dict) -> dict:
    told, buffers = about["probes"].get(probe.name), probe.buffers()
    row = {
        "probe": probe.name,
        "covers": list(probe.covers),
        "lanes": probe.lanes,
        "note": probe.note,
        "device": about["device"],
        "driver": about["driver"],
        "measured": (told or {}).get("date", about["date"]),
        "elements": 0,
        "equal": 0,
        "nan_only": 0,
    }
    if not probe.runs_on(about.get("arch", TARGET.rstrip("a"))):
        return {**row, "outcome": ELSEWHERE + probe.target}
    if told is None or told.get("sha256") not in (None, record.sources(probe, buffers)):
        return {**row, "outcome": "not run"}
    error = told.get("error", "").split(": ", 1)[-1]
    try:
        results = run_on_machine(probe, buffers)
    except MachineError as fault:
        agreed = bool(error) and probe.refused == type(fault).__name__
        return {
            **row,
            "outcome": "refused" if agreed else "failed",
            "there": error,
            "here": f"{type(fault).__name__}: {fault}".splitlines()[0],
        }
    if error or probe.refused:
        return {
            **row,
            "outcome": "failed",
            "there": error or "not refused",
            "here": "not refused" if probe.refused else "",
        }
    found = {name: record.compare(probe, name, results[name], kept) for name in probe.results}
    for each in ("total", "equal", "nan_only"):
        row["elements" if each == "total" else each] = sum(
            getattr(comparison, each) for comparison in found.values()
        )
    wrong = next(((name, c) for name, c in found.items() if not c.ok), None)
    if wrong:
        return {
            **row,
            "outcome": "differs",
            "first": {
                "result": wrong[0],
                "element": wrong[1].first,
                "here": wrong[1].here,
                "there": wrong[1].there,
                "exact": wrong[1].exact,
            },
        }
    return {**row, "outcome": "NaN differ" if row["nan_only"] else "equal"}

"""A trace as Chrome trace events, which ui.perfetto.dev and chrome://tracing open: a process per
block, a thread per warp, a slice per visit of a verb.

Times are the machine's: a microsecond of the file is a step. Asynchronous copies are arcs from
issue to landing, bytes in flight are a counter, and accesses to locks are instant events.
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (the trace event
format)
"""

from __future__ import annotations

import json

import numpy as np

from numba_marlin.trace.record import Trace
from numba_marlin.trace.roles import roles_of_warp
from numba_marlin.trace.traffic import copies


def events(trace: Trace) -> dict:
    """The events as plain data for JSON."""
    found: list[dict] = []
    for block in range(trace.blocks):
        found.append(
            {
                "ph": "M",
                "pid": block,
                "tid": 0,
                "name": "process_name",
                "args": {"name": f"block {block}"},
            }
        )
        for warp in range(trace.warps):
            role = ", ".join(roles_of_warp(trace, block * trace.warps + warp))
            found.append(
                {
                    "ph": "M",
                    "pid": block,
                    "tid": warp,
                    "name": "thread_name",
                    "args": {"name": f"warp {warp}" + (f": {role}" if role else "")},
                }
            )
            found += visits(trace, block, warp)
        if block in trace.header["blocks"]:
            found += flights(trace, block)
    found += lock_events(trace)
    about = {
        "kernel": trace.header["kernel"],
        "clock": "a microsecond is a step of the PTX machine, not a time on a GPU",
        **{key: str(value) for key, value in (trace.about.get("problem") or {}).items()},
    }
    return {"traceEvents": found, "displayTimeUnit": "ns", "otherData": about}


def visits(trace: Trace, block: int, warp: int) -> list[dict]:
    """The stretches of time in which a warp ran one verb without a break; waiting belongs to
    none."""
    steps = trace.steps_of(block * trace.warps + warp)
    if not len(steps):
        return []
    phases = [ins["phase"] for ins in trace.instructions]
    names = np.array([phases[pc] for pc in trace.step_pc[steps].tolist()])
    cuts = np.flatnonzero(np.r_[True, (names[1:] != names[:-1]) | (np.diff(steps) > 1)])
    found = []
    for first, last in zip(cuts.tolist(), [*(cuts[1:] - 1).tolist(), len(steps) - 1]):
        ins = trace.instructions[int(trace.step_pc[steps[first]])]
        found.append(
            {
                "ph": "X",
                "pid": block,
                "tid": warp,
                "name": str(names[first]),
                "cat": "verb",
                "ts": int(steps[first]),
                "dur": int(steps[last] - steps[first] + 1),
                "args": {"instructions": last - first + 1, "source": ins["source"] or ""},
            }
        )
    return found


def flights(trace: Trace, block: int) -> list[dict]:
    """One arc for the copies that one instruction issued and that landed together; and a counter of
    bytes in flight."""
    groups: dict[tuple, list] = {}
    for copy in copies(trace, block):
        if copy.source >= 0:
            groups.setdefault((copy.step, copy.warp, copy.landed), []).append(copy)
    found: list = []
    changes: dict = {}
    for number, ((step, warp, landed), group) in enumerate(groups.items()):
        nbytes, end = sum(copy.nbytes for copy in group), landed if landed >= 0 else trace.steps
        buffer = trace.buffer_at(group[0].source)
        what = {
            "pid": block,
            "tid": warp % trace.warps,
            "cat": "copy",
            "name": f"copy of {buffer['name'] if buffer else 'memory'}",
            "id": f"{block}.{number}",
        }
        found += [
            {"ph": "b", "ts": step, "args": {"bytes": nbytes}, **what},
            {"ph": "e", "ts": end, **what},
        ]
        for at, change in ((step, nbytes), (end, -nbytes)):
            changes[at] = changes.get(at, 0) + change
    total = 0
    for at in sorted(changes):
        total += changes[at]
        found.append(
            {"ph": "C", "pid": block, "name": "bytes in flight", "ts": at, "args": {"bytes": total}}
        )
    return found


def lock_events(trace: Trace) -> list[dict]:
    found = []
    for position in range(len(trace.lock_step)):
        block, warp = divmod(int(trace.lock_warp[position]), trace.warps)
        ins = trace.instructions[int(trace.lock_pc[position])]
        found.append(
            {
                "ph": "i",
                "s": "t",
                "pid": block,
                "tid": warp,
                "cat": "lock",
                "name": ins["text"].split()[0],
                "ts": int(trace.lock_step[position]),
                "args": {
                    "was": int(trace.lock_before[position]),
                    "address": hex(int(trace.lock_address[position])),
                },
            }
        )
    return found


def render(trace: Trace) -> str:
    return json.dumps(events(trace), separators=(",", ":"))

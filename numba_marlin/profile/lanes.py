"""Timelines of a profile's warps and blocks: spans of sections, joined and thinned until they can
be drawn."""

from __future__ import annotations

from collections.abc import Iterable

from numba_marlin.profile.instrument import sections
from numba_marlin.profile.sources.on_machine import Counted
from numba_marlin.views import MEASURED

LANES = 16  # warps of one block that a timeline shows
SPANS = 160  # spans of a warp that are drawn
FIRST = 24  # spans of a warp that are kept as they were
Spans = list[tuple[float, float, str]]
"""(start, end, section)"""


def lanes(counted: Counted, observation) -> dict:
    """The warps of one block over time: on a GPU in us, on the machine in warp instructions.
    Each warp has ``spans`` to draw (``drawable``), the ``first`` spans as they were recorded, their
    number before thinning (``count``), and the time of each section over all of them
    (``totals``)."""
    recording = counted.recording if observation is None else observation.recordings[-1]
    block = int(recording.block[len(recording.block) // 2]) if observation is not None else 0
    rows = [index for index in range(len(recording.block)) if recording.block[index] == block][
        :LANES
    ]
    scale, origin = (1.0 if observation is None else 1e-3), float(recording.start_ns[rows].min())
    found, all_spans = [], []
    for index in rows:
        begin, until = (
            (recording.begin_ns[index] - origin) * scale,
            (recording.until_ns()[index] - origin) * scale,
        )
        spans = joined(
            (float(a), float(b), sections.SECTIONS[s].name)
            for a, b, s in zip(begin, until, recording.section[index])
            if s >= 0 and b > a
        )
        all_spans.append(spans)
        totals: dict[str, float] = {}
        for start, end, name in spans:
            totals[name] = totals.get(name, 0.0) + end - start
        found.append(
            {
                "warp": int(recording.warp[index]),
                "spans": rounded(drawable(spans)),
                "first": rounded(spans[:FIRST]),
                "count": len(spans),
                "totals": {name: round(time, 4) for name, time in totals.items()},
            }
        )
    source, unit = (
        ("recorded", "warp instructions of the machine")
        if observation is None
        else (MEASURED, "us")
    )
    return {
        "source": source,
        "unit": unit,
        "block": block,
        "sm": int(recording.smid[rows[0]]),
        "warps": found,
        "overlap": overlap(all_spans),
    }


def overlap(warps: list[Spans]) -> dict[str, float]:
    """How far the activities of a block's warps overlap: of the time in which any warp does
    something (``busy``), the share in which warps are in sections of two kinds or more at once
    (``together``). Waiting is no activity."""
    changes = sorted(
        (time, step, name)
        for spans in warps
        for start, end, name in spans
        if not sections.BY_NAME[name].reason
        for time, step in ((start, 1), (end, -1))
    )
    active: dict[str, int] = {}
    busy = together = last = 0.0
    for time, step, name in changes:
        kinds = sum(count > 0 for count in active.values())
        busy += (time - last) * (kinds > 0)
        together += (time - last) * (kinds > 1)
        active[name], last = active.get(name, 0) + step, time
    return {"busy": round(busy, 4), "together": round(together, 4)}


def joined(spans: Iterable[tuple[float, float, str]]) -> Spans:
    """The spans, with neighbours of the same section joined."""
    found: Spans = []
    for start, end, name in spans:
        if found and found[-1][2] == name and found[-1][1] >= start:
            start = found.pop()[0]
        found.append((start, end, name))
    return found


def drawable(spans: Spans, most: int = SPANS) -> Spans:
    """The spans, if there are at most ``most``. Otherwise ``most`` equal steps of time. Each shows
    a section that occurs in it: the one whose drawn time is furthest behind its real time so far.
    So every section is drawn where it was, and its total time is about right."""
    if len(spans) <= most:
        return spans
    begin, step = spans[0][0], (spans[-1][1] - spans[0][0]) / most
    owed: dict[str, float] = {}
    drawn: Spans = []
    index = 0
    for number in range(most):
        start, end = begin + number * step, begin + (number + 1) * step
        present: set[str] = set()
        while index < len(spans) and spans[index][0] < end:
            first, last, name = spans[index]
            if inside := max(min(last, end) - max(first, start), 0.0):
                present.add(name)
                owed[name] = owed.get(name, 0.0) + inside
            if last > end:
                break
            index += 1
        if present:
            shown = max(sorted(present), key=owed.__getitem__)
            owed[shown] -= step
            drawn.append((start, end, shown))
    return joined(drawn)


def rounded(spans: Spans) -> list[list]:
    return [[round(start, 4), round(end, 4), name] for start, end, name in spans]

"""Shared memory of a block, drawn to scale: a line of bytes on which every operand of every stage
stands where the run's copies put it, and below it what warps stored themselves."""

from __future__ import annotations

from collections.abc import Iterable

from numba_marlin.trace.pages.choice import Choice, element, size
from numba_marlin.trace.record import Trace
from numba_marlin.trace.traffic import copies, requests
from numba_marlin.views import RECORDED, Bar, Bars, Lane, Span, Timeline

STORES = ("store", "stmatrix", "mbarrier", "atomic")
Interval = tuple[int, int]


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """The bytes of all intervals, in order, as few intervals as there can be."""
    found: list[Interval] = []
    for start, stop in sorted(set(intervals)):
        if found and start <= found[-1][1]:
            before, last = found.pop()
            start, stop = before, max(last, stop)
        found.append((start, stop))
    return found


def stage_of(trace: Trace, base: int, start: int) -> str:
    """The number of the stage that holds this byte, with a space before it; "" outside stages."""
    for number, parts in enumerate(trace.about["stages"]):
        if any(first <= base + start < last for first, last in parts):
            return f" {number}"
    return ""


def copied(trace: Trace, choice: Choice) -> list[Span]:
    """Where copies put each buffer's bytes, from the start of the block's shared memory."""
    base = trace.header["launch"]["shared_base"]
    by_place: dict[tuple[str, str], set[Interval]] = {}
    for copy in copies(trace, choice.block):
        if copy.source >= 0:
            start = copy.target - base
            name = element(trace, copy.source)[0]
            place = name, stage_of(trace, base, start)
            by_place.setdefault(place, set()).add((start, start + copy.nbytes))
    spans = [
        Span(start, stop, name + stage, name)
        for (name, stage), found in by_place.items()
        for start, stop in joined(found)
    ]
    return sorted(spans, key=lambda span: span.start)


def stored(trace: Trace, choice: Choice) -> list[Span]:
    """Where warps wrote: sums of a block, results on their way out, barriers."""
    base = trace.header["launch"]["shared_base"]
    intervals = {
        (address - base, address - base + each.nbytes)
        for each in requests(trace, choice.block, STORES, ("shared",))
        for address in each.address[each.active].tolist()
    }
    return [Span(start, stop, "stored", "stored") for start, stop in joined(intervals)]


def drawing(trace: Trace, choice: Choice) -> tuple[Timeline | Bars, ...]:
    """The drawing, and the block's share of an SM where the device's size is known; nothing for a
    kernel that uses no shared memory."""
    whole = trace.header["launch"]["shared_bytes"]
    lanes = tuple(
        Lane(label, tuple(spans))
        for label, spans in (
            ("copied here", copied(trace, choice)),
            ("stored by warps", stored(trace, choice)),
        )
        if spans
    )
    if not whole or not lanes:
        return ()
    parts: tuple[Timeline | Bars, ...] = (
        Timeline(
            lanes,
            "bytes",
            until=whole,
            title=f"Shared memory of block {choice.block}, {size(whole)}, to scale",
            source=RECORDED,
            note=(
                "In a picture a number is that of the stage. What is under no bar was not touched,"
                " or serves for alignment; what is under two was used for both, one after the"
                " other."
            ),
        ),
    )
    per_sm = choice.device.architecture.shared_bytes_per_sm if choice.device else None
    if per_sm:
        parts += (
            Bars(
                (Bar("one block", whole, f"{size(whole)} of {size(per_sm)}", "stored", per_sm),),
                title=f"Of an SM's shared memory, {choice.device.name}",
                source=RECORDED,
                note=(
                    "The driver gives the rest of the SM's memory to other blocks and to L1, in"
                    " steps that it chooses; no instruction can ask for its choice."
                ),
            ),
        )
    return parts

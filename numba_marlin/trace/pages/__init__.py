"""The page of a trace: one module per section. ``page(trace, choice)`` has all sections, in a
didactic order."""

from __future__ import annotations

from numba_marlin.trace.pages import (
    copies,
    fragments,
    launch,
    memory,
    phases,
    pipeline,
    sums,
    timeline,
    unpack,
)
from numba_marlin.trace.pages.choice import Choice
from numba_marlin.trace.record import Trace
from numba_marlin.views import Page, Section

__all__ = ["SECTIONS", "Choice", "check_keys", "page"]

SECTIONS = {
    "launch": launch.section,
    "phases": phases.section,
    "copies": copies.section,
    "unpack": unpack.section,
    "fragments": fragments.section,
    "sums": sums.section,
    "pipeline": pipeline.section,
    "timeline": timeline.section,
    "memory": memory.section,
    "intensity": memory.intensity,
}
"""Key of a section -> function of (trace, choice)."""


def check_keys(keys: tuple[str, ...]) -> None:
    for key in keys:
        if key not in SECTIONS:
            raise ValueError(f"phase {key!r} must be one of {', '.join(SECTIONS)}")


def page(trace: Trace, choice: Choice = Choice(), keys: tuple[str, ...] = ()) -> Page:
    """``keys``: these sections only. ValueError for a section, block, warp or lane that there is
    not."""
    check_keys(keys)
    choice.check(trace)
    sections: list[Section] = [
        make(trace, choice) for key, make in SECTIONS.items() if not keys or key in keys
    ]
    about = trace.about
    problem = about.get("problem") or {}
    sizes = ", ".join(
        f"{name}={problem[name]}" for name in ("m", "n", "k", "group_size") if name in problem
    )
    title = f"{about.get('kernel', trace.header['kernel'])}, step by step"
    subtitle = (
        f"{sizes + ': ' if sizes else ''}one run on the PTX machine, recorded; block"
        f" {choice.block}, warp {choice.warp}, lane {choice.lane}, product {choice.step}"
    )
    return Page(title, tuple(sections), subtitle)

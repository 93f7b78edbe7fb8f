"""The page of a trace, with one module per section.

``page(trace, choice)`` shows all sections in the order in which a reader should meet them: idea,
launch, phases, and so on; that of the experts only for a mixture.
"""

from __future__ import annotations

from numba_marlin.trace.pages import (
    copies,
    experts,
    fragments,
    idea,
    launch,
    memory,
    phases,
    pipeline,
    sums,
    timeline,
    unpack,
    weights,
)
from numba_marlin.trace.pages.choice import Choice
from numba_marlin.trace.record import Trace
from numba_marlin.views import Page, Section
from numba_marlin.wording import did_you_mean

__all__ = ["SECTIONS", "Choice", "check_keys", "page", "usual"]

# key of a section -> function of (trace, choice) that builds it
SECTIONS = {
    "idea": idea.section,
    "launch": launch.section,
    "experts": experts.section,
    "phases": phases.section,
    "weights": weights.section,
    "copies": copies.section,
    "unpack": unpack.section,
    "fragments": fragments.section,
    "sums": sums.section,
    "pipeline": pipeline.section,
    "timeline": timeline.section,
    "memory": memory.section,
    "intensity": memory.intensity,
}


def check_keys(keys: tuple[str, ...]) -> None:
    """Raise ValueError for a key that is not in ``SECTIONS``."""
    for key in keys:
        if key not in SECTIONS:
            raise ValueError(
                f"phase {key!r} must be one of {', '.join(SECTIONS)}{did_you_mean(key, SECTIONS)}"
            )


def usual(trace: Trace) -> tuple[str, ...]:
    """The keys of the sections that are shown where none is asked for."""
    return tuple(key for key in SECTIONS if trace.of_experts or key != experts.KEY)


def page(trace: Trace, choice: Choice = Choice(), keys: tuple[str, ...] = ()) -> Page:
    """Build the page of ``trace``. keys: the sections to show; default: ``usual``.

    Raises ValueError if there is no such section, or if the trace lacks the chosen block, warp or
    lane.
    """
    check_keys(keys)
    choice.check(trace)
    sections: list[Section] = [
        make(trace, choice) for key, make in SECTIONS.items() if key in (keys or usual(trace))
    ]
    about = trace.about
    problem = about.get("problem") or {}
    sizes = ", ".join(
        f"{name}={problem[name]}"
        for name in ("m", "n", "k", "group_size", "experts", "top_k", "activations")
        if problem.get(name) is not None
    )
    title = f"{about.get('kernel', trace.header['kernel'])}, step by step"
    subtitle = (
        f"{sizes + ': ' if sizes else ''}one run on the PTX machine, recorded; block"
        f" {choice.block}, warp {choice.warp}, lane {choice.lane}, product {choice.step}"
    )
    return Page(title, tuple(sections), subtitle)

"""A verdict: as plain data (schema numba-marlin/judge/1, docs/judge.md), and as a page.

Plain data is what crosses from the judging process; the page is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numba_marlin.judge.explain import Defect, Place
from numba_marlin.views.page import COUNTED, Cell, Facts, Page, Section, Step, Table, Text

LOOKED_FOR = (
    "accesses outside of the arrays, or less aligned than the task says",
    "races, missing waits and fences, lanes that miss a collective, deadlocks",
    "reads of shared and local memory and of outputs that nothing has written",
    "inputs that are changed, or never read",
    "elements that are not written, or further from the reference than the bound",
    "other bits in another order of warps, with other garbage, at other addresses",
)


@dataclass(frozen=True)
class CaseVerdict:
    """``schedules``: orders of warps that were tried, if none failed."""

    why: str
    sizes: dict[str, int]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    schedules: int
    defect: Defect | None = None

    @property
    def kind(self) -> str:
        return self.defect.kind if self.defect else ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "why": self.why,
            "sizes": self.sizes,
            "grid": list(self.grid),
            "block": list(self.block),
            "schedules": self.schedules,
            "passed": self.defect is None,
            "defect": self.defect.as_dict() if self.defect else None,
        }


@dataclass(frozen=True)
class Verdict:
    """``defects``: of all cases together. ``complete``: time did not run out."""

    title: str
    kernel: str
    cases: tuple[CaseVerdict, ...]
    defects: tuple[Defect, ...]
    runs: int
    instructions: int
    complete: bool = True

    @property
    def passed(self) -> bool:
        return not self.kinds and bool(self.cases)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of what was found, each once."""
        found = [each.kind for each in self.cases if each.kind]
        return tuple(dict.fromkeys([*found, *(each.kind for each in self.defects)]))

    def as_dict(self) -> dict[str, Any]:
        return {
            "task": self.title,
            "kernel": self.kernel,
            "passed": self.passed,
            "complete": self.complete,
            "kinds": list(self.kinds),
            "cases": [each.as_dict() for each in self.cases],
            "defects": [each.as_dict() for each in self.defects],
            "runs": self.runs,
            "instructions": self.instructions,
            "looked_for": list(LOOKED_FOR),
        }


def page(found: Mapping[str, Any]) -> Page:
    """The page of a verdict's plain data."""
    failed = [each for each in found["cases"] if not each["passed"]]
    said = "right" if found["passed"] else "not right: " + ", ".join(found["kinds"])
    rows = [
        ("kernel", found["kernel"]),
        ("verdict", said),
        ("cases", f"{len(found['cases'])}, of which {len(failed)} failed", COUNTED),
        ("runs", f"{found['runs']}, {found['instructions']:,} warp instructions", COUNTED),
    ]
    if not found["complete"]:
        rows.append(("time", "ran out before all cases were tried"))
    sections = [
        Section(
            "verdict",
            "The verdict",
            parts=(Facts(rows=tuple(rows)), *map(_defect, found["defects"])),
        ),
        Section("cases", "The cases", parts=(_table(found["cases"]),)),
    ]
    nothing = () if failed else (Text("no case"),)
    steps = tuple(_step(alike) for alike in _alike(failed))
    sections.insert(1, Section("failed", "What failed", parts=nothing, steps=steps))
    looked = Text("; ".join(found["looked_for"]))
    sections.append(Section("looked", "What was looked for", parts=(looked,)))
    return Page(found["task"] or "Judge", tuple(sections), f"{found['kernel']}: {said}")


def _alike(failed) -> list[list[Mapping[str, Any]]]:
    """Failed cases, those with the same defect at the same line together."""
    found: dict[tuple, list] = {}
    for each in failed:
        defect = each["defect"]
        where = defect["where"]
        key = (defect["kind"], where["file"], where["line"] or where["ptx_line"], defect["array"])
        found.setdefault(key, []).append(each)
    return list(found.values())


def _step(alike: list[Mapping[str, Any]]) -> Step:
    """The first of them, and how many others there are."""
    first, others = alike[0], len(alike) - 1
    more = f", and {others} more case{'s' * (others > 1)}" if others else ""
    return Step(f"{_sizes(first)} ({first['why']}){more}", (_defect(first["defect"]),))


def _defect(found: Mapping[str, Any]) -> Text:
    return Text(str(defect_of(found)), "code")


def defect_of(found: Mapping[str, Any]) -> Defect:
    """Back from plain data."""
    given = dict(found)
    for name in ("where", "first"):
        if given[name] is not None:
            where = dict(given[name])
            for who in ("block", "thread"):
                where[who] = None if where[who] is None else tuple(where[who])
            given[name] = Place(**where)
    return Defect(**given)


def _table(cases) -> Table:
    rows = tuple(
        (
            _sizes(each),
            each["why"],
            f"{_times(each['grid'])} of {_times(each['block'])}",
            str(each["schedules"]),
            Cell("pass", tone="good")
            if each["passed"]
            else Cell(each["defect"]["kind"], tone="bad"),
        )
        for each in cases
    )
    return Table(("sizes", "why", "blocks of threads", "orders", "verdict"), rows)


def _sizes(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in case["sizes"].items()) or "no sizes"


def _times(sizes) -> str:
    return " x ".join(map(str, sizes))

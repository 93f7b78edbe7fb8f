"""A page that compares two traces: launches, traffic, operations per verb, and results. All figures
come from the two recordings."""

from __future__ import annotations

import numpy as np

from numba_marlin.trace.pages.choice import size
from numba_marlin.trace.record import Trace
from numba_marlin.views import COUNTED, RECORDED, Bar, Bars, Cell, Facts, Page, Section, Table


def same(first: Trace, second: Trace) -> bool:
    """Whether the two runs executed the same instructions in the same order and left the same
    bytes."""
    return (
        first.header == second.header
        and first.arrays.keys() == second.arrays.keys()
        and all(np.array_equal(first.arrays[name], second.arrays[name]) for name in first.arrays)
    )


def page(first: Trace, second: Trace, names: tuple[str, str] = ("first", "second")) -> Page:
    sections = (
        launched(first, second, names),
        verbs(first, second, names),
        traffic(first, second, names),
        results(first, second, names),
    )
    return Page(
        f"Two runs: {names[0]} and {names[1]}",
        sections,
        (
            "the same, to the last bit"
            if same(first, second)
            else "recorded on the PTX machine; what differs is marked"
        ),
    )


def both(label: str, a: str, b: str) -> tuple:
    return label, a, Cell(b, tone="" if a == b else "hot")


def launched(first: Trace, second: Trace, names: tuple[str, str]) -> Section:
    rows = []
    for label, read in (
        ("kernel", lambda t: str(t.about.get("kernel", t.header["kernel"]))),
        ("grid", lambda t: " x ".join(map(str, t.header["launch"]["grid"]))),
        ("threads per block", lambda t: str(32 * t.warps)),
        ("shared memory", lambda t: size(t.header["launch"]["shared_bytes"])),
        ("target", lambda t: t.header["target"]),
    ):
        rows.append(both(label, read(first), read(second)))
    for group in ("problem", "config"):
        here, there = (t.about.get(group) or {} for t in (first, second))
        rows += [
            both(key, str(here.get(key, "-")), str(there.get(key, "-")))
            for key in dict.fromkeys((*here, *there))
        ]
    return Section(
        "launch",
        "Launch",
        (),
        (Table(("", *names), tuple(rows), source=RECORDED, title="What was launched"),),
    )


def verbs(first: Trace, second: Trace, names: tuple[str, str]) -> Section:
    here, there = (
        {each["name"]: each["tally"]["executed"] for each in t.counts["phases"]}
        for t in (first, second)
    )
    rows: list[tuple] = []
    bars = []
    for name in dict.fromkeys((*here, *there)):
        a, b = here.get(name, 0), there.get(name, 0)
        rows.append(
            (Cell(name, name), f"{a:,}", Cell(f"{b:,}", tone="" if a == b else "hot"), change(a, b))
        )
        bars += [
            Bar(f"{name}, {names[0]}", a, kind=name),
            Bar(f"{'':{len(name)}}  {names[1]}", b, kind=name),
        ]
    a, b = sum(here.values()), sum(there.values())
    rows.append(("total", f"{a:,}", Cell(f"{b:,}", tone="" if a == b else "hot"), change(a, b)))
    return Section(
        "verbs",
        "Warp instructions of each verb",
        (),
        (
            Table(("verb", *names, "change"), tuple(rows), source=COUNTED),
            Bars(tuple(bars), source=COUNTED, title="The same as bars"),
        ),
    )


def change(a: float, b: float) -> str:
    return "" if a == b else "new" if not a else f"{100 * (b - a) / a:+.1f}%"


def traffic(first: Trace, second: Trace, names: tuple[str, str]) -> Section:
    def figures(trace: Trace) -> dict[str, float]:
        total = trace.counts["total"]
        tally, shared = total["tally"], total["tally"]["shared"]
        return {
            "steps of the machine": trace.steps,
            "tensor-core operations": tally["flops"],
            "global bytes read": tally["reads"]["bytes"],
            "sectors read": tally["reads"]["sectors"],
            "global bytes written": tally["writes"]["bytes"],
            "sectors written": tally["writes"]["sectors"],
            "different sectors": total["sectors"],
            "shared bytes": shared["bytes"],
            "wavefronts": shared["wavefronts"],
            "bank conflicts": shared["conflicts"],
            "bytes copied asynchronously": sum(tally["copied"].values()),
            "live registers": tally["registers"],
        }

    here, there = figures(first), figures(second)
    rows = tuple(
        (
            name,
            f"{here[name]:,}",
            Cell(f"{there[name]:,}", tone="" if here[name] == there[name] else "hot"),
            change(here[name], there[name]),
        )
        for name in here
    )
    return Section(
        "traffic",
        "Bytes and operations",
        (),
        (Table(("", *names, "change"), rows, source=COUNTED),),
    )


def results(first: Trace, second: Trace, names: tuple[str, str]) -> Section:
    a, b = (trace.arrays.get(f"after_{trace.result_name}") for trace in (first, second))
    if a is None or b is None or a.shape != b.shape:
        said = "The two runs have no results of the same shape to compare."
    else:
        result = first.buffer(first.result_name)
        wide = result["nbytes"] // int(np.prod(result["shape"]))  # bytes of an element
        differing = int((a.reshape(-1, wide) != b.reshape(-1, wide)).any(axis=1).sum())
        inputs = [
            name
            for name in ("a", "b", "scales", "sfa", "sfb", "c", "bias")
            if name != first.result_name
            and not np.array_equal(
                first.arrays.get(f"words_{name}"), second.arrays.get(f"words_{name}")
            )
        ]
        said = f"{differing:,} of {len(a) // wide:,} results differ" + (
            f" (operands differ too: {', '.join(inputs)})"
            if inputs
            else " (the operands are the same)"
        )
    return Section(
        "results",
        "Results",
        (),
        (
            Facts(
                (("results", said, RECORDED),),
                title=f"{first.result_name.upper()}, element by element",
            ),
        ),
    )

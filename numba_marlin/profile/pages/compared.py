"""The section that sets two profiles side by side: pictures first, then the figures."""

from __future__ import annotations

from numba_marlin.profile.build import title_of
from numba_marlin.profile.pages.time_views import name_of
from numba_marlin.profile.sources import verdict
from numba_marlin.views import (
    Bar,
    Bars,
    Ceiling,
    Cell,
    Lane,
    Point,
    Roofline,
    Section,
    Span,
    Table,
    Timeline,
)

FIGURES = (  # label, where it is in a profile, how it is written
    ("time, us", ("time", "us"), "{:.2f}"),
    ("memory bandwidth used", ("rates", "memory_share"), "{:.1%}"),
    ("tensor cores used", ("rates", "tensor_share"), "{:.1%}"),
    ("issue slots used", ("rates", "issue_share"), "{:.1%}"),
    ("warp instructions", ("counts", "instructions"), "{:,}"),
    ("tensor operations", ("counts", "flops"), "{:,}"),
    ("bytes of requested sectors", ("counts", "asked_bytes"), "{:,}"),
    ("coalescing, %", ("counts", "coalescing"), "{:.1f}"),
    ("bank conflicts", ("counts", "conflicts"), "{:,}"),
    ("registers", ("launch", "registers"), "{}"),
    ("shared bytes per block", ("launch", "shared_bytes"), "{:,}"),
    ("blocks", ("launch", "blocks"), "{:,}"),
    ("theoretical occupancy", ("occupancy", "share"), "{:.1%}"),
    ("achieved occupancy", ("occupancy", "achieved"), "{:.1%}"),
)
DRAWN = 0.02  # share of a launch of the parts that are drawn
MOVED = (  # label, where the bytes are counted
    ("memory, if L2 kept all", ("counts", "distinct_bytes")),
    ("L2, to blocks", ("counts", "block_bytes")),
    ("requested by warps", ("counts", "asked_bytes")),
    ("shared memory", ("counts", "shared_bytes")),
)


def value(data: dict, path: tuple[str, ...]):
    found: dict | None = data
    for name in path:
        found = None if found is None else found.get(name)
    return found


def shared_by(runs: tuple[dict, dict], path: tuple[str, ...]) -> str:
    """A word of both profiles, if it is the same."""
    first, second = (value(data, path) for data in runs)
    return first if first == second else ""


def compared(first: dict, second: dict, names: tuple[str, str]) -> Section:
    """Build the section that shows two profiles side by side. names: for the captions."""
    runs = (first, second)
    labels = tuple(f"{number}: {name}" for number, name in enumerate(names, 1))
    notes = tuple(
        f"{number}: {data['kernel']}, m={data['problem']['m']} n={data['problem']['n']}"
        f" k={data['problem']['k']}, {data['time']['source']}, {data['device']['name']}"
        for number, data in ((1, first), (2, second))
    )
    return Section(
        "compare",
        "Two runs",
        notes,
        (
            *pictures(runs, labels),
            Table(("", *labels, "2 : 1"), figures(runs), title="Figures"),
            Table(("", *labels, "2 - 1"), times(runs), title="Where the time goes, us"),
        ),
    )


def pictures(runs: tuple[dict, dict], labels: tuple[str, ...]) -> tuple:
    timed = shared_by(runs, ("time", "source"))
    used = [verdict.shares(data) for data in runs]
    return (
        Bars(
            tuple(
                Bar(label, data["time"]["us"], f"{data['time']['us']:.2f} us", label)
                for label, data in zip(labels, runs)
            ),
            "us",
            title="A launch",
            source=timed,
        ),
        Bars(
            tuple(
                Bar(f"{name_of(name)}, {number}", us, f"{us:.2f} us", label)
                for name in parts_of(runs, DRAWN)
                for number, (label, data) in enumerate(zip(labels, runs), 1)
                for us in (data["parts"]["us"].get(name, 0.0),)
            ),
            "us",
            title="Where the time goes",
            source=shared_by(runs, ("parts", "source")),
            note=(
                f"Of an average warp. Parts below {DRAWN:.0%} of the longer launch are in the table"
                " alone."
            ),
        ),
        Bars(
            tuple(
                Bar(f"{name}, {number}", found[name], f"{found[name]:.0%}", label, 1.0)
                for name in dict.fromkeys(name for found in used for name in found)
                for number, (label, found) in enumerate(zip(labels, used), 1)
                if name in found
            ),
            title="Share of each ceiling",
            source=timed,
        ),
        Bars(
            tuple(
                Bar(f"{name}, {number}", value(data, path) or 0, f"{value(data, path):,}", label)
                for name, path in MOVED
                for number, (label, data) in enumerate(zip(labels, runs), 1)
                if value(data, path) is not None
            ),
            "bytes",
            title="Bytes at each level",
            source="counted",
        ),
        *roofs(runs, labels),
        *warps(runs, labels),
    )


def roofs(runs: tuple[dict, dict], labels: tuple[str, ...]) -> tuple[Roofline, ...]:
    """Both under one roof, if they have the same."""
    ceilings = [data["ceilings"] for data in runs]
    first = ceilings[0]
    if first != ceilings[1] or not (first["read_bytes"] and first["matrix_flops"]):
        return ()
    return (
        Roofline(
            (Ceiling(f"reads {first['read_bytes'] / 1e12:.2f} TB/s", first["read_bytes"]),),
            (Ceiling(f"{first['matrix_flops'] / 1e12:.0f} TFLOP/s", first["matrix_flops"]),),
            tuple(
                Point(label, data["rates"]["intensity"], data["rates"]["flops_per_s"], label)
                for label, data in zip(labels, runs)
            ),
            title="Roofline",
            source=first["source"],
        ),
    )


def warps(runs: tuple[dict, dict], labels: tuple[str, ...]) -> tuple[Timeline, ...]:
    """The busiest warp of each on one axis, if both were recorded in the same unit."""
    unit, source = (shared_by(runs, ("lanes", key)) for key in ("unit", "source"))
    lanes = tuple(
        Lane(
            label,
            tuple(
                Span(start, end, name_of(name), name_of(name))
                for start, end, name in max(
                    data["lanes"]["warps"], key=lambda lane: lane["totals"].get("multiply", 0.0)
                )["spans"]
            ),
        )
        for label, data in zip(labels, runs)
        if data["lanes"]["warps"]
    )
    if not unit or len(lanes) < 2:
        return ()
    return (Timeline(lanes, unit, title="A warp of each", source=source),)


def parts_of(runs: tuple[dict, dict], least: float = 0.0) -> list[str]:
    """The parts of both, what takes longest first; ``least``: the share of the longer launch that
    one of the two must have."""
    both = [data["parts"]["us"] for data in runs]
    longest = {
        name: max(found.get(name, 0.0) for found in both) for found in both for name in found
    }
    whole = max(sum(found.values()) for found in both)
    return sorted(
        (name for name, us in longest.items() if us >= least * whole),
        key=lambda name: (-longest[name], name),
    )


def figures(runs: tuple[dict, dict]) -> tuple:
    rows = []
    for label, path, form in FIGURES:
        a, b = (value(data, path) for data in runs)
        ratio = "" if not a or b is None else f"{b / a:.3f}"
        rows.append(
            (
                label,
                "" if a is None else form.format(a),
                "" if b is None else form.format(b),
                Cell(ratio, tone="dim" if ratio == "1.000" else "hot" if ratio else ""),
            )
        )
    return tuple(rows)


def times(runs: tuple[dict, dict]) -> tuple:
    first, second = (data["parts"]["us"] for data in runs)
    return tuple(
        (
            Cell(title_of(name).split(":")[0], title_of(name).split(":")[0]),
            f"{first.get(name, 0):.2f}",
            f"{second.get(name, 0):.2f}",
            f"{second.get(name, 0) - first.get(name, 0):+.2f}",
        )
        for name in parts_of(runs)
    )

"""The section of hardware counters: the commands of NVIDIA's profilers for this product, and their
figures beside this profile's where their reports were read (``--ncu``, ``--nsys``)."""

from __future__ import annotations

from numba_marlin.profile.sources import nsight
from numba_marlin.views import Cell, Facts, Section, Table, Text
from numba_marlin.views.page import Part

KEY, TITLE = "counters", "Hardware counters"


def section(data: dict) -> Section:
    parts: list[Part] = []
    found = data.get("ncu")
    if found:
        parts.append(beside(data, found))
    if data.get("nsys"):
        parts.append(launches(data["nsys"], data["time"]["us"]))
    for what, command in nsight.commands(data):
        parts += [Text(f"{what}:"), Text(command, "code")]
    if data.get("tools"):
        rows = tuple((each["name"], each["text"]) for each in data["tools"])
        parts.append(Facts(rows, title="On this computer"))
    note = (
        "Cache hits, the use of each tensor core and stalls by cause are in counters of the"
        " hardware, which NVIDIA's profilers read. Their commands for this product:"
    )
    return Section(KEY, TITLE, (note,), tuple(parts))


def beside(data: dict, found: dict[str, float]) -> Table:
    rows = []
    for metric in nsight.METRICS:
        if metric.name not in found:
            continue
        ours = value_at(data, metric.ours)
        theirs = found[metric.name]
        same = None if ours is None else ours * metric.times
        rows.append(
            (
                metric.title,
                shown(metric, theirs),
                "" if same is None else shown(metric, same),
                "" if not same else Cell(f"{theirs / same:.3f}"),
                Cell(metric.name, tone="dim"),
            )
        )
    return Table(
        ("", "ncu", "this profile", "ncu : this", "metric"),
        tuple(rows),
        title="Nsight Compute's counters",
        source="measured",
        note=(
            "ncu runs a launch alone, again and again, with cold caches: its time is not that of a"
            " launch in a sequence. Its instructions are of machine code, those of this profile of"
            " PTX."
        ),
    )


def launches(found: dict[str, float], us: float) -> Facts:
    return Facts(
        (
            ("launches", f"{found['instances']:.0f}"),
            ("median", f"{found['us']:.2f} us; here {us:.2f} us"),
            ("from, to", f"{found['least_us']:.2f} us to {found['most_us']:.2f} us"),
        ),
        title="Nsight Systems' launches",
        source="measured",
    )


def value_at(data: dict, path: tuple[str, ...]) -> float | None:
    value = data if path else None
    for name in path:
        value = None if value is None else value.get(name)
    return value


def shown(metric: nsight.Metric, value: float) -> str:
    if metric.name.startswith("gpu__time"):
        return f"{1e6 * value:.2f} us"
    if "pct" in metric.name:
        return f"{value:.1f}%"
    return f"{value:,.2f}" if metric.name.endswith("ratio") else f"{value:,.0f}"

"""The section of a profile that shows advice that was tried: neighbouring configurations, timed in
the same rounds as the launch's own, or counted on the PTX machine (``sources.neighbours``)."""

from __future__ import annotations

from numba_marlin.views import MEASURED, Bar, Bars, Cell, Section, Table, Text
from numba_marlin.views.scales import engineering

KEY, TITLE = "tried", "Neighbouring configurations"
OWN = "as it is"
TONES = {"faster": "good", "slower": "dim", "ambiguous": "", "same": "", "": "hot"}
COUNTS = (
    ("instructions", "warp instr."),
    ("asked_bytes", "bytes requested"),
    ("wavefronts", "wavefronts"),
    ("flops", "tensor ops"),
    ("registers", "registers"),
    ("warps_per_sm", "warps per SM"),
)


def section(data: dict) -> Section:
    found = data.get("tried")
    if not found:
        return Section(
            KEY,
            TITLE,
            (
                (
                    "Nothing was tried. `numba-marlin profile --try` times configurations one field"
                    " away from this one, on a GPU; `--try counted` counts them on the PTX machine."
                ),
            ),
        )
    make = timed if found["source"] == MEASURED else counted
    dropped = tuple(
        Text(f"{each['change'] or OWN}: not tried, {each['why']}", "warning")
        for each in found["dropped"]
    )
    return Section(KEY, TITLE, *make(found, dropped))


def timed(found: dict, dropped: tuple) -> tuple:
    rows = found["rows"]
    fastest = sorted(rows, key=lambda row: row["us"])
    bars = tuple(
        Bar(
            row["change"] or OWN,
            row["us"],
            f"{row['us']:.2f} us" + (f", {row['change_by']:+.1%}" if row["change"] else ""),
            row["verdict"] or OWN,
        )
        for row in fastest
    )
    table = tuple(
        (
            Cell(row["change"] or OWN, tone="" if row["change"] else "hot"),
            f"{row['us']:.2f}",
            f"{row['us_spread'][0]:.2f} to {row['us_spread'][-1]:.2f}",
            f"{row['change_by']:+.1%}" if row["change"] else "",
            Cell(row["verdict"], tone=TONES[row["verdict"]]),
            "" if row["registers"] is None else str(row["registers"]),
        )
        for row in fastest
    )
    notes = (
        f"Each differs from the launch's configuration in one field, and was timed on"
        f" {found['device']} in the same rounds, after its result had been checked. Quartiles that"
        " overlap decide nothing: ambiguous.",
    )
    return notes, (
        Bars(bars, "us", title="What each change would bring", source=MEASURED),
        Table(
            ("change", "us", "quartiles", "by", "verdict", "registers"),
            table,
            title="Timed",
            source=MEASURED,
        ),
        *dropped,
    )


def counted(found: dict, dropped: tuple) -> tuple:
    rows = found["rows"]
    own = next((row for row in rows if not row["change"]), None)

    def cell(row: dict, name: str) -> str | Cell:
        value = row[name]
        if value is None:
            return ""
        said = engineering(value).strip()
        if own is None or row is own or not own[name]:
            return said
        by = value / own[name] - 1
        return Cell(f"{said}, {by:+.0%}", tone="hot") if by else said

    table = tuple(
        (
            Cell(row["change"] or OWN, tone="" if row["change"] else "hot"),
            *(cell(row, name) for name, _ in COUNTS),
            "" if row["predicted_us"] is None else f"{row['predicted_us']:.2f}",
        )
        for row in rows
    )
    notes = (
        "Each differs from the launch's configuration in one field, and ran on the PTX machine."
        " Counts say what a change asks of the device, not how long it takes: that needs a GPU.",
    )
    figure = Table(
        ("change", *(head for _, head in COUNTS), "predicted us"),
        table,
        title="Counted",
        source="counted",
        note=(
            "Of the whole launch. Warps per SM: that the grid brings and an SM holds at a time."
            f" The last column is modelled, for {found['device']}."
        ),
    )
    return notes, (figure, *dropped)

"""The page of a profile (``profile.build``): its sections, in which every figure names its source.
The page shows only what the profile contains."""

from __future__ import annotations

from numba_marlin.profile.pages import counters_view, device_page, tried_view
from numba_marlin.profile.pages.memory_views import memory, transactions
from numba_marlin.profile.pages.operand_views import packing, tensor
from numba_marlin.profile.pages.summary_view import summary
from numba_marlin.profile.pages.time_views import timeline, warp
from numba_marlin.profile.sources.device_state import State
from numba_marlin.views import (
    Bar,
    Bars,
    Cell,
    Facts,
    Grid,
    Lines,
    Page,
    Section,
    Series,
    Table,
)

SMS_A_ROW = 12


def page(data: dict) -> Page:
    problem, device = data["problem"], data["device"]
    size = f"m={problem['m']} n={problem['n']} k={problem['k']}, " + (
        f"{problem['format']} times {problem['format']}"
        if data.get("kind") == "operands"
        else f"groups of {problem['group_size']}"
    )
    if data.get("kind") == "experts":
        size += f", each token to {problem['top_k']} of {problem['experts']} experts"
    if problem.get("activations"):
        size += f", x in {problem['activations']}"
    where = (
        f"measured on {device['name']}"
        if data["measured"]
        else f"counted on the PTX machine, modelled for {device['name']}"
    )
    sections = tuple(make(data) for make in SECTIONS.values())
    return Page(f"Profile of {data['kernel']}", sections, f"{size}; {where}")


def launch(data: dict) -> Section:
    shape, found, limits = data["launch"], data["occupancy"], data["limits"]
    rows = (
        (
            "grid",
            f"{' x '.join(map(str, shape['grid']))}: {shape['blocks']} blocks"
            + (f" in clusters of {shape['cluster']}" if shape["cluster"] > 1 else ""),
        ),
        ("block", f"{shape['threads']} threads, {-(-shape['threads'] // 32)} warps"),
        ("threads in all", f"{shape['blocks'] * shape['threads']:,}"),
        (
            "shared memory",
            (
                f"{shape['shared_bytes'] / 1024:g} KiB per block, of"
                f" {limits['shared_bytes'] / 1024:g} KiB per SM"
            ),
        ),
        (
            "registers",
            (
                "unknown (no assembler)"
                if shape["registers"] is None
                else (
                    f"{shape['registers']} per thread at compile time, {shape['spill_bytes']} bytes"
                    " spilled"
                )
            ),
        ),
        ("programmatic dependent launch", "yes" if shape["dependent"] else "no"),
        ("configuration", ", ".join(f"{name}={value}" for name, value in data["config"].items())),
    )
    bars = (
        Bar(
            "theoretical",
            found["share"],
            f"{found['share']:.0%}: {found['warps']} of {limits['warps']} warps, {found['blocks']}"
            f" block(s), limited by {found['limited_by']}",
            "",
            1.0,
        ),
        Bar(
            "achieved",
            found["achieved"],
            f"{found['achieved']:.0%}: {found['achieved_warps']:.1f} warps on average"
            f" ({found['achieved_source']})",
            "",
            1.0,
        ),
    )
    each = Table(
        ("limit", "blocks per SM"),
        tuple(
            (Cell(name, tone="hot" if name == found["limited_by"] else ""), str(count))
            for name, count in found["each"].items()
        ),
        title="Blocks that each limit allows",
        source=limits["source"],
    )
    return Section(
        "launch",
        "Launch configuration",
        (),
        (
            Facts(rows, title="Launch"),
            Bars(
                bars,
                title="Occupancy",
                source=found["achieved_source"],
                note=(
                    "Theoretical occupancy follows from the registers, shared memory and warps of a"
                    " block. Achieved occupancy is the average number of warps on an SM during the"
                    " launch, relative to the most it can hold."
                ),
            ),
            each,
        ),
    )


def blocks(data: dict) -> Section:
    placement = data["placement"]
    known = {row["sm"]: row for row in placement["rows"]}
    rows, labels = [], []
    for first in range(0, placement["sms"], SMS_A_ROW):
        cells = []
        for sm in range(first, min(first + SMS_A_ROW, placement["sms"])):
            row = known.get(sm)
            cells.append(
                Cell("-", tone="dim", tip=f"SM {sm}: idle") if row is None else cell_of(row)
            )
        rows.append(tuple(cells + [Cell("")] * (SMS_A_ROW - len(cells))))
        labels.append(f"SM {first}")
    idle = placement["sms"] - len(known)
    most = max((len(row["blocks"]) for row in placement["rows"]), default=0)
    note = (
        f"{len(known)} SMs have blocks, {idle} are idle. {placement['at_once']} block(s) fit on an"
        f" SM at once, and the SM with the most work runs {most} in total. A cell shows the first"
        " block of an SM and the number of blocks that follow."
    )
    if placement["source"] == "modelled":
        note += " Without a GPU, blocks are assigned in turn; a GPU may assign them differently."
    figure = Grid(
        tuple(rows),
        tuple(labels),
        tuple(f"+{column}" for column in range(SMS_A_ROW)),
        "",
        title="Blocks on SMs",
        source=placement["source"],
        note=note,
    )
    return Section("blocks", "Blocks on SMs", (), (figure, *launched_and_done(data)))


def launched_and_done(data: dict) -> tuple[Lines, ...]:
    """Draw how many blocks have started and how many are done; nothing for profiles of earlier
    versions."""
    found = data.get("progress")
    if not found:
        return ()
    part = "" if data["counts"]["factor"] == 1 or found["unit"] == "us" else " of the part that ran"
    return (
        Lines(
            tuple(
                Series(name, tuple((x, y) for x, y in found[key]))
                for name, key in (("launched", "started"), ("done", "done"))
            ),
            found["unit"],
            "blocks",
            found["blocks"],
            title=f"Blocks launched and done, of {found['blocks']}{part}",
            source=found["source"],
            note="The distance between the curves is the number of blocks on the device.",
        ),
    )


def cell_of(row: dict) -> Cell:
    numbers = row["blocks"]
    more = f" +{len(numbers) - 1}" if len(numbers) > 1 else ""
    warps = f"; {row['warps']:g} warps on average" if "warps" in row else ""
    return Cell(
        f"B{numbers[0]}{more}",
        "",
        "",
        f"SM {row['sm']}: blocks"
        f" {', '.join(map(str, numbers[:40]))}{' ...' if len(numbers) > 40 else ''}{warps}",
    )


def state(data: dict) -> Section:
    found = data["state"]
    if "samples" not in found:
        return Section(
            "device",
            "Live device state",
            (),
            (Facts((("not known", found.get("missing", "not asked for")),), title="State"),),
        )
    states = [
        State(
            each["seconds"],
            {
                name: value
                for name, value in each.items()
                if name not in ("seconds", "throttle", "processes")
            },
            tuple(each["throttle"]),
            {int(pid): used for pid, used in each["processes"].items()},
        )
        for each in found["samples"]
    ]
    section = device_page.section(data["device"]["name"], states, found["missing"])
    return Section(
        "device",
        "Live device state",
        ("Sampled while the plain kernel ran repeatedly. `numba-marlin watch` shows this live.",),
        section.parts,
    )


SECTIONS = {
    "summary": summary,
    "launch": launch,
    "blocks": blocks,
    "memory": memory,
    "warp": warp,
    "transactions": transactions,
    "packing": packing,
    "tensor": tensor,
    "timeline": timeline,
    "device": state,
    "tried": tried_view.section,
    "counters": counters_view.section,
}

"""Views of a profile's time: what one warp executes and waits for, and where the time of a launch
goes."""

from __future__ import annotations

from numba_marlin.profile.build import reason_of, title_of
from numba_marlin.profile.lanes import SPANS
from numba_marlin.profile.sources.verdict import is_bound, recorded_words
from numba_marlin.views import Bar, Bars, Cell, Lane, Section, Span, Table, Text, Timeline


def name_of(part: str) -> str:
    return title_of(part).split(":")[0]


def steps_of(lanes: list[dict]) -> str:
    """Return a note for a picture that has fewer spans than there were activities, else ""."""
    most = max(lane["count"] for lane in lanes)
    return (
        f"A warp has up to {most:,} activities, too short to draw. Every step shows one that occurs"
        " in it, chosen so that each activity has its share of the time."
        if most > SPANS
        else ""
    )


def warp(data: dict) -> Section:
    """Build the section of one warp: its activities in time, and why it waited."""
    lanes = data["lanes"]
    chosen = max(lanes["warps"], key=lambda lane: lane["totals"].get("multiply", 0.0), default=None)
    if chosen is None or not chosen["spans"]:
        return Section("warp", "A warp's activity", ("Nothing was recorded.",))
    spans, unit, source, by_name = chosen["spans"], lanes["unit"], lanes["source"], chosen["totals"]
    total = sum(by_name.values()) or 1.0
    rows = tuple(
        (
            f"{start:,.2f}",
            f"{end - start:,.2f}",
            Cell(name_of(name), name_of(name)),
            reason_of(name) or "-",
        )
        for start, end, name in chosen["first"]
    )
    waited = sum(value for name, value in by_name.items() if reason_of(name))
    bars = tuple(
        Bar(
            name_of(name),
            value,
            f"{value / total:.0%}" + (f": {reason_of(name)}" if reason_of(name) else ""),
            name_of(name),
            total,
        )
        for name, value in sorted(by_name.items(), key=lambda item: -item[1])
    )
    notes = [
        f"Block {lanes['block']}, warp {chosen['warp']} of {len(lanes['warps'])} shown"
        + (f", on SM {lanes['sm']}" if source == "measured" else "")
        + f": it waits for {waited / total:.0%} of its time."
    ]
    if source != "measured":
        notes.append(
            "Recorded on the PTX machine, whose clock counts the warp instructions that it has"
            " executed: an order of events, not their duration on a GPU."
        )
    else:
        notes.append(
            "Recorded by the build that records every event, which is slower than the plain kernel"
            " (the section Execution timeline shows by how much)."
        )
    more = (
        f"The first {len(rows)} of {chosen['count']:,} activities."
        if chosen["count"] > len(rows)
        else ""
    )
    return Section(
        "warp",
        "A warp's activity",
        tuple(notes),
        (
            Timeline(
                (
                    Lane(
                        f"warp {chosen['warp']}",
                        tuple(
                            Span(start, end, name_of(name), name_of(name))
                            for start, end, name in spans
                        ),
                    ),
                ),
                unit,
                title="One warp",
                source=source,
                note=steps_of([chosen]),
            ),
            Bars(bars, unit, title="Active and stalled", source=source),
            Table(
                ("from", unit if len(unit) < 4 else "took", "activity", "stalled for"),
                rows,
                title="Activity by activity",
                source=source,
                note=more,
            ),
        ),
    )


def overlapped(lanes: dict) -> tuple[Bars, ...]:
    """Draw how far the activities of a block's warps overlap; nothing for profiles of earlier
    versions."""
    of = lanes.get("overlap")
    if not of or not of["busy"]:
        return ()
    share = of["together"] / of["busy"]
    return (
        Bars(
            (Bar("two kinds at once", share, f"{share:.0%}", "", 1.0),),
            title=f"Sections of block {lanes['block']} that overlap",
            source=lanes["source"],
            note=(
                "Of the time in which a warp of the block does something other than wait, the share"
                " in which its warps are in two sections or more. What the copy engine does"
                " meanwhile is no warp's work and does not count."
                + ("" if lanes["source"] == "measured" else " In the PTX machine's order of warps.")
            ),
        ),
    )


def main_loop(lanes: dict) -> tuple[Bars, ...]:
    """Draw what a block's multiplying warps do in their main loop: from the first of their products
    to the last. Nothing if no warp multiplies twice."""
    totals: dict[str, float] = {}
    for lane in lanes["warps"]:
        products = [span for span in lane["spans"] if span[2] == "multiply"]
        if len(products) < 2:
            continue
        (begin, *_), (_, until, _) = products[0], products[-1]
        for start, end, name in lane["spans"]:
            inside = min(end, until) - max(start, begin)
            if inside > 0:
                totals[name] = totals.get(name, 0.0) + inside
    whole = sum(totals.values())
    if not whole:
        return ()
    return (
        Bars(
            tuple(
                Bar(name_of(name), value, f"{value / whole:.0%}", name_of(name), whole)
                for name, value in sorted(totals.items(), key=lambda item: -item[1])
            ),
            title=f"The main loop of block {lanes['block']}'s warps, from their first product to"
            " their last",
            source=lanes["source"],
            note=(
                "Shares of the time of all warps that multiply, by the build that records every"
                " event."
                if lanes["source"] == "measured"
                else "Shares of the warp instructions of all warps that multiply, and of those that"
                " the machine executed while they waited."
            ),
        ),
    )


def timeline(data: dict) -> Section:
    """Build the section of the launch: the time of an average warp in each section of the kernel,
    and the warps of one block."""
    parts, lanes, time = data["parts"], data["lanes"], data["time"]
    total = sum(parts["us"].values())
    bars = tuple(
        Bar(title_of(name), value, f"{value:.2f} us, {value / total:.0%}", name_of(name), total)
        for name, value in parts["us"].items()
    )
    notes, raw = [], parts.get("raw_us")
    if parts["source"] == "measured":
        alone = time.get("alone_us", time["us"])
        apart = (
            f" of launches that do not overlap ({time['us']:.2f} us from end to end if they do)"
            if abs(alone / time["us"] - 1) > 0.01
            else ""
        )
        notes.append(
            "The time of an average working warp, from the end of the previous launch to the end of"
            f" its own, is {total:.2f} us, {total / alone - 1:+.1%} relative to the plain kernel's"
            f" {alone:.2f} us{apart}. Relative to it, the light build takes"
            f" {time['light_us'] / alone - 1:+.1%} and the build that records every event"
            f" {time['detailed_us'] / alone - 1:+.1%}."
        )
        if raw:
            each = ", ".join(
                f"{name_of(name)} {us / alone - 1:+.1%}" for name, us in time["finer_us"].items()
            )
            finer = f"builds that each measure one kind of wait ({each})" if each else ""
            notes.append(
                "The duration comes from a build that does not read the clock at waits"
                f" ({time['work_us'] / alone - 1:+.1%}), the share of waits from"
                f" {finer or 'the light build'}. The light build alone, which measures all sections"
                f" at once, gives {sum(raw.values()):.2f} us, {sum(raw.values()) / alone - 1:+.1%};"
                " the last table shows it. No build measures the plain kernel itself."
            )
    else:
        if time.get("recorded"):
            notes.append(
                f"The total is {recorded_words(time['recorded'])}; its parts are modelled."
            )
        notes.append(
            "Modelled: the work of each section follows from the PTX machine's counts"
            " (instructions, shared-memory wavefronts, tensor operations); the rest of the"
            " time is waiting."
        )
        if time["model_error"]:
            notes.append(f"Predictions of times: {time['model_error']['text']}.")
        elif is_bound(data):
            notes.append(
                "The model is not fitted to times of this kernel: the total is a lower bound,"
                " because latency is not modelled."
            )
    rows = []
    for name, value in parts["us"].items():
        mine = data["sections"].get(name, {})
        rows.append(
            (
                Cell(name_of(name), name_of(name)),
                f"{value:.2f}",
                f"{mine['instructions']:,}" if mine else "",
                f"{mine['flops']:,}" if mine.get("flops") else "",
                f"{mine['wavefronts']:,}" if mine.get("wavefronts") else "",
                f"{mine['global_bytes']:,}" if mine.get("global_bytes") else "",
            )
        )
    table = Table(
        ("section", "us", "warp instr.", "tensor ops", "wavefronts", "global bytes"),
        tuple(rows),
        title="Time and work",
        note=f"us: {parts['source']}; the others: counted (wavefronts: of shared memory)"
        + (
            ""
            if data["counts"]["factor"] == 1
            else f", on 1/{data['counts']['factor']:g} of the problem, and scaled"
        )
        + ".",
    )
    found = [Bars(bars, "us", title="Where the time goes", source=parts["source"]), table]
    drawn = tuple(
        Lane(
            f"warp {lane['warp']}",
            tuple(
                Span(start, end, name_of(name), name_of(name)) for start, end, name in lane["spans"]
            ),
        )
        for lane in lanes["warps"]
        if lane["spans"]
    )
    if drawn:
        note = (
            steps_of(lanes["warps"])
            if lanes["source"] == "measured"
            else (
                "The PTX machine's clock counts warp instructions: an order of events, not time."
                f" {steps_of(lanes['warps'])}".strip()
            )
        )
        found.append(
            Timeline(
                drawn,
                lanes["unit"],
                title=f"Warps of block {lanes['block']}",
                source=lanes["source"],
                note=note,
            )
        )
        found.extend((*main_loop(lanes), *overlapped(lanes)))
    else:
        found.append(Text("No warp was recorded.", "warning"))
    if raw:
        pairs = [
            (name, parts["us"].get(name, 0.0), raw.get(name, 0.0))
            for name in dict.fromkeys((*parts["us"], *raw))
        ]
        found.append(
            Table(
                ("section", "us", "all at once, us", "difference"),
                tuple(
                    (
                        Cell(name_of(name), name_of(name)),
                        f"{us:.2f}",
                        f"{seen:.2f}",
                        f"{us - seen:+.2f}",
                    )
                    for name, us, seen in pairs
                ),
                title="Compared with one build that measures all sections at once",
                source=parts["source"],
            )
        )
    return Section("timeline", "Execution timeline", tuple(notes), tuple(found))

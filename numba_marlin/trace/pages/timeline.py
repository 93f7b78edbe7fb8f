"""The section of the timeline: the phase of each warp (recorded), and the benefit of the
pipeline (modelled)."""

from __future__ import annotations

import numpy as np

from numba_marlin.counts.instructions import CONVERT, COPY, HALF, LOGIC, SHARED, TENSOR
from numba_marlin.hardware.devices import device as device_named
from numba_marlin.hardware.limits import SM_SCHEDULERS
from numba_marlin.trace import model
from numba_marlin.trace.pages.choice import Choice, order_of, ranges
from numba_marlin.trace.pages.memory import peak_of
from numba_marlin.trace.phases import PHASES, phase_of
from numba_marlin.trace.record import Trace
from numba_marlin.trace.roles import WAITING, activities, roles_of, warps_of_role
from numba_marlin.views import MODELLED, RECORDED, Bar, Bars, Lane, Section, Span, Text, Timeline

KEY, TITLE = "timeline", "Timeline, without and with the pipeline"
COLUMNS = 320  # resolution of a timeline
UNITS = {
    COPY: "asynchronous copies",
    SHARED: "loads of shared memory",
    **dict.fromkeys((LOGIC, HALF, CONVERT), "logic, fp16, conversions"),
    TENSOR: "tensor cores",
}
STARTS = {COPY: "cp.", SHARED: "ld"}  # a policy of the cache is no copy, a store no load
MOST_WARPS, MOST_BLOCKS, MOST_USES = 16, 16, 24


def section(trace: Trace, choice: Choice) -> Section:
    warps = [choice.block * trace.warps + warp for warp in range(min(trace.warps, MOST_WARPS))]
    blocks = [block for block in range(min(trace.blocks, MOST_BLOCKS))]
    parts = [side_by_side(trace, choice.block)] if roles_of(trace) else []
    parts.append(
        phases(
            trace,
            warps,
            [f"warp {warp % trace.warps}" for warp in warps],
            f"The warps of block {choice.block}, in the order in which the machine ran them",
        )
    )
    if len(blocks) > 1:
        first = [block * trace.warps + choice.warp for block in blocks]
        parts.append(
            phases(
                trace,
                first,
                [f"block {block}" for block in blocks],
                f"Warp {choice.warp} of each block",
            )
        )
    parts += [units(trace, choice.block), *modelled(trace, choice)]
    notes = (
        (
            "In one step the PTX machine executes one instruction for all warps that have reached"
            f" it: the durations are not those of a GPU. {order_of(trace)}"
        ),
    )
    return Section(KEY, TITLE, notes, tuple(parts))


def phases(trace: Trace, warps: list[int], labels: list[str], title: str) -> Timeline:
    names = [phase.name for phase in PHASES]
    number = np.array([names.index(phase) for phase in phase_of(trace)])
    steps = [trace.steps_of(warp) for warp in warps]
    return order(
        trace,
        [(label, each, number[trace.step_pc[each]]) for label, each in zip(labels, steps)],
        names,
        title,
        "the phase with most of its instructions",
    )


def side_by_side(trace: Trace, block: int) -> Timeline:
    """Draw a line for each role: what the first warp of the role does, and when it waits."""
    names = [*roles_of(trace), WAITING]
    lines = []
    for index, role in enumerate(roles_of(trace)):
        warps = warps_of_role(trace, block, role)
        if not warps:
            continue
        steps, (told, waits) = (
            trace.steps_of(block * trace.warps + warps[0]),
            activities(trace, block * trace.warps + warps[0]),
        )
        label = f"{role}, warp{'s' * (len(warps) > 1)} {ranges(warps)}"
        lines.append(
            (label, steps[told == index], np.where(waits, len(names) - 1, told)[told == index])
        )
    return order(
        trace,
        lines,
        names,
        f"The roles of block {block}, side by side",
        "work or a wait, whichever has more of the instructions of the role's first warp",
    )


def unit_of(instruction: dict) -> str | None:
    """The unit of an SM that works for an instruction; None for addresses, control and waits."""
    kind, begins = instruction["kind"], STARTS.get(instruction["kind"], "")
    return UNITS.get(kind) if instruction["root"].startswith(begins) else None


def units(trace: Trace, block: int) -> Timeline:
    """Draw a line for each unit: when a warp of the block issued something to it."""
    unit = [unit_of(each) for each in trace.instructions]
    warps = range(block * trace.warps, (block + 1) * trace.warps)
    steps = np.unique(np.concatenate([trace.steps_of(warp) for warp in warps]))
    lines: list[tuple] = []
    for name in dict.fromkeys(UNITS.values()):
        mine = steps[np.array([each == name for each in unit])[trace.step_pc[steps]]]
        if mine.size:
            lines.append((name, mine, np.full(mine.size, len(lines))))
    return order(
        trace,
        lines,
        [name for name, *_ in lines],
        f"The units that the warps of block {block} issue to",
        "whether a warp issued an instruction to the unit; copies and asynchronous products go on"
        " after that",
    )


def order(trace: Trace, lines: list[tuple], names: list[str], title: str, what: str) -> Timeline:
    """Draw lines over the steps of the machine. lines: (label, steps, index into ``names`` of each
    step); what: what a column shows, for the note."""
    columns = min(COLUMNS, trace.steps)
    lanes = []
    for label, steps, number in lines:
        column = steps * columns // trace.steps
        share = np.zeros((columns, len(names)), np.int64)
        np.add.at(share, (column, number), 1)
        most = np.where(share.any(axis=1), share.argmax(axis=1), -1)
        lanes.append(Lane(label, tuple(runs(most, names, trace.steps / columns))))
    return Timeline(
        tuple(lanes),
        "steps of the machine",
        title=title,
        source=RECORDED,
        note=(
            f"Drawn in {columns} columns of {trace.steps / columns:.3g} steps. Each shows {what}."
            " In a gap other warps ran, or the warp waited. --perfetto writes every instruction."
        ),
    )


def runs(most: np.ndarray, names: list[str], width: float):
    """Merge neighbouring columns with the same name into spans. width: steps per column."""
    edges = np.flatnonzero(np.r_[True, most[1:] != most[:-1], True])
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist()):
        if most[start] >= 0:
            name = names[most[start]]
            yield Span(round(start * width, 1), round(stop * width, 1), name, name)


def modelled(trace: Trace, choice: Choice) -> list:
    works = model.works(trace, choice.block)
    device = choice.device or device_named("H200")
    if not works:
        return [
            Text(
                "No fills of a ring of stages were recorded, so nothing overlaps: the kernel loads"
                " and multiplies in turn."
            )
        ]
    peak, bits = peak_of(trace, device)
    if not device.bandwidth_bytes or not peak:
        return [
            Text(
                f"The bandwidth or the peak of {device.name} is not known. For the modelled"
                f" timeline choose a device with a known {bits}-bit peak, such as --device"
                f" {'H200' if bits == 16 else 'B200'}."
            )
        ]
    rates = model.rates(device.bandwidth_bytes, peak, device.sms)
    without, with_it = model.without_pipeline(works, rates), model.with_pipeline(works, rates)
    two = model.double_buffer(works, rates)
    end_without = without[-1].done
    note = (
        f"Rules: a copy lands {model.LATENCY} cycles after its issue, or later if the copies before"
        f" it still take {rates.bytes_per_cycle:.3g} bytes per cycle ({device.name}:"
        f" {device.bandwidth_bytes / 1e12:.2f} TB/s over {device.sms} SMs at"
        f" {model.CLOCK / 1e9:g} GHz); a use takes its recorded warp instructions at"
        f" {SM_SCHEDULERS} per cycle, or its tensor-core operations at {rates.flops_per_cycle:.0f}"
        f" per cycle ({bits}-bit operands). The order of issue is recorded; no copy goes to a stage"
        " that is still in use."
        + (f" Drawn: the first {MOST_USES} of {len(works)} uses." if len(works) > MOST_USES else "")
    )
    figures = []
    for title, uses in (
        ("Without the pipeline: load, then multiply", without),
        ("A plain double buffer: the next stage arrives meanwhile", two),
        ("With the pipeline: copies run ahead", with_it),
    ):
        drawn = uses[:MOST_USES]
        load = Lane(
            "load",
            tuple(
                Span(*interval, f"k{use.tile}", "load")
                for use, interval in zip(drawn, apart(drawn))
            ),
        )
        work = Lane(
            "multiply",
            tuple(Span(use.begun, use.done, f"k{use.tile}", "multiply") for use in drawn),
        )
        figures.append(
            Timeline(
                (load, work),
                "cycles",
                without[:MOST_USES][-1].done,
                title=title,
                source=MODELLED,
                note=note if uses is with_it else "",
            )
        )
    bars = Bars(
        tuple(
            Bar(
                name,
                uses[-1].done,
                f"{uses[-1].done:,.0f} cycles, it multiplies in {busy(uses):.0%}"
                if uses is without
                else f"{uses[-1].done:,.0f} cycles, in {busy(uses):.0%};"
                f" {end_without / uses[-1].done:.2f} times as fast",
                name,
            )
            for name, uses in (("without", without), ("two stages", two), ("with", with_it))
        ),
        title=f"Block {choice.block}, {len(works)} uses of a stage",
        source=MODELLED,
    )
    return [*figures, bars]


def busy(uses: list) -> float:
    """Return the share of the time in which stages are used."""
    return sum(use.done - use.begun for use in uses) / uses[-1].done


def apart(uses: list) -> list[tuple[float, float]]:
    """Return the interval (begin, end) in which each load is drawn. Loads overlap each other; to
    fit on one line, each begins when the one before it has landed."""
    found, last = [], 0.0
    for use in uses:
        found.append((max(use.issued, last), use.landed))
        last = use.landed
    return found

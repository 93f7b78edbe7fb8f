"""The section of the pipeline: the state of each stage of the ring at every moment at which a block
began to use another stage."""

from __future__ import annotations

from numba_marlin.trace.pages import rings
from numba_marlin.trace.pages.choice import Choice, element, order_of, size
from numba_marlin.trace.pages.shared import drawing
from numba_marlin.trace.pages.source import beside
from numba_marlin.trace.record import Trace
from numba_marlin.trace.stages import Fill, fills
from numba_marlin.trace.traffic import copies
from numba_marlin.views import RECORDED, Cell, Grid, Lane, Section, Span, Step, Table, Timeline

KEY, TITLE = "pipeline", "The pipeline, stage by stage"
EMPTY, LOADING, READY, IN_USE, ZEROS = "empty", "loading", "ready", "in use", "zeros"
MOST = 24  # uses that are shown


def section(trace: Trace, choice: Choice) -> Section:
    found = fills(trace, choice.block)
    if not found:
        return Section(
            KEY,
            TITLE,
            (
                (
                    "This kernel has no ring of stages: a block loads a tile, uses it, and only"
                    " then loads the next one. Barriers separate loading and use."
                ),
            ),
            drawing(trace, choice),
        )
    uses = sorted(
        (fill for fill in found if fill.read >= 0 and not fill.zeros), key=lambda fill: fill.read
    )
    count = len(trace.about["stages"])
    states = [[state(found, stage, use.read) for stage in range(count)] for use in uses[:MOST]]
    grid = Grid(
        tuple(tuple(state_cell(*each) for each in row) for row in states),
        tuple(f"use {number}" for number in range(len(states))),
        tuple(f"stage {stage}" for stage in range(count)),
        title=f"State of each stage when block {choice.block} begins a use"
        + (f", the first {MOST} of {len(uses)}" if len(uses) > MOST else ""),
        source=RECORDED,
        note=(
            f"k: where the {'operands' if trace.block_scaled else 'weights'} in the stage begin. A"
            f" stage is loading from its first copy until its data land. {order_of(trace)}"
        ),
    )
    steps = tuple(
        one_use(trace, number, use, row)
        for number, (use, row) in enumerate(zip(uses[:MOST], states))
    )
    zeros = sum(fill.zeros for fill in found)
    notes = (
        f"{count} stages; block {choice.block} filled them {times(len(found) - zeros)} with data"
        + (
            f" and {times(zeros)} with zeros (copies issued past the end of its share of k, so that"
            " all rounds of the main loop execute the same instructions)."
            if zeros
            else "."
        ),
    )
    drawn = [fill for fill in found if len(uses) <= MOST or fill.issued < uses[MOST].read]
    parts = (
        grid,
        timeline(drawn, count),
        *drawing(trace, choice),
        places(trace, choice),
        *rings.parts(trace, choice),
    )
    return Section(KEY, TITLE, notes, parts, steps)


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def places(trace: Trace, choice: Choice) -> Table:
    """List where the parts of each stage are in shared memory, and which operands were copied
    there."""
    base, rows = trace.header["launch"]["shared_base"], []
    for stage, parts in enumerate(trace.about["stages"]):
        for start, stop in parts:
            mine = [
                copy
                for copy in copies(trace, choice.block)
                if start <= copy.target < stop and copy.source >= 0
            ]
            names = ", ".join(sorted({element(trace, copy.source)[0] for copy in mine})) or "-"
            rows.append(
                (
                    Cell(f"stage {stage}"),
                    f"{start - base:,}",
                    f"{stop - base:,}",
                    size(stop - start),
                    names,
                )
            )
    return Table(
        ("stage", "from byte", "to byte", "size", "holds"),
        tuple(rows),
        title="Where the stages are in shared memory",
        source=RECORDED,
    )


def state(found: list[Fill], stage: int, now: int) -> tuple[str, str, str]:
    """Return the state of a stage at step ``now``: (text, kind, tip)."""
    current = [fill for fill in found if fill.stage == stage and fill.issued <= now]
    if not current:
        return EMPTY, EMPTY, "no copy was issued yet"
    fill = current[-1]
    name = "zeros" if fill.zeros else f"k{fill.tile}" if fill.tile is not None else "x"
    if fill.zeros:
        return ZEROS, ZEROS, f"zeros, issued at step {fill.issued}"
    if fill.landed < 0 or now < fill.landed:
        return (
            f"load {name}",
            LOADING,
            f"issued at step {fill.issued}"
            + (f", lands at {fill.landed}" if fill.landed >= 0 else ", no warp waited for it"),
        )
    if fill.read < 0 or now < fill.read:
        return f"{name} ready", READY, f"landed at step {fill.landed}, used from step {fill.read}"
    if now <= fill.read_last:
        return f"use {name}", IN_USE, f"read from step {fill.read} to {fill.read_last}"
    return f"{name} used", EMPTY, f"read for the last time at step {fill.read_last}"


def state_cell(text: str, kind: str, tip: str) -> Cell:
    return Cell(
        text, "" if kind == EMPTY else kind, {IN_USE: "hot", EMPTY: "dim"}.get(kind, ""), tip
    )


def one_use(trace: Trace, number: int, use: Fill, row: list) -> Step:
    cells = tuple(
        (f"stage {stage}", state_cell(text, kind, ""), tip)
        for stage, (text, kind, tip) in enumerate(row)
    )
    return Step(
        f"use {number}: stage {use.stage}, k from {use.tile}, {size(use.nbytes)}",
        (
            Table(
                ("stage", "state", "since"),
                cells,
                title=f"At step {use.read}",
                source=RECORDED,
            ),
            *beside(trace, int(trace.step_pc[use.read])),
        ),
    )


def timeline(found: list[Fill], count: int) -> Timeline:
    lanes = []
    for stage in range(count):
        spans = []
        mine = [fill for fill in found if fill.stage == stage]
        for position, fill in enumerate(mine):
            name = "zeros" if fill.zeros else f"k{fill.tile}"
            end = (
                mine[position + 1].issued
                if position + 1 < len(mine)
                else max(fill.read_last, fill.landed, fill.issued_last) + 1
            )
            landed = min(fill.landed if fill.landed >= 0 else end, end)
            spans.append(Span(fill.issued, landed, name, ZEROS if fill.zeros else LOADING))
            if fill.read >= 0:
                if fill.read > landed:
                    spans.append(Span(landed, fill.read, name, READY))
                spans.append(Span(fill.read, max(fill.read_last, fill.read) + 1, name, IN_USE))
        lanes.append(Lane(f"stage {stage}", tuple(span for span in spans if span.end > span.start)))
    return Timeline(
        tuple(lanes),
        "steps of the machine",
        title="The ring over time",
        source=RECORDED,
        note=f"At most {MOST} uses are drawn.",
    )

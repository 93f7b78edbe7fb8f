"""The section of the six phases and of the kernel's verbs (device functions): the flow of a product
from phase to phase, the work of each verb, summed over all blocks, and the order in which a warp
went through them."""

from __future__ import annotations

from itertools import groupby

from numba_marlin.trace.pages.choice import Choice, size
from numba_marlin.trace.phases import PHASES, phase_of, phase_of_verb
from numba_marlin.trace.record import Trace
from numba_marlin.trace.stages import fills
from numba_marlin.views import (
    COUNTED,
    RECORDED,
    Bar,
    Bars,
    Cell,
    Level,
    Levels,
    Section,
    Table,
    Text,
)

BARS = 20  # verbs
LONGEST_CYCLE, MOST_WORDS = 12, 40  # of the way: phases that repeat, pieces that are shown


def section(trace: Trace, choice: Choice) -> Section:
    phases = trace.counts["phases"]
    of_verb = phase_of_verb(trace)
    most = sorted(phases, key=lambda each: -each["tally"]["executed"])
    bars = Bars(
        tuple(
            Bar(each["name"], each["tally"]["executed"], kind=of_verb.get(each["name"], ""))
            for each in most[:BARS]
        ),
        title="Warp instructions of each verb, all blocks, in the colour of its phase",
        source=COUNTED,
    )
    rows = tuple(row(each, of_verb) for each in (*phases, trace.counts["total"]))
    heads = ("verb", "phase", "instr.", "read", "coal.", "written", "shared", "confl.", "tensor op")
    keep = [
        i
        for i, _ in enumerate(heads)
        if i == 0 or any(getattr(each[i], "text", each[i]) for each in rows)
    ]
    table = Table(
        tuple(heads[i] for i in keep),
        tuple(tuple(each[i] for i in keep) for each in rows),
        title="What each verb moved and did",
        source=COUNTED,
        note=(
            "read, written: bytes of global memory that lanes request; coal.: sectors of 32 bytes"
            " that those bytes need, in percent of the sectors touched; shared: bytes that lanes"
            " read and write; confl.: extra wavefronts due to bank conflicts; tensor op:"
            " multiplications and additions."
        ),
    )
    return Section(
        "phases",
        "Six phases, and the kernel's verbs",
        (
            (
                "Verbs are the device functions of the kernel's source, found through the"
                " compiler's line information. They fall into six phases, of which those are drawn"
                " that this kernel has. A tensor-core instruction multiplies, whatever verb it is"
                " in."
            ),
        ),
        (flow(trace, overlaps(trace, choice)), way(trace, choice), bars, table),
    )


def overlaps(trace: Trace, choice: Choice) -> bool:
    """Whether the block has stages that are filled while another one is multiplied."""
    return trace.block_scaled or bool(fills(trace, choice.block))


def flow(trace: Trace, overlap: bool) -> Levels:
    """Draw the phases as boxes from top to bottom, with what each hands to the next. overlap:
    whether copies are on their way while a block multiplies."""
    names, of_verb = phase_of(trace), phase_of_verb(trace)
    executed = dict.fromkeys((phase.name for phase in PHASES), 0)
    flops = 0
    for each in trace.counts["instructions"]:
        executed[names[each["pc"]]] += each["tally"]["executed"]
        flops += each["tally"]["flops"]
    total = max(sum(executed.values()), 1)
    there = [phase for phase in PHASES if executed[phase.name]]
    boxes = []
    for number, phase in enumerate(there, 1):
        verbs = [verb for verb, its in of_verb.items() if its == phase.name]
        rows: list[tuple[str, ...]] = [("what", phase.what)]
        if verbs:
            rows.append(("verbs", ", ".join(verbs)))
        if phase.name == "multiply":
            rows.append(("operations", f"{flops:,}", COUNTED))
        boxes.append(
            Level(
                f"{number} {phase.name}",
                f"{executed[phase.name]:,} warp instructions, {executed[phase.name] / total:.0%}",
                tuple(rows),
                phase.to if number < len(there) else "",
                "",
                COUNTED,
                phase.name,
            )
        )
    return Levels(
        tuple(boxes),
        title="The product as a flow",
        note=(
            "Copying, unpacking and multiplying repeat for every tile along k, and overlap: while"
            " one tile is multiplied, the copies of later ones are on their way (the pipeline's"
            " section shows how many)."
            if overlap
            else "Loading, unpacking and multiplying repeat along k, one after the other: this"
            " kernel has no ring of stages, so nothing is on its way while a block multiplies."
        ),
    )


def row(phase: dict, of_verb: dict[str, str]) -> tuple:
    tally = phase["tally"]
    reads, writes, shared = tally["reads"], tally["writes"], tally["shared"]
    its = of_verb.get(phase["name"], "")
    return (
        Cell(phase["name"], its),
        its,
        f"{tally['executed']:,}",
        size(reads["bytes"]) if reads["bytes"] else "",
        f"{reads['coalescing']:.0f}%" if reads["coalescing"] is not None else "",
        size(writes["bytes"]) if writes["bytes"] else "",
        size(shared["bytes"]) if shared["bytes"] else "",
        f"{shared['conflicts']:,}" if shared["requests"] else "",
        f"{tally['flops']:,}" if tally["flops"] else "",
    )


def way(trace: Trace, choice: Choice) -> Text:
    """Write the phases in the order in which the chosen warp went through them; what repeats is
    written once."""
    names = phase_of(trace)
    pcs = trace.step_pc[trace.steps_of(choice.grid_warp(trace))].tolist()
    visits = [name for name, _ in groupby(names[pc] for pc in pcs)]
    said = folded(visits)
    more = f" > ... {len(said) - MOST_WORDS} more" if len(said) > MOST_WORDS else ""
    shown = " > ".join(said[:MOST_WORDS])
    return Text(f"The way of {choice.words} through them ({RECORDED}): {shown}{more}")


def folded(visits: list[str]) -> list[str]:
    """What repeats, once, with the number of times: a b a b c -> 2 x (a > b), c."""
    found, at = [], 0
    while at < len(visits):
        best, times = 1, 1
        for length in range(1, min(LONGEST_CYCLE, (len(visits) - at) // 2) + 1):
            cycle, count = visits[at : at + length], 1
            while visits[at + count * length : at + (count + 1) * length] == cycle:
                count += 1
            if count > 1 and count * length > best * times:
                best, times = length, count
        said = " > ".join(visits[at : at + best])
        found.append(f"{times} x ({said})" if times > 1 else said)
        at += best * times
    return found

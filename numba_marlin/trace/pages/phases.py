"""The section of the kernel's verbs (device functions): the work of each verb, summed over all
blocks, and the order in which a warp executed them."""

from __future__ import annotations

from itertools import groupby

from numba_marlin.trace.pages.choice import Choice, size
from numba_marlin.trace.record import Trace
from numba_marlin.views import COUNTED, RECORDED, Bar, Bars, Cell, Section, Table, Text

SHOWN, BARS = 60, 20  # visits, verbs


def section(trace: Trace, choice: Choice) -> Section:
    phases = trace.counts["phases"]
    most = sorted(phases, key=lambda each: -each["tally"]["executed"])
    bars = Bars(
        tuple(
            Bar(each["name"], each["tally"]["executed"], kind=each["name"]) for each in most[:BARS]
        ),
        title="Warp instructions of each verb, all blocks",
        source=COUNTED,
    )
    rows = tuple(row(each) for each in (*phases, trace.counts["total"]))
    heads = ("verb", "instr.", "read", "coal.", "written", "shared", "confl.", "tensor op")
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
        "The kernel's verbs",
        (
            (
                "Phases are the device functions of the kernel's source, found through the"
                " compiler's line information."
            ),
        ),
        (bars, table, *path(trace, choice)),
    )


def row(phase: dict) -> tuple:
    tally = phase["tally"]
    reads, writes, shared = tally["reads"], tally["writes"], tally["shared"]
    return (
        Cell(phase["name"], phase["name"] if phase["name"] != "total" else ""),
        f"{tally['executed']:,}",
        size(reads["bytes"]) if reads["bytes"] else "",
        f"{reads['coalescing']:.0f}%" if reads["coalescing"] is not None else "",
        size(writes["bytes"]) if writes["bytes"] else "",
        size(shared["bytes"]) if shared["bytes"] else "",
        f"{shared['conflicts']:,}" if shared["requests"] else "",
        f"{tally['flops']:,}" if tally["flops"] else "",
    )


def path(trace: Trace, choice: Choice) -> tuple[Text, ...]:
    """List the verbs in the order in which the chosen warp executed them, with the number of
    instructions of each visit."""
    steps = trace.steps_of(choice.grid_warp(trace))
    visits = [
        (name, len(list(group)))
        for name, group in groupby(
            trace.instructions[pc]["phase"] for pc in trace.step_pc[steps].tolist()
        )
    ]
    said = " > ".join(f"{name} {count}" for name, count in visits[:SHOWN]) + (
        f" > ... {len(visits) - SHOWN:,} more visits" if len(visits) > SHOWN else ""
    )
    return (
        Text(
            f"The order in which {choice.words} executed them ({RECORDED}; each with its number of"
            f" instructions): {said}"
        ),
    )

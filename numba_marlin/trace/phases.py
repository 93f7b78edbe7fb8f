"""The six phases of a product, of which every kernel's run consists: each instruction belongs to
one.

The kernel declares which of its device functions belong to which section of time
(``kernels.language.about``), and the trace keeps that: about["sections"], {section: verbs}. A
tensor-core instruction multiplies, whatever verb it is of. An instruction of a verb that is not
declared, such as the kernel's own loop, belongs to what it does (a copy, a load of shared memory, a
store) or else to the phase of the instruction before it in the text.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.counts.instructions import ATOMIC, COPY, GLOBAL, SHARED, TENSOR
from numba_marlin.trace.record import Trace, remembered


@dataclass(frozen=True)
class Phase:
    """``name``, also of its colour; ``what`` happens in it; ``sections`` of a kernel's declaration
    that belong to it; ``to``: what it hands to the next."""

    name: str
    what: str
    sections: tuple[str, ...]
    to: str = ""


PHASES = (
    Phase(
        "set up",
        "a block finds its share of the weights and its addresses",
        ("setup",),
        "addresses",
    ),
    Phase(
        "copy",
        "tiles of activations, packed weights and scales go from global to shared memory",
        ("copy",),
        "tiles in a stage of shared memory",
    ),
    Phase(
        "unpack",
        "lanes load fragments and words, and turn codes into numbers in registers",
        ("multiply",),
        "fragments in registers",
    ),
    Phase("multiply", "tensor cores multiply fragments and add to the sums", (), "sums"),
    Phase(
        "add up",
        "partial sums of warps, and of blocks that share a tile, are added",
        ("reduce_block", "reduce_grid"),
        "whole sums",
    ),
    Phase("write", "sums become the result's type and go to global memory", ("write",)),
)
SET_UP, COPY_IN, UNPACK, MULTIPLY, ADD_UP, WRITE = (phase.name for phase in PHASES)


def of_instruction(ins: dict, declared: dict[str, str], before: str) -> str:
    if ins["kind"] == TENSOR:
        return MULTIPLY
    if ins["phase"] in declared:
        return declared[ins["phase"]]
    ending = before in (ADD_UP, WRITE)  # where what is loaded is a sum, a factor or a bias
    if ins["kind"] == COPY:
        return WRITE if ".global.shared" in ins["text"] else COPY_IN
    if ins["kind"] == GLOBAL:
        return WRITE if ins["root"].startswith("st") else before if ending else COPY_IN
    if ins["kind"] == SHARED and not ins["root"].startswith("st") and not ending:
        return UNPACK
    return ADD_UP if ins["kind"] == ATOMIC else before


@remembered
def phase_of(trace: Trace) -> tuple[str, ...]:
    """Per pc the name of its phase."""
    declared = {
        verb: phase.name
        for phase in PHASES
        for section in phase.sections
        for verb in (trace.about.get("sections") or {}).get(section, ())
    }
    found, last = [], SET_UP
    for ins in trace.instructions:
        last = of_instruction(ins, declared, last)
        found.append(last)
    return tuple(found)


@remembered
def phase_of_verb(trace: Trace) -> dict[str, str]:
    """Verb -> the phase with most of its executed instructions, of all blocks."""
    executed: dict[str, dict[str, int]] = {}
    names = phase_of(trace)
    for row in trace.counts["instructions"]:
        verb = trace.instructions[row["pc"]]["phase"]
        mine = executed.setdefault(verb, {})
        mine[names[row["pc"]]] = mine.get(names[row["pc"]], 0) + row["tally"]["executed"]
    return {verb: max(mine, key=lambda name: mine[name]) for verb, mine in executed.items()}

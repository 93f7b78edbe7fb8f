"""The sections of a kernel's time: the section of each instruction, and the places where control
passes from one section to another.

A section is coarser than a verb (``counts.phases``): the compiler and the assembler mix the
instructions of neighbouring verbs, so only instructions that wait, move data, multiply or leave the
kernel stay in their place and can mark a time. The kernel declares which verbs belong to which
section (``kernels.language.about``); one that it does not name belongs to the verb that called it.
An instruction that waits is recognised by its opcode.

``sections(module, kernel)`` -> per pc, the section that it is counted in. ``marks(module, kernel)``
-> where a recorder must record that a section begins: the instructions that control may reach from
another section.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass

from numba_marlin.counts.instructions import ATOMIC, COPY, GLOBAL, SHARED, TENSOR, class_of
from numba_marlin.counts.phases import ENTRY, LAMBDA, plain_name
from numba_marlin.emulator.text.cfg import EXIT, successors
from numba_marlin.emulator.text.program import Instruction, Kernel, Module
from numba_marlin.kernels import registry
from numba_marlin.kernels.language.about import SHARED_SECTIONS, SHARED_WAITS, About


@dataclass(frozen=True)
class Section:
    """``name`` in data, ``title`` for people; ``reason``: what a warp waits for in it, "" if it
    works."""

    name: str
    title: str
    reason: str = ""


SECTIONS = (
    Section("setup", "set up"),
    Section("copy", "issue copies"),
    Section("wait_copies", "wait for copies", "data on their way from memory"),
    Section("wait_room", "wait for room in the ring", "consumers that have not freed a stage"),
    Section("wait_barrier", "wait at a barrier", "slower warps of the block"),
    Section("wait_block", "wait for another block", "a block that has its turn before"),
    Section(
        "wait_kernel", "wait for the kernel before", "the launch before this one on the stream"
    ),
    Section("multiply", "dequantise and multiply"),
    Section("reduce_block", "add up inside the block"),
    Section("reduce_grid", "add up between blocks"),
    Section("write", "write the result"),
    Section("wait_role", "wait for another role", "warps of the block whose part comes before"),
)
NUMBER = {section.name: number for number, section in enumerate(SECTIONS)}
BY_NAME = {section.name: section for section in SECTIONS}
START = "setup"

_WAIT_OF_ROOT = {
    "bar": "wait_barrier",
    "barrier": "wait_barrier",
    "barrier.cluster": "wait_barrier",
    "cp.async.wait_group": "wait_copies",
    "cp.async.wait_all": "wait_copies",
    "cp.async.bulk.wait_group": "write",
    "mbarrier.try_wait": "wait_copies",
    "mbarrier.test_wait": "wait_copies",
    "griddepcontrol": "wait_kernel",
}
_ANCHORS = {GLOBAL, SHARED, COPY, ATOMIC, TENSOR}
_OF_CLASS = {TENSOR: "multiply", COPY: "copy"}


@dataclass(frozen=True)
class Verbs:
    """``sections``: a kernel's verbs -> the section that their instructions belong to. ``waits``:
    verbs -> the section of waiting at a barrier in them, if it is not for copies or for the block's
    other warps."""

    sections: dict[str, str]
    waits: dict[str, str]


def verbs_of(kernel: Kernel) -> Verbs:
    """The verbs that the kernel declares, found by its entry name, and those that all kernels
    share; for a kernel that no package declares, only the latter."""
    return _verbs_of(kernel.name.removeprefix(ENTRY))


@functools.cache
def _verbs_of(name: str) -> Verbs:
    about = registry.find_kernel(name).about if registry.is_kernel(name) else About()

    def by_verb(*declared) -> dict[str, str]:
        return {verb: each for found in declared for each in found for verb in found[each]}

    return Verbs(by_verb(SHARED_SECTIONS, about.sections), by_verb(SHARED_WAITS, about.waits))


@dataclass(frozen=True)
class Mark:
    """``section`` begins before ``pc``; ``before``: the sections that may end there, depending on
    where control came from."""

    pc: int
    section: str
    before: frozenset[str]

    @property
    def sure(self) -> bool:
        """Whether the section cannot have begun already."""
        return self.section not in self.before


def stacks(module: Module, kernel: Kernel) -> list[tuple[str, ...]]:
    """For every pc the verbs it was inlined from, the innermost first; () without line numbers."""
    names = {
        label: plain_name(module.strings.get(label, label))
        for label in {ins.inlined[0] for ins in kernel.instructions if ins.inlined}
    }
    called_from = {
        ins.source: (names[ins.inlined[0]], ins.inlined[1])
        for ins in kernel.instructions
        if ins.inlined
    }
    owners = {}  # of lines, those of the kernel itself included, where they are sure
    for ins in kernel.instructions:
        if ins.source:
            owners.setdefault(ins.source[0], {})[ins.source[1]] = called_from.get(ins.source)
    lines = {file: sorted(found) for file, found in owners.items()}

    def caller(place):
        """(verb, place of its call) that a line belongs to. A line without instructions belongs to
        the same as the last line before it that has some."""
        before = bisect.bisect_right(lines.get(place[0], ()), place[1])
        return owners[place[0]][lines[place[0]][before - 1]] if before else None

    def stack(ins: Instruction) -> tuple[str, ...]:
        if not ins.inlined:
            return ()
        found, place = [names[ins.inlined[0]]], ins.inlined[1]
        seen = {ins.source}
        while place not in seen and (known := caller(place)):
            seen.add(place)
            name, place = known
            found.append(name)
        return tuple(name for name in found if name != LAMBDA)

    return [stack(ins) for ins in kernel.instructions]


def waits(ins: Instruction, stack: tuple[str, ...], verbs: Verbs) -> str | None:
    """The section of an instruction that waits; None for one that does not."""
    if (
        ins.root == "bar.warp.sync"
        or ins.root.startswith("bar")
        and "arrive" in ins.modifiers
        or ins.root == "griddepcontrol"
        and "wait" not in ins.modifiers
    ):
        return None
    found = _WAIT_OF_ROOT.get(ins.root) or next(
        (each for root, each in _WAIT_OF_ROOT.items() if ins.root.startswith(root + ".")), None
    )
    if found is None and "acquire" in ins.modifiers and ins.root == "ld":
        found = "wait_block"
    if found in ("wait_barrier", "wait_copies"):
        return next((verbs.waits[verb] for verb in stack if verb in verbs.waits), found)
    return found


def sections(module: Module, kernel: Kernel) -> list[str]:
    """For every pc the name of its section. An instruction of no declared verb belongs to the
    section of the instruction before it in the text."""
    found, last, verbs = [], START, verbs_of(kernel)
    for ins, stack in zip(kernel.instructions, stacks(module, kernel)):
        last = (
            waits(ins, stack, verbs)
            or _of(ins, stack, verbs)
            or (START if BY_NAME[last].reason else last)
        )
        found.append(last)
    return found


def _of(ins: Instruction, stack: tuple[str, ...], verbs: Verbs) -> str | None:
    """The section of an instruction by its verbs or, if none of them is declared, by what it
    does."""
    named = next((verbs.sections[verb] for verb in stack if verb in verbs.sections), None)
    # a tile that leaves shared memory
    out = (
        class_of(ins) == COPY
        and next(
            (modifier for modifier in ins.modifiers if modifier.startswith(("shared", "global"))),
            "",
        )
        == "global"
    )
    return (
        named
        or ("write" if out else _OF_CLASS.get(class_of(ins)))
        or ("multiply" if ins.root in ("ld", "ldmatrix") and class_of(ins) == SHARED else None)
    )


def anchors(module: Module, kernel: Kernel) -> list[str | None]:
    """For every pc its section if compilers leave the instruction in its place, otherwise None."""
    found, verbs = [], verbs_of(kernel)
    for ins, stack in zip(kernel.instructions, stacks(module, kernel)):
        section = waits(ins, stack, verbs)
        if section is None and class_of(ins) in _ANCHORS and ins.root != "createpolicy":
            section = _of(ins, stack, verbs)
        found.append(section)
    # what comes behind the wait for the kernel before is this launch's own time, and begins at once
    for pc in range(1, len(found)):
        if found[pc - 1] == "wait_kernel" and found[pc] is None:
            found[pc] = START
    return found


def marks(module: Module, kernel: Kernel) -> list[Mark]:
    """The marks in the order of the code."""
    return transitions(kernel, anchors(module, kernel))


def transitions(kernel: Kernel, at: list[str | None]) -> list[Mark]:
    """Where the section changes, if instruction pc is of section at[pc] (None: of the same section
    as before). The sections that may have begun when a basic block is entered are the union over
    its predecessors, computed to a fixed point."""
    count = len(kernel.instructions)
    entering = states(kernel, at)
    found = []
    for start in sorted(kernel.blocks):
        state = entering[start]
        for pc in range(start, min(kernel.blocks[start].stop, count)):
            if at[pc] and state != {at[pc]}:
                found.append(Mark(pc, at[pc], frozenset(state)))
            if at[pc]:
                state = {at[pc]}
    return found


def states(kernel: Kernel, at: list[str | None]) -> dict[int, set]:
    """Start of a block -> sections that may have begun there."""
    count = len(kernel.instructions)
    last = {
        start: next((at[pc] for pc in range(block.stop - 1, start - 1, -1) if at[pc]), None)
        for start, block in kernel.blocks.items()
    }
    entering: dict[int, set] = {start: set() for start in kernel.blocks}
    entering[min(kernel.blocks)] = {START}
    changed = True
    while changed:
        changed = False
        for start, block in kernel.blocks.items():
            leaving = {last[start]} if last[start] else entering[start]
            for target in successors(kernel.instructions[block.stop - 1], block.stop, count):
                if target != EXIT and not leaving <= entering[target]:
                    entering[target] |= leaving
                    changed = True
    return entering

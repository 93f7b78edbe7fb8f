"""What a puzzle may ask of a run besides the right result: functions Run -> what is wrong, or None.
They count, on the machine, what a GPU would do."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Callable

from numba_marlin.puzzles.launch import Run

BUT = "right, but"  # how a complaint begins
Rule = Callable[[Run], "str | None"]


def uses(opcode: str, why: str) -> Rule:
    """The kernel executes this opcode ("ldmatrix")."""

    def rule(run: Run) -> str | None:
        if run.result is None or any(name.startswith(opcode) for name in run.result.opcodes):
            return None
        return f"{BUT} without {opcode}: {why}"

    return rule


def without(opcode: str, why: str) -> Rule:
    """The kernel does not execute this opcode."""

    def rule(run: Run) -> str | None:
        if run.result is None or not any(n.startswith(opcode) for n in run.result.opcodes):
            return None
        return f"{BUT} with {opcode}: {why}"

    return rule


def without_text(text: str, why: str) -> Rule:
    """No instruction of the kernel begins with this PTX ("cp.async.wait_group 0")."""

    def rule(run: Run) -> str | None:
        found = run.counts is not None and any(
            re.sub(r"\s+", " ", each.text).startswith(text) for each in run.counts.instructions
        )
        return f"{BUT} with {text}: {why}" if found else None

    return rule


def no_bank_conflicts(run: Run) -> str | None:
    """Every access to shared memory takes as few wavefronts as its bytes need."""
    if run.counts is None:
        return None
    turns: Counter = Counter()
    ideal: Counter = Counter()
    for each in run.counts.instructions:
        if each.tally.shared.conflicts:
            turns[each.source] += each.tally.shared.wavefronts
            ideal[each.source] += each.tally.shared.ideal
    if not turns:
        return None
    lines = [
        f"  line {_number(source)}: {count} turns where {ideal[source]} would do:"
        f" {_text(run, source)}"
        for source, count in turns.items()
    ]
    return "\n".join([f"{BUT} lanes of a warp meet in the same bank:", *lines])


def at_most_shared(most: int, why: str) -> Rule:
    """A block has at most so many bytes of shared memory."""

    def rule(run: Run) -> str | None:
        if run.result is None or run.result.shared_bytes <= most:
            return None
        return f"{BUT} with {run.result.shared_bytes} bytes of shared memory, at most {most}: {why}"

    return rule


def at_most_sectors(most: int, buffer: str, why: str) -> Rule:
    """Global memory moves at most so many sectors (32 bytes) of ``buffer``."""

    def rule(run: Run) -> str | None:
        if run.counts is None:
            return None
        found = [each for each in run.counts.buffers if each.name == buffer]
        asked = sum(each.reads.sectors + each.writes.sectors for each in found)
        if asked <= most:
            return None
        return f"{BUT} {buffer} takes {asked} sectors of 32 bytes, at most {most}: {why}"

    return rule


def _number(source: str | None) -> str:
    return (source or "?").rpartition(":")[2]


def _text(run: Run, source: str | None) -> str:
    number = _number(source)
    file = run.kernel.__code__.co_filename
    return linecache.getline(file, int(number)).strip() if number.isdigit() else ""

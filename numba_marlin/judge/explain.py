"""What went wrong in a run, in words and as plain data: line, thread, element."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from numba_marlin.emulator.errors import (
    BarrierMisuse,
    Deadlock,
    DivergentCollective,
    MachineError,
    Misaligned,
    OutOfBounds,
    PendingCopyRead,
    ProxyHazard,
    Race,
    ReadOnlyWrite,
    RegisterHazard,
    UninitializedRead,
)
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.judge.launching import Run
from numba_marlin.judge.watching import Strange
from numba_marlin.on_cpu.faults import place, position

MEANING = {
    OutOfBounds: "past the end of the array: a wrong index, or a thread that has nothing to do?",
    UninitializedRead: "it reads shared memory that no thread has written",
    Race: "nothing orders these two: on a GPU either may come first",
    PendingCopyRead: "an asynchronous copy may still be on its way: commit it, wait for it",
    DivergentCollective: "all threads must come to this line together: is it inside an `if`?",
    BarrierMisuse: "count again what this barrier is told to expect, and what comes",
    Deadlock: "threads wait for what never happens, or a loop does not end",
    ReadOnlyWrite: "an input must not be written",
    Misaligned: "the address must be a multiple of the bytes that are moved at once",
    RegisterHazard: "the tensor cores may still be using these registers: go on with what the wait"
    " returns (d = ...)",
    ProxyHazard: "the copy engine or wgmma does not see ordinary stores before a proxy fence",
}
BY_CHECK = {
    "budget": "it does not end, or needs more instructions than it is given",
    "shuffle-from-outside": "a shuffle gives what no lane of its mask holds",
    "lane-outside-mask": "a lane executes what its mask does not name it for",
    "neighbouring-variable": "an index leaves its array, and meets the next one",
    "uninitialized-register": "a variable is used that was not set on every path",
    "uninitialized-local": "an array of the thread is read before it is written",
    "mbarrier-init-fence": "the copy engine does not see the mbarrier's init before a fence",
    "bulk-store-at-end": "the block ends while a bulk store may be reading its shared memory",
}
SPENT, ENDLESS = (
    "the budget of",
    ": an endless loop? else --budget has more, or choose smaller sizes",
)
READS_OUTPUT = (
    "it reads an element of an output or workspace that nothing has written: the result depends on"
    " what was there before"
)


@dataclass(frozen=True)
class Place:
    """Where: of the source (``file``, ``line``, ``source``, None and "" where unknown), of the PTX,
    and who (``block`` and ``thread`` as (x, y, z))."""

    file: str | None = None
    line: int | None = None
    source: str = ""
    ptx_line: int | None = None
    ptx: str = ""
    block: tuple[int, int, int] | None = None
    thread: tuple[int, int, int] | None = None

    def __str__(self) -> str:
        said = []
        if self.line is not None:
            said.append(f"{self.file}, line {self.line}" + (f": {self.source}" * bool(self.source)))
        elif self.ptx_line is not None:
            said.append(f"PTX line {self.ptx_line}: {self.ptx}")
        if self.thread is not None:
            said.append(f"thread {self.thread} of block {self.block}")
        return "\n".join(said)


@dataclass(frozen=True)
class Defect:
    """``kind``: a word that does not change ("out-of-bounds"; docs/judge.md). ``meaning``: what it
    most likely is; ``detail``: the facts; ``array`` and ``element`` (its index as text): "" where
    none is known; ``first``: the other access of a race; ``schedule``: the order of warps in which
    it was found, "" for the usual one."""

    kind: str
    meaning: str
    detail: str
    where: Place = Place()
    first: Place | None = None
    array: str = ""
    element: str = ""
    schedule: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        said = [f"{self.kind}: {self.meaning}"]
        for word, each in (("first ", self.first), ("then " * bool(self.first), self.where)):
            said += [f"  {word}{line}" for line in str(each or "").splitlines()]
        said += [f"  {line}" for line in self.detail.splitlines()]
        return "\n".join(said + [f"  in schedule {self.schedule}"] * bool(self.schedule))


def meaning(error: MachineError) -> str:
    """What the kernel's author has most likely done."""
    if error.check in BY_CHECK:
        return BY_CHECK[error.check]
    if isinstance(error, Race) and all(
        each.split()[0 if each[0] != "@" else 1].startswith("st.")
        for each in (error.first.text if error.first else "ld", error.text or "ld")
    ):
        return "two threads write the same place, and only one should: is the index right?"
    if isinstance(error, RegisterHazard) and "wgmma.fence" in error.detail:
        return "no wgmma_fence lies between the last write of these registers and the product"
    if isinstance(error, PendingCopyRead) and "may still be reading" in error.detail:
        return "the copy engine may still be reading: wait_group.read comes before the next write"
    if isinstance(error, PendingCopyRead) and "cp.async.bulk" in error.detail:
        return "the wait did not wait: is this the parity of the phase that the copy completes?"
    return next((text for kind, text in MEANING.items() if isinstance(error, kind)), "")


def stopped(made: Run, error: Exception, names: Mapping[str, Any]) -> Defect:
    """What stopped the run; ``names``: of its arrays."""
    if not isinstance(error, MachineError):
        return Defect("launch", "the launch is not one that the kernel can have", str(error))
    where = Place()
    if error.line is not None:
        file, line = place(error, made.compiled)
        where = Place(_near(file), line, _text(file, line), error.line, error.text or "")
    if error.block is not None:
        lanes = error.lanes or (0,)
        where = replace(
            where, block=error.block, thread=position(error, lanes[0], (*made.block, 1, 1))
        )
    first = None
    if isinstance(error, Race) and error.first is not None:
        block, warp, lane = error.first_thread
        thread = _xyz(32 * warp + lane, (*made.block, 1, 1))
        first = replace(of_instruction(made, error.first), block=block, thread=thread)
    kind = "race" if isinstance(error, Race) else error.check or error.kind
    if isinstance(error, Deadlock) and error.detail.startswith(SPENT):
        kind, detail = "budget", error.detail.partition(";")[0] + ENDLESS
        return Defect(kind, BY_CHECK[kind], detail, where)
    array, element = _element(error.detail, names)
    advice = str(error).splitlines()[-1] if "docs/checks.md" in str(error) else ""
    # a race's last line leads to the PTX, which ``where`` has
    detail = re.sub(r"\n *the second, of [^\n]*:$", "", error.detail)
    said = "\n".join(part for part in (detail, advice.strip()) if part)
    return Defect(
        kind, meaning(error) or type(error).__doc__ or "", said, where, first, array, element
    )


def strange(made: Run, found: Strange) -> Defect:
    """Of an access that the machine lets pass."""
    array = made.watched[found.name].array
    index = _index(found.element, array.shape)
    meant = {"reads-output": READS_OUTPUT}.get(found.kind, MEANING[OutOfBounds])
    return Defect(
        found.kind,
        meant,
        f"{found.name}{index} ({found.name} is {array.dtype}{list(array.shape)})",
        of_thread(made, found.ins, found.thread),
        array=found.name,
        element=index,
    )


def of_thread(made: Run, ins: Instruction, number: int) -> Place:
    """``ins``, by the thread of that number in the grid."""
    block, thread = made.thread(number)
    return replace(
        of_instruction(made, ins),
        block=_xyz(block, (*made.grid, 1, 1)),
        thread=_xyz(thread, (*made.block, 1, 1)),
    )


def of_instruction(made: Run, ins: Instruction) -> Place:
    file, line = None, None
    if ins.source is not None:
        number, line = ins.source
        file, line = made.compiled.kernel.files.get(number), int(line)
    return Place(_near(file), line, _text(file, line), ins.line, ins.text)


def _near(file: str | None) -> str | None:
    """From here, if it lies below: as people and CI name it."""
    here = os.getcwd() + os.sep
    return file.removeprefix(here) if file else None


def _text(file: str | None, line: int | None) -> str:
    return linecache.getline(file, int(line)).strip() if file and line is not None else ""


def _xyz(number: int, sizes: tuple[int, ...]) -> tuple[int, int, int]:
    return number % sizes[0], number // sizes[0] % sizes[1], number // (sizes[0] * sizes[1])


def _index(element: int, shape: tuple[int, ...]) -> str:
    """ "[3, 7]"; an element in front of the array or beyond counts on in the slowest index."""
    index = []
    for size in shape[:0:-1]:
        element, at = divmod(element, max(size, 1))
        index.append(at)
    return f"[{', '.join(map(str, [element, *reversed(index)]))}]" if shape else "[()]"


def _element(detail: str, names: Mapping[str, Any]) -> tuple[str, str]:
    """(array, index) that a message of the machine begins with."""
    for found in re.finditer(r"(\w+)(\[[-\d, ]+\])", detail):
        if found[1] in names:
            return found[1], found[2]
    return "", ""

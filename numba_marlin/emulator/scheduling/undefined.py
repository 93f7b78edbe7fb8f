"""Values that are none: of registers read before they are written, and of shuffles from lanes that
are not there.

Nobody complains where such a value is copied or calculated with, but where it matters: as a guard,
as an address, or stored where others may read it. Registers that may be read before they are
written are known beforehand (they are live at the entry), and so is what may be made of them; only
instructions that touch those are followed, lane by lane, and a kernel without any runs as fast as
before. What warps calculate together, and what comes from memory, counts as defined, and so does a
word of which a part is: better a value missed than a false alarm.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from numba_marlin.emulator.errors import UninitializedRead
from numba_marlin.emulator.instructions import HANDLERS
from numba_marlin.emulator.state.lanes import WARP, Lanes
from numba_marlin.emulator.text.cfg import successors
from numba_marlin.emulator.text.program import Instruction, Kernel, Pair, Register, Vector

if TYPE_CHECKING:
    from numba_marlin.emulator.scheduling.execution import Execution

REGISTER, SHUFFLE = CHECKED = "uninitialized-register", "shuffle-from-outside"
EXCHANGES = {"shfl.sync", "shfl"}
PLAIN = {
    f"numba_marlin.emulator.instructions.{family}"
    for family in (
        "bits comparison convert convert_packed dot extended floating half integer move video"
        " video_scalar"
    ).split()
}
"""Modules of handlers that make a lane's results of that lane's operands alone."""
MIXING = ("and", "or", "xor", "lop3", "prmt", "bfi", "shf", "mov", "slct")
"""Opcodes of which some bits may be defined though an operand is not."""
STORES = ("st", "red", "atom")
LATER = ("bar", "barrier", "call", "return")
"""Opcodes whose results are written when all have come, or another function ends: by no step that
could note it, so their registers are not followed."""
NEVER = -1  # origin of a value: never written; else 1 + the pc of a shuffle; 0 is defined
Key = tuple[int, int]  # width and index of a register


def key(register: Register) -> Key:
    return register.width, register.index


def registers_of(operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    if isinstance(operand, Vector):
        return [each for item in operand.items for each in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    return []


def shuffled_to(ins: Instruction):
    """Where the value goes: the first of d|p."""
    target = ins.operands[0]
    return target.first if isinstance(target, Pair) else target


def plain(ins: Instruction) -> bool:
    return HANDLERS[ins.root].__module__ in PLAIN


class Flow:
    """Which registers each instruction reads and writes, as its handler bound them. ``at_entry``:
    those that may be read before they are written, being live at the entry."""

    def __init__(self, execution: Execution) -> None:
        self.instructions, self.blocks = execution.kernel.instructions, execution.kernel.blocks
        self.reads, self.writes = [], []
        for ins in self.instructions:
            uses = execution.uses[ins.pc]
            writes = {key(each) for each in uses.writes}
            reads = {key(each) for each in uses.reads}
            if not plain(ins) and ins.operands:  # some write registers that they do not bind
                own = {key(each) for each in registers_of(ins.operands[0])}
                writes |= own if ins.root not in STORES else set()
            self.reads.append(reads)
            self.writes.append(writes)
        self.at_entry = self._at_entry()
        self.written_later = {
            register
            for ins, writes in zip(self.instructions, self.writes)
            if ins.root.split(".")[0] in LATER
            for register in writes
        }

    def _at_entry(self) -> set[Key]:
        live: dict[int, set[Key]] = {start: set() for start in self.blocks}
        following, preceding = {}, {start: [] for start in self.blocks}
        for start, block in self.blocks.items():
            last = self.instructions[block.stop - 1]
            following[start] = [
                pc
                for pc in successors(last, block.stop, len(self.instructions))
                if pc in self.blocks
            ]
            for pc in following[start]:
                preceding[pc].append(start)
        exposed, killed = {}, {}
        for start, block in self.blocks.items():
            exposed[start], killed[start] = self._summary(range(block.start, block.stop))
        waiting = dict.fromkeys(sorted(self.blocks, reverse=True))
        while waiting:
            start = next(iter(waiting))
            del waiting[start]
            behind = set().union(*(live[pc] for pc in following[start]))
            found = exposed[start] | (behind - killed[start])
            if found != live[start]:
                live[start] = found
                waiting.update(dict.fromkeys(preceding[start]))
        return live[0] if 0 in live else set()

    def _summary(self, pcs: range) -> tuple[set[Key], set[Key]]:
        """(registers read before they are written, registers written for sure)"""
        exposed: set[Key] = set()
        killed: set[Key] = set()
        for pc in pcs:
            ins = self.instructions[pc]
            exposed |= self.reads[pc] - killed
            if ins.guard is None:
                killed |= self.writes[pc]
            elif key(ins.guard) not in killed:
                exposed.add(key(ins.guard))
        return exposed, killed

    def made_of(self, roots: set[Key]) -> set[Key]:
        """``roots`` and all registers that may be calculated from them."""
        users = defaultdict(list)  # register -> what is calculated from it
        for pc, ins in enumerate(self.instructions):
            if plain(ins) or ins.root in EXCHANGES:
                for each in self.reads[pc]:
                    users[each] += self.writes[pc]
        found, waiting = set(roots), list(roots)
        while waiting:
            for each in users[waiting.pop()]:
                if each not in found:
                    found.add(each)
                    waiting.append(each)
        return found


FLOWS: WeakKeyDictionary[Kernel, Flow] = WeakKeyDictionary()


def tracker(execution: Execution) -> Undefined | None:
    """None if there is nothing to follow."""
    flow = FLOWS.get(execution.kernel)
    if flow is None:  # the same in every launch
        flow = FLOWS[execution.kernel] = Flow(execution)
    never = flow.at_entry - flow.written_later if execution.checks.on(REGISTER) else set()
    roots = set(never)
    if execution.checks.on(SHUFFLE):
        for ins in flow.instructions:
            if ins.root in EXCHANGES:
                roots |= {key(each) for each in registers_of(shuffled_to(ins))}
    return Undefined(execution, flow, never, flow.made_of(roots)) if roots else None


class Undefined:
    """``origin``: of each followed register, why each lane's value is none; ``names`` of all
    registers."""

    def __init__(
        self, execution: Execution, flow: Flow, never: set[Key], followed: set[Key]
    ) -> None:
        self.execution, self.flow, self.never = execution, flow, never
        shape = execution.placement.warps, WARP
        self.origin = {each: np.zeros(shape, np.int32) for each in sorted(followed)}
        self.some = bool(never)  # whether any value may be none

    def forget(self, warps: slice) -> None:
        """New threads move in."""
        for each, origin in self.origin.items():
            origin[warps] = NEVER if each in self.never else 0

    def followed(self, step: Callable, ins: Instruction) -> Callable:
        """``step`` of ``ins``, which complains of addresses and stored values that are none, and
        notes which results are."""
        pc, uses = ins.pc, self.execution.uses[ins.pc]
        addresses = [each for each in uses.addresses if key(each) in self.origin]
        stored = ins.root.split(".")[0] in STORES and "local" not in ins.modifiers
        values = [each for each in uses.reads if key(each) in self.origin] if stored else []
        written = [self.origin[each] for each in self.flow.writes[pc] if each in self.origin]
        if not (addresses or values or written):
            return step
        result = self._result(ins)

        def run(lanes: Lanes) -> None:
            if not self.some:
                step(lanes)
                return
            for register in addresses:
                self._require(ins, lanes, register, "an address")
            for register in values:
                self._require(ins, lanes, register, "what is stored")
            found = result(lanes)
            step(lanes)
            if ins.root not in EXCHANGES:  # which notes it by itself
                for origin in written:
                    origin[lanes.sel] = found

        return run

    def guarded(self, step: Callable | None, ins: Instruction) -> Callable | None:
        """``step``, which complains first if the guard of ``ins`` is none."""
        if ins.guard is None or key(ins.guard) not in self.origin:
            return step

        def run(lanes: Lanes) -> None:
            if self.some:
                self._require(ins, lanes, ins.guard, "a guard")
            if step is not None:
                step(lanes)

        return run

    def shuffled(self, ins: Instruction, lanes: Lanes, source, given) -> None:
        """A shuffle takes the value of lane ``source``; there is none where not ``given``."""
        result = registers_of(shuffled_to(ins))
        target = self.origin.get(key(result[0])) if result else None
        if target is None or not self.some and np.all(given):
            return
        self.some = True
        value = ins.operands[1]
        origin = self.origin.get(key(value)) if isinstance(value, Register) else None
        warps = lanes.warps[:, None] if lanes.full else lanes.warps
        source = np.broadcast_to(source, lanes.shape)
        there = 0 if origin is None else origin[np.broadcast_to(warps, lanes.shape), source]
        target[lanes.sel] = np.where(given, there, 1 + ins.pc)

    def _result(self, ins: Instruction) -> Callable:
        """Function: lanes -> origin of the results of ``ins``."""
        reads = [each for each in self.flow.reads[ins.pc]]
        if not plain(ins) or not reads:
            return lambda lanes: 0
        root = ins.root.split(".")[0]
        sources = [each for each in ins.operands[1:] if isinstance(each, Register)]
        if root in ("xor", "sub") and len(sources) == 2 and sources[0] == sources[1]:
            return lambda lanes: 0
        known = [self.origin[each] for each in reads if each in self.origin]
        if root == "selp":
            return self._selected(ins)
        if root in MIXING and len(known) < len(reads):
            return lambda lanes: 0
        if not known:
            return lambda lanes: 0
        if root in MIXING:

            def all_of(lanes: Lanes):
                found = known[0][lanes.sel]
                for other in known[1:]:
                    found = np.where(other[lanes.sel] == 0, 0, found)
                return found

            return all_of

        def any_of(lanes: Lanes):
            found = known[0][lanes.sel]
            for other in known[1:]:
                found = np.where(found == 0, other[lanes.sel], found)
            return found

        return any_of

    def _selected(self, ins: Instruction) -> Callable:
        first, second, chooser = ins.operands[1:4]
        pick = self.execution.source(ins, chooser, "pred")

        def origin(operand, lanes: Lanes):
            held = self.origin.get(key(operand)) if isinstance(operand, Register) else None
            return 0 if held is None else held[lanes.sel]

        def found(lanes: Lanes):
            chosen = np.where(pick[lanes.sel], origin(first, lanes), origin(second, lanes))
            of_choice = origin(chooser, lanes)
            return np.where(of_choice != 0, of_choice, chosen)

        return found

    def _require(self, ins: Instruction, lanes: Lanes, register: Register, what: str) -> None:
        origin = self.origin[key(register)][lanes.sel]
        if not origin.any():
            return
        bad = origin != 0
        why = int(origin[bad][0])
        if why == NEVER:
            self.execution.checks.report(
                REGISTER,
                lanes.fault(
                    UninitializedRead,
                    f"{register.name} is {what}, and it or what it was calculated from was never"
                    " written in these lanes: give it a value first",
                    ins,
                    bad,
                ),
            )
            return
        shuffle = self.flow.instructions[why - 1]
        self.execution.checks.report(
            SHUFFLE,
            lanes.fault(
                UninitializedRead,
                f"{register.name} is {what}, and comes from a lane that the member mask does not"
                f" name or that has exited,\n    by PTX line {shuffle.line}: {shuffle.text}\n   "
                " shuffle among lanes of the mask only, or leave such results out",
                ins,
                bad,
            ),
        )

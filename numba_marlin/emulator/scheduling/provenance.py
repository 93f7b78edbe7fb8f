"""Which variable an address was made from: an index that runs out of one shared or local array ends
in its neighbour, whose bytes are as good as any to the memory.

PTX does not say where variables lie, so nothing may lead from one to another. Followed are moves,
sums and what keeps an address one (cvta, and, or, xor, selp); an address made from two variables,
or from one on some ways only, is not checked. Nor are kernels with one variable in the space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.state.local_owners import LOCAL_BYTES
from numba_marlin.emulator.state.memory import WINDOW_BYTES, WINDOWS
from numba_marlin.emulator.text.program import (
    Address,
    Instruction,
    Pair,
    Register,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from numba_marlin.emulator.checks import Checks

CHECK = "neighbouring-variable"
SIZES = {"shared": WINDOW_BYTES, "local": LOCAL_BYTES}  # of what an address is one within
KEEPING = ("mov", "add", "cvta", "cvt", "and", "or", "xor")
Key = tuple[int, int]


class Range(NamedTuple):
    """A variable: its addresses [start, stop) within its space."""

    name: str
    space: str
    start: int
    stop: int


class Made(NamedTuple):
    """What a value was made from: addresses of variables ``of``, and on some way of ``none``."""

    of: frozenset[str]
    none: bool

    def either(self, other: Made) -> Made:
        return Made(self.of | other.of, self.none or other.none)

    def plus(self, other: Made) -> Made:
        return Made(self.of | other.of, self.none and other.none)


UNSEEN, NUMBER = Made(frozenset(), False), Made(frozenset(), True)


class Provenance:
    """``placed``: space -> (address, size, name) of its variables. ``variables``: those that are
    checked, by name."""

    def __init__(
        self,
        instructions: Sequence[Instruction],
        placed: dict[str, list[tuple[int, int, str]]],
        checks: Checks,
    ) -> None:
        self.checks = checks
        self.variables = {
            name: Range(name, space, start, start + size)
            for space, variables in placed.items()
            for start, size, name in variables
            if size and len(variables) > 1
        }
        self.made: dict[Key, Made] = {}
        if self.variables and checks.on(CHECK):
            self._follow([ins for ins in instructions if ins.operands])

    def checked(self, ins: Instruction, operand: Address, at: Callable) -> Callable:
        """``at`` (lanes -> addresses) of ``operand``, which complains of addresses outside of the
        variable that they were made from."""
        made = self._made(operand.base)
        if len(made.of) != 1 or made.none or not self.checks.on(CHECK):
            return at
        (name,) = made.of
        variable = self.variables[name]
        window, size = WINDOWS[variable.space], SIZES[variable.space]

        def found(lanes: Lanes) -> np.ndarray:
            address = at(lanes)
            low, high = int(address.min()), int(address.max())
            if low >= window:
                low, high = low - window, high - window
            if variable.start <= low and high < variable.stop:
                return address  # mostly; a third of the time of what follows
            within = np.where(address >= window, (address - window) % size, address)
            bad = (within < variable.start) | (within >= variable.stop)
            if bad.any():
                self._report(ins, lanes, variable, int(within[bad][0]), bad)
            return address

        return found

    def _report(self, ins, lanes: Lanes, variable: Range, address: int, bad: np.ndarray) -> None:
        other = next(
            (
                each
                for each in self.variables.values()
                if each.space == variable.space and each.start <= address < each.stop
            ),
            None,
        )
        if other is None:
            return  # outside of everything: the memory says so, or nobody lives there
        error = lanes.fault(
            OutOfBounds,
            f"byte {address - variable.start} of {variable.name}, which has"
            f" {variable.stop - variable.start}, is byte {address - other.start} of {other.name}:"
            f" keep the index within {variable.name}",
            ins,
            bad,
        )
        self.checks.report(CHECK, error)

    def _follow(self, instructions: Sequence[Instruction]) -> None:
        users = defaultdict(list)  # register -> instructions that may read it
        for number, ins in enumerate(instructions):
            for operand in ins.operands[1:]:
                for register in registers_of(operand):
                    users[register.width, register.index].append(number)
        waiting = dict.fromkeys(range(len(instructions)))
        while waiting:
            ins = instructions[next(iter(waiting))]
            del waiting[next(iter(waiting))]
            result = self._result(ins)
            for register in registers_of(ins.operands[0]):
                key = register.width, register.index
                before = self.made.get(key, UNSEEN)
                after = before.either(result)
                if after != before:
                    self.made[key] = after
                    waiting.update(dict.fromkeys(users[key]))

    def _made(self, operand) -> Made:
        if isinstance(operand, Register):
            return self.made.get((operand.width, operand.index), UNSEEN)
        if isinstance(operand, Symbol) and operand.name in self.variables:
            return Made(frozenset([operand.name]), False)
        return NUMBER

    def _result(self, ins: Instruction) -> Made:
        root, sources = ins.root.split(".")[0], ins.operands[1:]
        if len(sources) < {"sub": 2, "mad": 3, "selp": 3}.get(root, 1):
            return NUMBER  # its handler will complain
        if root in KEEPING and not any(isinstance(each, Vector) for each in ins.operands):
            found = self._made(sources[0])
            for other in sources[1:]:
                found = found.plus(self._made(other))
            return found
        if root == "sub" and not self._made(sources[1]).of:
            return self._made(sources[0])
        if root == "mad" and not (self._made(sources[0]).of or self._made(sources[1]).of):
            return self._made(sources[2])
        if root == "selp":
            return self._made(sources[0]).either(self._made(sources[1]))
        return NUMBER


def registers_of(operand) -> list[Register]:
    if isinstance(operand, Vector):
        return [each for item in operand.items for each in registers_of(item)]
    if isinstance(operand, Pair):
        return registers_of(operand.first) + registers_of(operand.second)
    return [operand] if isinstance(operand, Register) else []

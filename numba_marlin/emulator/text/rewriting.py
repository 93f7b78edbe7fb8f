"""Statements for which the machine has no instruction, as others that it has.

Indexed branches, moves of vectors, elements of an array by a register, accesses to a variable by
its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba_marlin.emulator.errors import UnknownInstruction
from numba_marlin.emulator.text.program import (
    TYPE_BITS,
    Address,
    Immediate,
    Register,
    Sink,
    Symbol,
    Vector,
)

if TYPE_CHECKING:
    from numba_marlin.emulator.text.body import Body, Statement

ACCESSES = {"ld", "st", "atom", "red"}
SPACES = (".param", ".global", ".const", ".shared", ".local")
APART = {"shared", "local"}  # spaces where an address is another number than the generic one


def in_its_space(body: Body, opcode: str, root: str, operands: tuple) -> str:
    """An access without a state space, to an address that is a variable's name, is one to the space
    that the variable is declared in: the ISA leaves it open, ptxas (13.5) has LDS and STL there."""
    for operand in operands:
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            variable = body.variable(operand.base)
            if variable and variable.space in APART and not any(s in opcode for s in SPACES):
                return f"{root}.{variable.space}{opcode[len(root) :]}"
    return opcode


def move(body: Body, where: Statement, kind: str, operands: tuple) -> None:
    """mov of vectors, element by element; all are read before one is written."""
    if (
        len(operands) != 2
        or not all(isinstance(each, Vector) for each in operands)
        or len(operands[0].items) != len(operands[1].items)
    ):
        body.p.fail("mov needs two vectors of one length", body.at(where.start))
    target, source = (list(each.items) for each in operands)
    if set(target) & set(source) - {Sink()}:
        for number, each in enumerate(source):
            source[number] = body.scratch(f"{kind}{number}", max(16, TYPE_BITS[kind]))
            body.emit(where, f"mov.{kind}", (source[number], each))
    for d, a in zip(target, source):
        if not isinstance(d, Sink):
            body.emit(where, f"mov.{kind}", (d, a))


def indexed(body: Body, where: Statement, array: Symbol, index: Register, size: int) -> Register:
    """A register with the address of ``array[index]``."""
    place = body.scratch(f"place{len(body.instructions)}", 64)
    body.emit(where, "mov.u64", (place, array))
    opcode = "mad.lo.u64" if index.width == 64 else "mad.wide.u32"
    body.emit(where, opcode, (place, index, Immediate(size), place))
    return place


def indexed_branch(body: Body, where: Statement) -> None:
    """brx.idx index, targets: one comparison and branch a target, the last one without
    asking."""
    p = body.p
    index = body.operands.one()
    p.expect(",")
    token = p.next()
    p.expect(";")
    if token.text not in body.tables:
        p.fail(
            f"brx.idx must name a .branchtargets list before it, not {token.text}",
            token,
            UnknownInstruction,
        )
    end = body.skip(where) if where.guard is not None else ""
    plain = where._replace(guard=None, negated=False)
    predicate = body.scratch_predicate()
    targets = body.tables[token.text]
    for number, target in enumerate(targets[:-1]):
        body.emit(plain, "setp.eq.u32", (predicate, index, Immediate(number)))
        body.emit(plain._replace(guard=predicate), "bra", (), target)
    body.emit(plain, "bra", (), targets[-1])
    if end:
        body.scope.labels[end] = len(body.instructions)

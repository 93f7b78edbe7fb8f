"""What each opcode does: one small handler per family, next to the PTX ISA section it follows.

A handler is called once per instruction before a run, ``handler(ins, machine)``, checks modifiers
and operands, and returns ``step(lanes)``, which executes it for a set of lanes. Registering is all
it takes to add an opcode:

    @instruction("lop3")
    def lop3(ins, m): ...

Keys are prefixes of opcodes at a dot; the longest one that fits wins. A new module joins FAMILIES.
Handlers may import every group of the emulator but ``scheduling``, and ``layout`` for fragment
maps.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from numba_marlin.emulator.errors import PtxSyntaxError, UnknownInstruction
from numba_marlin.emulator.text.program import TYPE_BITS, Instruction

HANDLERS: dict[str, Callable] = {}


def instruction(*roots: str):
    """Register a handler for opcodes that start with one of ``roots``."""

    def register(handler: Callable) -> Callable:
        for root in roots:
            HANDLERS[root] = handler
        return handler

    return register


def root_of(opcode: str) -> str | None:
    """The registry key that ``opcode`` falls under, or None."""
    parts = opcode.split(".")
    for length in range(len(parts), 0, -1):
        root = ".".join(parts[:length])
        if root in HANDLERS:
            return root
    return None


def unsupported(ins: Instruction, reason: str) -> UnknownInstruction:
    return UnknownInstruction(f"{ins.opcode}: {reason}", line=ins.line, text=ins.text)


def allow(ins: Instruction, *modifiers: str) -> None:
    """Raise UnknownInstruction if ``ins`` has a modifier that is neither here nor a type."""
    for modifier in ins.modifiers:
        if modifier not in modifiers and modifier not in TYPE_BITS:
            raise unsupported(ins, f"modifier .{modifier} is not implemented")


def refuse(ins: Instruction, kind: str, *modifiers: str) -> None:
    """Raise UnknownInstruction if ``ins`` has one of ``modifiers``, which its opcode takes but not
    for type ``kind``."""
    for modifier in modifiers:
        if modifier in ins.modifiers:
            raise unsupported(ins, f"modifier .{modifier} is not defined for {kind}")


def operands(ins: Instruction, *counts: int) -> tuple:
    """The operands, if there are as many as one of ``counts``."""
    if len(ins.operands) not in counts:
        wanted = " or ".join(str(c) for c in counts)
        raise PtxSyntaxError(
            f"{ins.opcode} takes {wanted} operands, not {len(ins.operands)}",
            line=ins.line,
            text=ins.text,
        )
    return ins.operands


def type_of(ins: Instruction, *allowed: str) -> str:
    """The single type of ``ins``; must be one of ``allowed``, if any are given."""
    types = ins.types
    if len(types) != 1 or (allowed and types[0] not in allowed):
        raise unsupported(
            ins,
            f"type {'.'.join(types) or '(none)'} is not one of {', '.join(allowed) or 'the types'}",
        )
    return types[0]


FAMILIES = (
    "async_copy",
    "atomics",
    "bits",
    "bulk_copy",
    "comparison",
    "control",
    "convert",
    "dot",
    "extended",
    "floating",
    "half",
    "integer",
    "load_store",
    "mbarrier",
    "move",
    "system_calls",
    "tcgen05",
    "tensor",
    "video",
    "warp",
    "wgmma",
    "wmma",
)
"""Modules of this folder; importing one registers its handlers."""

for _family in FAMILIES:
    import_module(f"{__name__}.{_family}")

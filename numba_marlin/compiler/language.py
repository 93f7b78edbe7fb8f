"""The kernel language as one compiler speaks it, and how instructions enter it: what both compilers
share.

A compiler module makes one ``Language``, once a process. The ``ptx`` in it is a module object,
because Numba resolves attributes of modules at compile time, and of few other things.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from numba_marlin.isa import Instruction, load_instructions

SHARED_SYMBOL, SHARED_ALIGNMENT = "dynamic_shared", 128
"""What a module calls the dynamic shared memory; aligned for the widest copies and swizzles."""

OPAQUE_WORD = ("mov.b32 $0, $1;", "=r,r")
"""Inline assembly that hides where a word comes from: knowing that an address was 64 bits wide
once, LLVM computes with 64 bits ever after."""


@dataclass(frozen=True)
class Language:
    """See ``numba_marlin.kernels.language.definition`` for what the fields mean to a kernel. compiler: its
    name."""

    compiler: str
    cuda: Any
    ptx: ModuleType
    device: Callable
    shared_base: Callable
    uint16: Any
    uint32: Any
    uint64: Any
    int32: Any
    int64: Any
    float32: Any


def ptx_module(
    make_intrinsic: Callable[..., Any], instructions: dict[str, Instruction] | None = None
) -> ModuleType:
    """A module with an attribute for every instruction: ``make_intrinsic(instruction)``, or, for an
    instruction with immediates, a function of them that returns ``make_intrinsic(instruction,
    **immediates)`` (the same object for the same immediates).
    """
    module = ModuleType("ptx", "Inline PTX instructions, one for every file of ptx/.")
    for name, instruction in (
        load_instructions() if instructions is None else instructions
    ).items():
        setattr(
            module,
            name,
            (
                _with_immediates(make_intrinsic, instruction)
                if instruction.immediates
                else make_intrinsic(instruction)
            ),
        )
    return module


def _with_immediates(make_intrinsic, instruction):
    @cache
    def specialise(**immediates):
        return make_intrinsic(instruction, **immediates)

    specialise.__name__ = instruction.name
    specialise.__doc__ = f"{instruction.summary} Immediates: {', '.join(instruction.immediates)}."
    return specialise


def operand_signature(
    instruction: Instruction, immediates: tuple[str, ...] = ()
) -> inspect.Signature:
    """(typingctx, operand names ..., names of ``immediates`` ...): numba binds the arguments of a
    call by the signature of the function that types it."""
    names = ["typingctx", *(operand.name for operand in instruction.inputs), *immediates]
    return inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    )


def check_operands(instruction: Instruction, kinds) -> None:
    """TypeError, naming instruction and operand, unless the call fits the declaration.

    kinds: for every argument its kind, "integer", "float" or anything else, or a list of kinds for
    a tuple. Integers convert to any declared type; floats only to f32, so that a forgotten cast of
    a float to an address or a register's bits is not silent.
    """
    if len(kinds) != len(instruction.inputs):
        raise TypeError(
            f"ptx.{instruction.name} takes {len(instruction.inputs)} operands "
            f"({', '.join(o.name for o in instruction.inputs)}), got {len(kinds)}"
        )
    for operand, kind in zip(instruction.inputs, kinds):
        width = len(kind) if isinstance(kind, list) else 1
        if width != operand.width or isinstance(kind, list) != (operand.width > 1):
            expected = (
                f"a tuple of {operand.width} {operand.type}"
                if operand.width > 1
                else f"one {operand.type}"
            )
            raise TypeError(
                f"ptx.{instruction.name}: operand {operand.name!r} must be {expected}, "
                f"got {f'a tuple of {width}' if isinstance(kind, list) else kind}"
            )
        for element in kind if isinstance(kind, list) else [kind]:
            if element != "integer" and not (element == "float" and operand.type == "f32"):
                raise TypeError(
                    f"ptx.{instruction.name}: operand {operand.name!r} is {operand.type}, got"
                    f" {element}"
                )

"""The PTX instructions that kernels use and Numba does not offer. Each file of ``ptx/*.ptx``
declares one instruction.

To add an instruction, add a file. A file consists of a header of ``//`` lines and a body:

    // Prose: what the instruction does, in one or two lines.
    // name: ld_shared_v2_b32               must equal the file's name
    // outputs: d: u32 x2                   name: type [xN], separated by commas; omit the line if
                                            there are no outputs
    // inout: d: f32 x n/2                  instead of outputs: an operand that is read and written
                                            in place; it is the first argument and the result
    // inputs: address: u32                 same form as outputs
    // immediates: n                        names of compile-time integers; omit the line if there
                                            are none
    // effects: shared.read                 "none", or words of EFFECTS, separated by commas
    // arch: sm_50                          the lowest architecture that supports the instruction
    // isa: https://...                     the section of the PTX ISA that describes it

    ld.shared.v2.b32 {<d0>, <d1>}, [<address>];

Placeholders are written in angle brackets, which PTX does not use in this form. ``<address>`` is a
scalar operand or an immediate; ``<d0>`` and ``<d1>`` are the elements of a vector; ``<d...>`` is
all of its elements, separated by commas. A line that contains ``<d*>`` is repeated for every
element. A width may be an immediate (``x width``) or a quotient (``x n/2``). Operand names contain
no digits. The body must use every operand and every element, and may use nothing that is not
declared. A file that breaks these rules raises an ``InstructionError`` whose message begins with
``file:line:``.

The types are u16, u32, i32, u64 and f32. In Python, a vector is a tuple and a single output is a
scalar. An instruction whose effects are "none" (or only "convergent") is pure: compilers may move,
merge or remove it. Every other instruction stays in its position and orders the memory accesses
around it.

This package imports the standard library only. ``numba_marlin.compiler`` generates from an
``Instruction`` what kernels call, in a way that depends on the compiler.
"""

import importlib

# public name -> module. Modules are loaded on first use, because a kernel that comes from the disk
# cache needs only ``directory``.
_EXPORTS = dict.fromkeys(
    ("EFFECTS", "TYPES", "Instruction", "InstructionError", "Operand"), "instruction"
) | {
    "load_instructions": "library",
    "parse_instruction": "parsing",
    "ptx_directory": "directory",
}

__all__ = list(_EXPORTS)


def __getattr__(name):
    if name == "instructions":  # read from disk on first use
        return __getattr__("load_instructions")()
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)

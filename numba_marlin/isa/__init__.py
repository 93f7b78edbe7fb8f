"""The instructions that kernels use beyond what Numba offers, read from ``ptx/*.ptx``: one file,
one instruction.

Adding an instruction means adding a file. A file is a header of ``//`` lines and a body:

    // Prose: what it does, in a line or two.
    // name: ld_shared_v2_b32               must equal the file's name
    // outputs: d: u32 x2                   name: type [xN], separated by commas; leave the line out
                                            if there are none
    // inout: d: f32 x n/2                  instead of outputs: an operand read and written in
                                            place, the first argument and the result
    // inputs: address: u32                 as outputs
    // immediates: n                        names of compile-time integers; leave out if there are
                                            none
    // effects: shared.read                 "none", or words of EFFECTS separated by commas
    // arch: sm_50                          the least architecture that has it
    // isa: https://...                     its section in the PTX ISA

    ld.shared.v2.b32 {<d0>, <d1>}, [<address>];

Placeholders stand in angle brackets, which PTX uses for nothing of that form: ``<address>`` for a
scalar operand or an immediate, ``<d0>``, ``<d1>`` for the elements of a vector, ``<d...>`` for all
of them with commas between; a line with ``<d*>`` stands once for every element. A width may be an
immediate or a quotient, ``x width``, ``x n/2``. Operand names hold no digits. Every operand and
every element must occur in the body and nothing undeclared may: a mistake is an
``InstructionError`` that begins with ``file:line:``.

Types: u16 u32 i32 u64 f32. A vector is a tuple at the Python level, a single output a scalar. An
instruction whose effects are "none" (or only "convergent") is pure: compilers may move, merge or
drop it. Every other one stays where it stands and orders memory accesses around it.

The room imports the standard library only. Turning an ``Instruction`` into something a kernel can
call differs from compiler to compiler and happens, mechanically, in ``numba_marlin.compiler``.
"""

import importlib

# public name -> module; loaded on first use, because a kernel out of the disk cache needs the
# directory alone
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

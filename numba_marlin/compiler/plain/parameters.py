"""The types that a kernel's parameters have in either compiler."""

from __future__ import annotations

from numba_marlin.kernels.language.arrays import array_type


def type_of_parameter(types, address, kind: str):
    """types: the compiler's; address: its type of addresses; kind: of a KernelDefinition's
    parameter."""
    found = array_type(kind)
    if found is not None:
        return types.Array(getattr(types, found[0]), found[1], "C")
    return types.int32 if kind == "i32" else address

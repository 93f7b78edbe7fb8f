"""The types of a kernel's parameters, for both compilers."""

from __future__ import annotations

from collections.abc import Callable

from numba_marlin.kernels.language.arrays import array_type


def parameter_types(types, address, plain: bool) -> Callable:
    """Return a function from the kind of a KernelDefinition's parameter to its type. types: the
    compiler's; address: the language's type of 64 bits, which plain kernels do not use."""

    def kinds(kind: str):
        found = array_type(kind)
        if found is not None:
            return types.Array(getattr(types, found[0]), found[1], "C")
        return types.int32 if kind == "i32" else types.uint64 if plain else address

    return kinds

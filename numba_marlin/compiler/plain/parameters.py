"""The types that a kernel's parameters have in either compiler."""

from __future__ import annotations

from collections.abc import Callable

from numba_marlin.kernels.language.arrays import array_type


def parameter_types(types, address, plain: bool) -> Callable:
    """kind of a KernelDefinition's parameter -> its type. types: the compiler's; address: the
    language's type of 64 bits, which a plain kernel does without."""

    def kinds(kind: str):
        found = array_type(kind)
        if found is not None:
            return types.Array(getattr(types, found[0]), found[1], "C")
        return types.int32 if kind == "i32" else types.uint64 if plain else address

    return kinds

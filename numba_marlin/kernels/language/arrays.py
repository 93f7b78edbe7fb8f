"""Parameters that are arrays, as a plain ``@cuda.jit`` kernel has them, in the form in which Numba
passes them to a kernel.

A parameter of the type ``"float16[:, ::1]"`` (Numba's spelling of a C-contiguous array of two
dimensions) is passed as words of 64 bits: two pointers that kernels do not use, the number of
elements, the bytes of one, the address, then the lengths and the distances in bytes of the
dimensions. (numba-cuda's array structure, flattened; what other compilers print is brought into
the same form.)
"""

from __future__ import annotations

import math
import re

ITEM_BYTES = {"float16": 2, "int32": 4, "float32": 4}
_TYPE = re.compile(r"(\w+)\[((?::, )*)::1\]$")


def array_type(kind: str) -> tuple[str, int] | None:
    """(type of its elements, dimensions) of a parameter type; None if that is no array."""
    match = _TYPE.match(kind)
    return (match[1], match[2].count(":") + 1) if match and match[1] in ITEM_BYTES else None


def flat_parameters(parameters: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """What a launch passes, (name, type) in order: the words of arrays one by one, each under its
    own name; the address has the parameter's."""
    flat = []
    for name, kind in parameters:
        found = array_type(kind)
        if found is None:
            flat.append((name, kind))
            continue
        dimensions = range(found[1])
        words = [f"{name}.{each}" for each in ("meminfo", "parent", "items", "item_bytes")]
        words += [name, *(f"{name}.length{i}" for i in dimensions)]
        words += [f"{name}.distance{i}" for i in dimensions]
        flat += [(word, "u64") for word in words]
    return tuple(flat)


def array_words(kind: str, address: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The words of a C-contiguous array. ValueError unless the shape has its dimensions."""
    element, dimensions = array_type(kind)
    if len(shape) != dimensions:
        raise ValueError(f"shape {shape} of an array of the type {kind}")
    item = ITEM_BYTES[element]
    distances = tuple(item * math.prod(shape[i + 1 :]) for i in range(dimensions))
    return (0, 0, math.prod(shape), item, address, *shape, *distances)

"""The check of an array and an index, for both compilers."""

from __future__ import annotations


def check_place(name: str, types, array, index) -> None:
    """Raise TypeError, which names the function, unless ``index`` is an int or a tuple of ints, one
    for each dimension of ``array``. types: the compiler's."""
    if not isinstance(array, types.Array):
        raise TypeError(f"ptx.{name} takes an array and an index, got {array}")
    kinds = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(kinds) != array.ndim or not all(isinstance(kind, types.Integer) for kind in kinds):
        raise TypeError(
            f"ptx.{name}: an array of {array.ndim} dimensions needs as many indices, all integers,"
            f" got {index}"
        )

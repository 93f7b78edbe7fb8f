"""Arguments of a kernel as they are written on a command line, in the syntax of
``cli.machine.SYNTAX``. A ValueError says what is wrong with one.

An ``Argument`` holds the bytes that the kernel is given: those of a scalar, a structure, a tensor
map, or the address of ``array``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

TYPES = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    **{
        f"{sign}{bits}": np.dtype(f"{sign}{bits // 8}") for sign in "iu" for bits in (8, 16, 32, 64)
    },
}
_ARRAY = re.compile(r"(\w+)\[(\d+(?:x\d+)*)\]$")
_NAME = re.compile(r"([A-Za-z_]\w*)=(.*)$", re.DOTALL)
LARGEST = 100  # of random integers, exclusive


@dataclass(frozen=True)
class Argument:
    """``data``: the bytes that the kernel is given, None if ``array`` is to be mapped and its
    address given. ``source``, ``save``: the files that it was read from and is written to. ``box``
    and ``swizzle``: those of a tensor map."""

    name: str
    data: bytes | None = None
    array: np.ndarray | None = None
    written: bool = False
    save: Path | None = None
    source: Path | None = None
    box: tuple[int, ...] | None = None
    swizzle: int = 0


def parse(text: str, number: int, random: np.random.Generator) -> Argument:
    """Parse argument ``number`` of a kernel, counted from 0."""
    found = _NAME.match(text)
    name, text = (found[1], found[2]) if found else (f"argument{number}", text)
    kind, colon, rest = text.partition(":")
    if text == "null":
        return Argument(name, bytes(8))
    if kind == "hex" and colon:
        try:
            return Argument(name, bytes.fromhex(rest))
        except ValueError:
            raise ValueError(
                f"argument {number}: {rest!r} must be hexadecimal digits, two per byte"
            ) from None
    if kind in TYPES and colon:
        return Argument(name, _number(kind, rest, number))
    if kind == "tensormap" and colon:
        spec, *sizes = rest.split(",")
        held = parse(spec, number, random)
        try:
            box, swizzle = sizes if len(sizes) == 2 else (*sizes, "0")
            if held.array is None or held.box is not None:
                raise ValueError
            return replace(
                held,
                name=name,
                box=tuple(int(size) for size in box.split("x")),
                swizzle=int(swizzle),
            )
        except ValueError:
            raise ValueError(
                f"argument {number}: {text!r} must be tensormap:ARRAY,BOX,SWIZZLE such as"
                " tensormap:in:f16[128x64],64x64,128"
            ) from None
    if kind in ("in", "out", "inout") and colon:
        return _array(name, kind, rest, number, random)
    raise ValueError(
        f"argument {number}: {text!r} must be a number such as i32:5, an array such as in:x.npy or"
        " out:f32[64], null, hex: or tensormap: (see numba-marlin machine --help)"
    )


def _number(kind: str, text: str, number: int) -> bytes:
    dtype = np.dtype(TYPES[kind])
    try:
        if kind[0] == "f":
            return np.array(float(text)).astype(dtype).tobytes()
        value = int(text, 0)
    except ValueError:
        raise ValueError(f"argument {number}: {text!r} is no number") from None
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        raise ValueError(
            f"argument {number}: {value} must be between {limits.min} and {limits.max} to be of"
            f" type {kind}"
        )
    return np.array(value, dtype).tobytes()


def _loaded(file: Path, number: int) -> np.ndarray:
    """Return a copy of the file's array as a kernel reads it: in native byte order, one row after
    the other."""
    from numba_marlin.cli.weights import load_array

    array = load_array(file, f"argument {number}:")
    if array.dtype.kind in "SUMm":
        raise ValueError(
            f"argument {number}: {file} holds {array.dtype}, must be numbers, or structures of them"
        )
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def _made(
    zeros: bool, shape: tuple[int, ...], dtype: np.dtype, random: np.random.Generator
) -> np.ndarray:
    if zeros:
        return np.zeros(shape, dtype)
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype)
    least = 0 if dtype.kind == "u" else -LARGEST + 1
    return random.integers(least, LARGEST, shape).astype(dtype)


def _array(name: str, kind: str, text: str, number: int, random: np.random.Generator) -> Argument:
    source, colon, target = text.partition(":")
    save = Path(target) if colon else None
    if save is not None and (kind == "in" or save.suffix != ".npy"):
        raise ValueError(
            f"argument {number}: only out and inout are saved, and in .npy files, not {target!r}"
        )
    shaped = _ARRAY.match(source)
    if shaped:
        if shaped[1] not in TYPES:
            raise ValueError(
                f"argument {number}: type {shaped[1]!r} must be one of {', '.join(TYPES)}"
            )
        shape = tuple(int(size) for size in shaped[2].split("x"))
        try:
            array = _made(kind == "out", shape, np.dtype(TYPES[shaped[1]]), random)
        except (MemoryError, ValueError, OverflowError) as error:
            raise ValueError(f"argument {number}: {source} is too large ({error})") from error
    elif source.endswith(".npy") and kind != "out":
        array = _loaded(Path(source), number)
    else:
        raise ValueError(
            f"argument {number}: {source!r} must be an array such as f32[1024] or f16[64x32]"
            + (" or a .npy file" if kind != "out" else "")
        )
    if kind == "in":
        array.flags.writeable = False
    return Argument(name, None, array, kind != "in", save, None if shaped else Path(source))


def check_files(arguments: list[Argument]) -> None:
    """Raises ValueError for a result that cannot be saved, or that would overwrite another result
    or a file that an argument was read from."""
    from numba_marlin.cli.pages import check

    taken = {each.source.resolve() for each in arguments if each.source is not None}
    for number, each in enumerate(arguments):
        if each.save is None:
            continue
        check(f"argument {number}:", str(each.save), (".npy",))
        if each.save.resolve() in taken:
            raise ValueError(f"argument {number}: the result would take the place of {each.save}")
        taken.add(each.save.resolve())

"""Codes into Marlin's words and back by the kernels of ``kernels.packing``: bound here, and run on
a GPU. ``api.packing`` asks for it when a weight is to be, or is, on a device.

    pack_codes(codes, bits, place, library) -> int32 [k/16, n_packed * bits/2] on the device
    unpack_codes(qweight, bits, n) -> uint8 [k, n] on the host

The bytes are those of ``formats.marlin``; both wait until they are there.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from numba_marlin import compiler as compiler_room
from numba_marlin.execution import arrays, driver, gpu
from numba_marlin.execution.binding import OPERAND, RESULT, Binding, Buffer
from numba_marlin.execution.residence import empty
from numba_marlin.formats.marlin import packed_columns
from numba_marlin.formats.types import SUPPORTED_BITS
from numba_marlin.kernels.packing import PACK, READ_WORDS, UNPACK, CodeBits, FileWords

DEFINITIONS = {each.name: each for each in (PACK, UNPACK, READ_WORDS)}
_WRITTEN = {PACK.name: "words", UNPACK.name: "codes", READ_WORDS.name: "codes"}
_ORDERS = {
    ("k", "k", (0,)): "along_k",
    ("k", "n", (0,)): "transposed",
    ("n", "k", (0, 2, 4, 6, 1, 3, 5, 7)): "interleaved",
}
"""(along, first, order) of a ``streams.Stream`` -> the order of FileWords."""


@functools.cache
def _compiled(name: str, config: CodeBits, target: str, compiler: str):
    return compiler_room.build(DEFINITIONS[name], config, target, compiler)


def binding(
    definition,
    config: CodeBits,
    k: int,
    n: int,
    target: str,
    given: dict[str, np.ndarray] | None = None,
    compiler: str = compiler_room.COMPILERS[0],
) -> Binding:
    """The launch of one of DEFINITIONS for a weight [k, n]. given: {parameter: array} that it
    reads, for the PTX machine: uint8 codes [k, n], int32 words and rows."""
    held = {name: np.ascontiguousarray(each) for name, each in (given or {}).items()}
    buffers = {
        name: Buffer(
            RESULT if name == _WRITTEN[definition.name] else OPERAND,
            shape,
            "int32",
            array=held[name].view(np.int32).reshape(shape) if name in held else None,
        )
        for name, shape in definition.shapes(config, 1, n, k).items()
    }
    return Binding(
        definition,
        config,
        _compiled(definition.name, config, target, compiler),
        definition.grid(config, 1, n, k, 0),
        (1, n, k, k),
        buffers,
    )


def enqueue(
    definition, config: CodeBits, k: int, n: int, addresses: dict, ordinal: int, stream: int
) -> None:
    """Enqueue one of DEFINITIONS on a device's stream. addresses: {parameter: address}."""
    launch = binding(definition, config, k, n, driver.describe(ordinal).target)
    launcher = gpu.loaded(launch, ordinal)
    launcher(launch.grid, gpu.arguments(launch, addresses, ordinal), stream)


def file_words(packing: Any, bits: int) -> FileWords | None:
    """How READ_WORDS reads codes of a file's packing (``formats.streams``); None if it cannot."""
    key = tuple(getattr(packing, name, None) for name in ("along", "first", "order"))
    order = _ORDERS.get(key) if getattr(packing, "word", None) == "int32" else None
    if order is None or bits not in SUPPORTED_BITS or (order == "interleaved" and bits != 4):
        return None
    return FileWords(bits, order)


def pack_codes(codes: np.ndarray, bits: int, ordinal: int, library: str | None = None):
    """uint8 [k, n], each below 2**bits (not checked here) -> int32 [k/16, n_packed * bits/2], an
    array of ``library`` (as in ``Residence.to``) on a device; k % 16 == 0, n % 8 == 0."""
    k, n = codes.shape
    words = empty((k // 16, packed_columns(n) * bits // 2), "int32", ordinal, library)
    view, there = arrays.view("qweight", words), driver.DeviceArray.from_host(codes, ordinal)
    addresses = {"codes": there.address, "words": view.address}
    enqueue(PACK, CodeBits(bits), k, n, addresses, ordinal, view.stream)
    driver.synchronize(ordinal, view.stream)
    return words


def pack_words(
    words: np.ndarray,
    form: FileWords,
    k: int,
    n: int,
    ordinal: int,
    rows: np.ndarray | None = None,
    library: str | None = None,
):
    """``pack_codes`` of the codes in a file's words, which are uploaded as they are. rows: the
    file's row that each row of the result holds; None: the same."""
    place = np.arange(k, dtype=np.int32)
    if rows is not None:
        place[rows] = np.arange(k, dtype=np.int32)
    qweight = empty((k // 16, packed_columns(n) * form.bits // 2), "int32", ordinal, library)
    view, codes = arrays.view("qweight", qweight), driver.DeviceArray((k, n), np.uint8, ordinal)
    read = {
        "words": driver.DeviceArray.from_host(words, ordinal),
        "rows": driver.DeviceArray.from_host(place, ordinal),
    }
    addresses = {name: each.address for name, each in read.items()} | {"codes": codes.address}
    enqueue(READ_WORDS, form, k, n, addresses, ordinal, view.stream)
    addresses = {"codes": codes.address, "words": view.address}
    enqueue(PACK, CodeBits(form.bits), k, n, addresses, ordinal, view.stream)
    driver.synchronize(ordinal, view.stream)
    return qweight


def unpack_codes(qweight, bits: int, n: int) -> np.ndarray:
    """int32 [k/16, n_packed * bits/2], contiguous on a device -> uint8 [k, n] on the host."""
    view = arrays.view("qweight", qweight)
    k = 16 * view.shape[0]
    codes = driver.DeviceArray((k, n), np.uint8, view.device)
    addresses = {"codes": codes.address, "words": view.address}
    enqueue(UNPACK, CodeBits(bits), k, n, addresses, view.device, view.stream)
    driver.synchronize(view.device, view.stream)
    return codes.to_host()

"""Codes into Marlin's words and back by the kernels of ``kernels.packing``: bound here, and run on
a GPU. ``api.packing`` asks for it when a weight is to be, or is, on a device.

    pack_codes(codes, bits, place, library) -> int32 [k/16, n_packed * bits/2] on the device
    unpack_codes(qweight, bits, n) -> uint8 [k, n] on the host

The bytes are those of ``formats.marlin``; both wait until they are there.
"""

from __future__ import annotations

import functools

import numpy as np

from numba_marlin import compiler as compiler_room
from numba_marlin.execution import arrays, driver, gpu
from numba_marlin.execution.binding import OPERAND, RESULT, Binding, Buffer
from numba_marlin.execution.residence import empty
from numba_marlin.formats.marlin import packed_columns
from numba_marlin.kernels.packing import PACK, UNPACK, CodeBits


@functools.cache
def _compiled(name: str, config: CodeBits, target: str, compiler: str):
    definition = next(each for each in (PACK, UNPACK) if each.name == name)
    return compiler_room.build(definition, config, target, compiler)


def binding(
    definition, bits: int, k: int, n: int, target: str, given=None, compiler: str | None = None
) -> Binding:
    """The launch of PACK or UNPACK for a weight [k, n]. given: the array that it reads, for the
    PTX machine: uint8 codes [k, n], or int32 words."""
    config, written = CodeBits(bits), "words" if definition is PACK else "codes"
    buffers = {
        name: Buffer(RESULT if name == written else OPERAND, shape, "int32")
        for name, shape in definition.shapes(config, 1, n, k).items()
    }
    if given is not None:
        read = next(name for name in buffers if name != written)
        held = np.ascontiguousarray(given).view(np.int32)
        buffers[read] = Buffer(OPERAND, buffers[read].shape, "int32", array=held)
    return Binding(
        definition,
        config,
        _compiled(definition.name, config, target, compiler or compiler_room.COMPILERS[0]),
        definition.grid(config, 1, n, k, 0),
        (1, n, k, k),
        buffers,
    )


def enqueue(definition, bits: int, k: int, n: int, addresses: dict, ordinal: int, stream: int):
    """Enqueue PACK or UNPACK on a device's stream. addresses: of "codes" and "words"."""
    launch = binding(definition, bits, k, n, driver.describe(ordinal).target)
    launcher = gpu.loaded(launch, ordinal)
    launcher(launch.grid, gpu.arguments(launch, addresses, ordinal), stream)


def pack_codes(codes: np.ndarray, bits: int, ordinal: int, library: str | None = None):
    """uint8 [k, n], each below 2**bits (not checked here) -> int32 [k/16, n_packed * bits/2], an
    array of ``library`` (as in ``Residence.to``) on a device; k % 16 == 0, n % 8 == 0."""
    k, n = codes.shape
    words = empty((k // 16, packed_columns(n) * bits // 2), "int32", ordinal, library)
    view, there = arrays.view("qweight", words), driver.DeviceArray.from_host(codes, ordinal)
    addresses = {"codes": there.address, "words": view.address}
    enqueue(PACK, bits, k, n, addresses, ordinal, view.stream)
    driver.synchronize(ordinal, view.stream)
    return words


def unpack_codes(qweight, bits: int, n: int) -> np.ndarray:
    """int32 [k/16, n_packed * bits/2], contiguous on a device -> uint8 [k, n] on the host."""
    view = arrays.view("qweight", qweight)
    k = 16 * view.shape[0]
    codes = driver.DeviceArray((k, n), np.uint8, view.device)
    addresses = {"codes": codes.address, "words": view.address}
    enqueue(UNPACK, bits, k, n, addresses, view.device, view.stream)
    driver.synchronize(view.device, view.stream)
    return codes.to_host()

"""Where bulk copies find bytes in global memory, and where they put them: plain spans, and boxes of
tensors.

Both ways out are a pair of functions, ``fetch() -> bytes`` and ``put(bytes)``, called when the copy
happens; everything that can be wrong with the addresses is reported when it is issued.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import MachineError, Misaligned, OutOfBounds, ReadOnlyWrite
from numba_marlin.emulator.state.memory import WINDOWS
from numba_marlin.layout import tensor_map as maps

MAP_ALIGNMENT = 64


def plain(ins, memory, lane, address: int, nbytes: int, writes: bool):
    """(fetch, put) of ``nbytes`` at a global ``address``."""
    if not nbytes:
        return lambda: np.empty(0, np.uint8), lambda data: None
    span = window(ins, memory, lane, address, nbytes, writes)

    def put(data):
        span[...] = data

    return lambda: span, put


def window(ins, memory, lane, address: int, nbytes: int, writes: bool) -> np.ndarray:
    """The bytes from ``address`` on, ``nbytes`` of them, all of one buffer."""
    buffer = memory.find(address)
    if buffer is None or address + nbytes > buffer.end:
        detail = buffer.describe(address) if buffer else memory.describe(address)
        raise lane.fault(OutOfBounds, f"{nbytes} bytes at {detail} lie in no buffer", ins)
    if writes and buffer.readonly:
        raise lane.fault(
            ReadOnlyWrite, f"store to {buffer.describe(address)}, which is read-only", ins
        )
    return buffer.data[address - buffer.address : address - buffer.address + nbytes]


def map_at(ins, m, lane, address: int) -> tuple[maps.TensorMap, int]:
    """The tensor map at a generic ``address``, of a parameter or in global memory, and the address
    of its tensor."""
    if address % MAP_ALIGNMENT:
        raise lane.fault(
            Misaligned,
            f"the tensor map at {address:#x} must be at a multiple of {MAP_ALIGNMENT}",
            ins,
        )
    if address + maps.ENCODED_BYTES <= len(m.parameters):
        encoded = m.parameters[address : address + maps.ENCODED_BYTES]
    elif address >= min(WINDOWS.values()):
        raise lane.fault(
            OutOfBounds,
            f"the tensor map at {address:#x} must be a parameter or lie in global memory",
            ins,
        )
    else:
        encoded = window(ins, m.memory.globals, lane, address, maps.ENCODED_BYTES, writes=False)
    try:
        return maps.decode(encoded.tobytes())
    except ValueError as reason:
        raise lane.fault(
            MachineError, f"there is no tensor map at {address:#x}: {reason}", ins
        ) from None


def box_of(ins, m, lane, map_address: int, coordinates: tuple, start: int, writes: bool):
    """(bytes in shared memory, fetch, put, (global addresses of its rows, bytes of each)) of the
    box at ``coordinates``, in NumPy's order, that lies at ``start`` of the shared array."""
    tensor_map, tensor = map_at(ins, m, lane, map_address)
    if len(coordinates) != len(tensor_map.shape):
        raise lane.fault(
            MachineError,
            f"{len(coordinates)} coordinates do not fit a tensor of shape {tensor_map.shape}",
            ins,
        )
    own = m.memory.shared
    shared = start % own.stride + own.base
    if shared % maps.SHARED_ALIGNMENT:
        raise lane.fault(
            Misaligned,
            f"shared address {shared:#x} of a box must be a multiple of {maps.SHARED_ALIGNMENT}",
            ins,
        )
    # the ISA does not say so, an H200 does: experiments/05_hardware
    if coordinates[-1] * tensor_map.element_bytes % maps.CHUNK_BYTES:
        raise lane.fault(
            Misaligned,
            f"element {coordinates[-1]} of a row must begin at a multiple of {maps.CHUNK_BYTES}"
            " bytes: else an illegal instruction on a GPU",
            ins,
        )
    # neither says the ISA this, nor that loads may and stores may not
    if writes and min(coordinates) < 0:
        raise lane.fault(
            OutOfBounds,
            f"a box at {tuple(coordinates)} cannot be stored, it begins before its tensor: an"
            " illegal instruction on a GPU",
            ins,
        )
    part, nbytes = maps.clip(tensor_map, coordinates, stored=writes), tensor_map.box_bytes
    if part.empty:
        return (
            nbytes,
            lambda: np.zeros(nbytes, np.uint8),
            lambda data: None,
            (np.zeros(1, np.int64), 0),
        )
    window(ins, m.memory.globals, lane, tensor + part.start, part.stop - part.start, writes)
    if m.memory.requests is not None:
        m.memory.announce(
            "bulk-write" if writes else "bulk-read",
            "global",
            ins,
            lane,
            tensor + maps.rows_of(part),
            part.counts[-1],
        )
    view = m.memory.globals.find(tensor + part.start)
    if tensor < view.address:
        raise lane.fault(
            OutOfBounds, f"the tensor map's address {tensor:#x} lies in no buffer", ins
        )
    data = view.data[tensor - view.address :]
    return (
        nbytes,
        lambda: maps.load_box(tensor_map, data, coordinates, shared),
        lambda values: maps.store_box(tensor_map, data, coordinates, shared, values),
        (tensor + part.start + rows_of(part), part.counts[-1]),
    )


def rows_of(part: maps.Clip) -> np.ndarray:
    """Where its rows begin, in bytes from its first."""
    found = np.zeros(1, np.int64)
    for count, stride in zip(part.counts[:-1], part.strides[:-1]):
        found = (found[:, None] + stride * np.arange(count)).reshape(-1)
    return found

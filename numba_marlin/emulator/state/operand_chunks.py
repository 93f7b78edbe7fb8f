"""Operands in shared memory that an instruction names by a descriptor: 16-byte chunks, read through
the asynchronous proxy."""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.state.block_memory import taken
from numba_marlin.emulator.state.lanes import Lanes
from numba_marlin.emulator.state.memory import Memory
from numba_marlin.emulator.text.program import Instruction

CHUNK = 16  # bytes
ALL_VALID = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


def readable_chunks(
    memory: Memory, ins: Instruction, lane: Lanes, addresses: np.ndarray, named: object
) -> np.ndarray:
    """Where chunks at shared ``addresses`` of the block of the one lane are in the shared array,
    counted in chunks: int of the same shape. They are inside of it, written, and visible to the
    asynchronous proxy, or it raises. ``named``: the descriptor, for messages.
    """
    own, proxy = memory.shared, memory.proxy
    offset = addresses - own.base
    if offset.min() < 0 or offset.max() + CHUNK > own.size:
        bad = int(offset[(offset < 0) | (offset + CHUNK > own.size)][0])
        raise lane.fault(
            OutOfBounds,
            f"{CHUNK} bytes at {own.describe(bad)}: the shared memory has {own.size} bytes"
            f" ({named})",
            ins,
        )
    index = (int(own.origin[lane.sel].flat[0]) + offset) // CHUNK
    unread = (taken(own.view(8, CHUNK // 8)[1], index) != ALL_VALID).any(axis=-1)
    for chunk in index[unread].tolist():
        memory.require_span_valid(ins, lane, chunk * CHUNK, (chunk + 1) * CHUNK)
    unseen = proxy.writer.reshape(-1, CHUNK)[index].any(axis=-1)
    for chunk in index[unseen].tolist():
        proxy.require(ins, lane, chunk * CHUNK, (chunk + 1) * CHUNK)
    return index


def bytes_at(memory: Memory, index: np.ndarray) -> np.ndarray:
    """The bytes of chunks: uint64 [*index.shape, 2]."""
    return taken(memory.shared.view(8, CHUNK // 8)[0], index)

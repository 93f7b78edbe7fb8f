"""tensormap.replace and tensormap.cp_fenceproxy: tensor maps that kernels change.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-tensormap-replace

Maps are of this package's own format (``layout.tensor_map``): the hardware's 128 bytes are opaque.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import MachineError
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.instructions.control import fence_of
from numba_marlin.emulator.instructions.load_store import SPACES, space_of
from numba_marlin.emulator.ordering.messages import SCOPES
from numba_marlin.layout import tensor_map as maps

WORDS = maps.ENCODED_BYTES // 8
PLAIN = {"global_address": "b64", "rank": "b32"}
BY_DIMENSION = {
    "box_dim": "b32",
    "global_dim": "b32",
    "global_stride": "b64",
    "element_stride": "b32",
}
IMMEDIATE = ("elemtype", "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode")
FIELDS = {**PLAIN, **BY_DIMENSION, **dict.fromkeys(IMMEDIATE, "b32")}


@instruction("tensormap.replace")
def replace(ins, m):
    """tensormap.replace.tile.field{.space}.b1024.type [addr]{, dimension}, new_val"""
    allow(ins, "tile", *FIELDS, "global", "shared::cta", "b1024")
    field = next((mod for mod in ins.modifiers if mod in FIELDS), "")
    spaces = tuple(mod for mod in ins.modifiers if mod in SPACES)
    if ins.modifiers != ("tile", field, *spaces, "b1024", FIELDS.get(field)):
        raise unsupported(ins, "is .tile, a field, {a space}, .b1024, and the field's type")
    given = list(operands(ins, 3 if field in BY_DIMENSION else 2))
    at, space = m.address(ins, given[0]), space_of(ins)
    dimension = m.immediate(ins, 1) if field in BY_DIMENSION else 0
    if field in IMMEDIATE:
        m.immediate(ins, 1)
    value = m.source(ins, given[-1], FIELDS[field])

    def step(lanes):
        where = at(lanes)
        words = m.memory.load(ins, lanes, space, where.copy(), 8, WORDS)
        values = np.broadcast_to(value[lanes.sel], lanes.shape)
        made = words.copy()
        for index in np.ndindex(*lanes.shape):
            try:
                encoded = maps.replaced(
                    words[index].tobytes(), field, int(values[index]), dimension
                )
            except ValueError as reason:
                raise lanes.fault(MachineError, f"the tensor map: {reason}", ins) from None
            made[index] = np.frombuffer(encoded, np.uint64)
        m.memory.store(ins, lanes, space, where, made)

    return step


@instruction("tensormap.cp_fenceproxy")
def copy(ins, m):
    """tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned
    [dst], [src], 128: a warp copies a map, and releases it to the tensor map proxy."""
    head, tail = ("global", "shared::cta", "tensormap::generic", "release"), ("sync", "aligned")
    allow(ins, *head, *SCOPES, *tail)
    if ins.modifiers[:4] != head or ins.modifiers[4] not in SCOPES or ins.modifiers[5:] != tail:
        raise unsupported(ins, f"is .{'.'.join(head)}, a scope, .{'.'.join(tail)}")
    target, origin, _ = operands(ins, 3)
    if m.immediate(ins, 2) != maps.ENCODED_BYTES:
        raise unsupported(ins, f"copies {maps.ENCODED_BYTES} bytes")
    to, source, release = m.address(ins, target), m.address(ins, origin), fence_of(ins, m)

    def step(lanes):
        lanes.require_whole_warps(ins, "tensormap.cp_fenceproxy")
        first = np.zeros(lanes.shape, bool)
        first.reshape(-1, 32)[:, 0] = True  # one lane of each warp copies
        one = lanes.narrow(first)
        there, here = (at(lanes)[first].reshape(one.shape) for at in (to, source))
        words = m.memory.load(ins, one, "shared", here, 8, WORDS)
        m.memory.store(ins, one, "global", there, words)
        release(lanes)

    return step

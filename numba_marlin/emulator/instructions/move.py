"""mov (with packing), cvta, isspacep.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.state.memory import (
    LOCAL_WINDOW,
    RANK_SHIFT,
    SHARED_WINDOW,
    WINDOW_BYTES,
    WINDOWS,
)
from numba_marlin.emulator.state.registers import UNSIGNED
from numba_marlin.emulator.text.program import TYPE_BITS, Vector


@instruction("mov")
def mov(ins, m):
    """#data-movement-and-conversion-instructions-mov, -mov-2: registers, constants, addresses,
    special registers, packing."""
    allow(ins)
    kind = type_of(ins)
    target, origin = operands(ins, 2)
    bits = TYPE_BITS[kind]
    if isinstance(target, Vector):
        width = bits // len(target.items)
        source = m.source(ins, origin, f"b{bits}")
        parts = [m.destination(ins, item, f"b{width}") for item in target.items]
        word = UNSIGNED[width]

        def step(lanes):
            s = lanes.sel
            value = np.asarray(source[s])
            for i, part in enumerate(parts):
                part[s] = (value >> value.dtype.type(i * width)).astype(word)

        return step
    if isinstance(origin, Vector):
        width = bits // len(origin.items)
        sources = [m.source(ins, item, f"b{width}") for item in origin.items]
        d, word = m.destination(ins, target, f"b{bits}"), UNSIGNED[bits]

        def step(lanes):
            s = lanes.sel
            value = word(0)
            for i, part in enumerate(sources):
                value = value | np.asarray(part[s]).astype(word) << word(i * width)
            d[s] = value

        return step
    if kind not in ("pred", "f16x2"):
        kind = f"b{bits}"
    d, a = m.destination(ins, target, kind), m.source(ins, origin, kind)

    def step(lanes):
        s = lanes.sel
        d[s] = a[s]

    return step


@instruction("cvta")
def cvta(ins, m):
    """#data-movement-and-conversion-instructions-cvta: an offset into a state space and its generic
    address."""
    allow(ins, "to", "global", "shared", "shared::cta", "local", "const", "param")
    kind = type_of(ins, "u32", "u64")
    space = next(
        (mod.split("::")[0] for mod in ins.modifiers if mod != "to" and mod not in TYPE_BITS), None
    )
    if space is None:
        raise unsupported(ins, "names no state space")
    window = np.uint64(WINDOWS.get(space, 0))
    d, a = m.bind(ins, kind, kind)
    if kind == "u32" and window:
        raise unsupported(ins, "32-bit generic addresses are not implemented")
    to = "to" in ins.modifiers

    def step(lanes):
        s = lanes.sel
        d[s] = a[s] - window if to else a[s] + window

    if space == "local":

        def step(lanes):
            s, memory = lanes.sel, m.memory
            if to:
                address = np.broadcast_to(a[s] - window, lanes.shape).astype(np.int64)
                d[s] = memory.local_owners.unmarked(ins, lanes, address).astype(np.uint64)
            else:
                d[s] = a[s] + window + memory.local_owners.marks[s].astype(np.uint64)

    return step


@instruction("mapa")
def mapa(ins, m):
    """#data-movement-and-conversion-instructions-mapa: an address of this block's shared memory, in
    the block of a given rank."""
    allow(ins, "shared::cluster")
    if "shared::cluster" not in ins.modifiers:
        raise unsupported(ins, "generic addresses of other blocks are not implemented")
    kind = type_of(ins, "u32", "u64")
    d, a = m.bind(ins, kind, kind)
    rank, size = m.source(ins, operands(ins, 3)[2], "u32"), m.cluster.size

    def step(lanes):
        s = lanes.sel
        wanted = np.broadcast_to(rank[s], lanes.shape)
        if (wanted >= size).any():
            raise lanes.fault(
                OutOfBounds,
                f"the cluster has {size} blocks, none of rank {wanted[wanted >= size][0]}",
                ins,
                wanted >= size,
            )
        own = np.asarray(a[s]) & d.dtype.type((1 << RANK_SHIFT) - 1)
        d[s] = own | (wanted + np.uint32(1)).astype(d.dtype) << d.dtype.type(RANK_SHIFT)

    return step


@instruction("isspacep")
def isspacep(ins, m):
    """#data-movement-and-conversion-instructions-isspacep"""
    allow(ins, "global", "shared", "shared::cta", "local", "const")
    space = ins.modifiers[0].split("::")[0]
    p, a = m.bind(ins, "pred", "u64")

    def step(lanes):
        s = lanes.sel
        address = np.asarray(a[s])
        if space in WINDOWS:
            start = np.uint64(WINDOWS[space])
            p[s] = (address >= start) & (address < start + np.uint64(WINDOW_BYTES))
        else:
            p[s] = address < min(SHARED_WINDOW, LOCAL_WINDOW)

    return step

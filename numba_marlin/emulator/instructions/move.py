"""mov (with packing), cvta, isspacep.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import OutOfBounds
from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.state.memory import (
    PARAMETER_BASE,
    RANK_SHIFT,
    WINDOW_BYTES,
    WINDOWS,
)
from numba_marlin.emulator.state.registers import UNSIGNED
from numba_marlin.emulator.text.program import TYPE_BITS, Vector

SPACES = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry")


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
    allow(ins, "to", *SPACES, "shared::cluster")
    kind = type_of(ins, "u32", "u64")
    space = next(
        (mod.split("::")[0] for mod in ins.modifiers if mod != "to" and mod not in TYPE_BITS), None
    )
    if space is None:
        raise unsupported(ins, "names no state space")
    window = np.uint64(
        m.generic_parameters.address - PARAMETER_BASE if space == "param" else WINDOWS.get(space, 0)
    )
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
                # what is no local address is nothing until it is used: compilers convert an address
                # before they branch on isspacep
                address = np.broadcast_to(a[s] - window, lanes.shape)
                inside = address < WINDOW_BYTES
                own = np.where(inside, address, memory.local_owners.marks[s]).astype(np.int64)
                unmarked = memory.local_owners.unmarked(ins, lanes, own).astype(np.uint64)
                d[s] = np.where(inside, unmarked, address)
            else:
                d[s] = a[s] + window + memory.local_owners.marks[s].astype(np.uint64)

    return step


@instruction("mapa")
def mapa(ins, m):
    """#data-movement-and-conversion-instructions-mapa: an address of this block's shared memory, in
    the block of a given rank; a generic one without .shared::cluster."""
    allow(ins, "shared::cluster")
    kind = type_of(ins, "u32", "u64")
    window = shared_window(ins, kind)
    (d, a, rank), size = m.bind(ins, kind, kind, "u32"), m.cluster.size

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
        d[s] = window | own | (wanted + np.uint32(1)).astype(d.dtype) << d.dtype.type(RANK_SHIFT)

    return step


def shared_window(ins, kind: str):
    """What is added to an address of shared memory: 0 for .shared::cluster, else it is generic."""
    if "shared::cluster" in ins.modifiers:
        return UNSIGNED[TYPE_BITS[kind]](0)
    if kind == "u32":
        raise unsupported(ins, "32-bit generic addresses are not implemented")
    return np.uint64(WINDOWS["shared"])


@instruction("getctarank")
def getctarank(ins, m):
    """#data-movement-and-conversion-instructions-getctarank: the rank of the block that an address
    of shared memory belongs to."""
    allow(ins, "shared::cluster")
    kind = type_of(ins, "u32", "u64")
    d, a = m.bind(ins, "u32", kind)
    window, own = shared_window(ins, kind), m.special("%cluster_ctarank", np.uint32, ins)

    def step(lanes):
        s = lanes.sel
        block = np.asarray(a[s]) - window >> UNSIGNED[TYPE_BITS[kind]](RANK_SHIFT)
        if (block > m.cluster.size).any():
            bad = np.broadcast_to(block > m.cluster.size, lanes.shape)
            raise lanes.fault(
                OutOfBounds, "the address is not of the cluster's shared memory", ins, bad
            )
        d[s] = np.where(block, (block - block.dtype.type(1)).astype(np.uint32), own[s])

    return step


@instruction("isspacep")
def isspacep(ins, m):
    """#data-movement-and-conversion-instructions-isspacep"""
    allow(ins, *SPACES, "shared::cluster")
    space = ins.modifiers[0].split("::")[0]
    p, a = m.bind(ins, "pred", "u64")
    if space == "param":
        start, stop = m.generic_parameters.address, m.generic_parameters.end
    elif space in WINDOWS:
        start, stop = WINDOWS[space], WINDOWS[space] + WINDOW_BYTES
    else:
        start, stop = 0, min(WINDOWS.values())
    if ins.modifiers[0] in ("shared", "shared::cta"):  # not the windows of other blocks
        stop = start + (1 << RANK_SHIFT)

    def step(lanes):
        s = lanes.sel
        address = np.asarray(a[s])
        p[s] = (address >= np.uint64(start)) & (address < np.uint64(stop))

    return step

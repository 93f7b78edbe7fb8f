"""atom and red: lanes one after the other where they meet at an address; the result is what each
found there.

https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom

.add.f32 flushes subnormals in global memory and keeps them in shared memory, as the ISA says of the
hardware.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.instructions.half import HALVES, codec
from numba_marlin.emulator.instructions.load_store import HINT, ORDER, SPACES, space_of
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.state.memory import WINDOWS
from numba_marlin.emulator.state.registers import DTYPES
from numba_marlin.emulator.text.program import TYPE_BITS, Sink

FLOATS = (*HALVES, "f32", "f64")
# What comes to lie in memory, from what was there (old) and the operands.
OPERATIONS = {
    "add": lambda old, b: old + b,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "min": np.minimum,
    "max": np.maximum,
    "exch": lambda old, b: b + np.zeros_like(old),
    "inc": lambda old, b: np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, b: np.where((old == 0) | (old > b), b, old - old.dtype.type(1)),
    "cas": lambda old, b, c: np.where(old == b, c, old),
}


@instruction("atom", "red")
def atomic(ins, m):
    """#...-atom, #...-red"""
    allow(ins, *SPACES, *ORDER, *OPERATIONS, "noftz")
    name = next((mod for mod in ins.modifiers if mod in OPERATIONS), None)
    if name is None:
        raise unsupported(ins, "names no operation")
    kind = type_of(ins)
    if kind in FLOATS and name != "add":
        raise unsupported(ins, f".{name} is not implemented for {kind}")
    function = OPERATIONS[name]
    count = (2 if ins.root == "red" else 3) + (name == "cas") + (HINT in ins.modifiers)
    values = list(operands(ins, count))
    target = Sink() if ins.root == "red" else values.pop(0)
    address = values.pop(0)
    d = m.destination(ins, target, kind)
    if HINT in ins.modifiers:
        values.pop()
    sources = [m.source(ins, value, kind) for value in values]
    if kind in HALVES:
        function = half_sum(ins, kind)
    at, memory, space = m.address(ins, address), m.memory, space_of(ins)
    dtype, size = np.dtype(DTYPES[kind]), TYPE_BITS[kind] // 8

    def step(lanes):
        s = lanes.sel
        where = at(lanes)
        memory.announce("atomic-request", space, ins, lanes, where, size)
        given = [
            np.broadcast_to(source[s], lanes.shape + ((2,) if kind.endswith("x2") else ()))
            for source in sources
        ]
        if len(np.unique(where)) == where.size:
            d[s] = exchange(memory, ins, lanes, space, where, size, dtype, kind, function, given)
            return
        # One lane after the other, in the order of warps and lanes.
        result = np.empty(given[0].shape, dtype)
        flat = result.reshape((-1,) + result.shape[len(lanes.shape) :])
        active = np.zeros(lanes.shape, bool)
        for i, index in enumerate(np.ndindex(*lanes.shape)):
            active[index] = True
            one = lanes.narrow(active)
            flat[i] = exchange(
                memory,
                ins,
                one,
                space,
                where[index].reshape(one.shape),
                size,
                dtype,
                kind,
                function,
                [
                    value[index].reshape(one.shape + value.shape[len(lanes.shape) :])
                    for value in given
                ],
            )[0]
            active[index] = False
        d[s] = result

    return step


def exchange(memory, ins, lanes, space, where, size, dtype, kind, function, given):
    """Load, compute, store for lanes with distinct addresses; returns the old values."""
    raw = memory.load(ins, lanes, space, where.copy(), size, 1, "atomic")
    old = np.ascontiguousarray(raw).view(dtype) if kind.endswith("x2") else raw[..., 0].view(dtype)
    new = np.asarray(
        sum32(old, *given, flushed=in_global(space, where))
        if kind == "f32"
        else function(old, *given)
    ).astype(dtype)
    bits = np.ascontiguousarray(new).view(raw.dtype)
    bits = bits.reshape(raw.shape)
    before = memory.progress
    memory.store(ins, lanes, space, where.copy(), bits, "atomic")
    if np.array_equal(bits, raw):  # a failed compare-and-swap is not progress
        memory.progress = before
    return old


def in_global(space: str, where):
    """Which of the addresses are global memory's."""
    return (
        np.full(where.shape, True)
        if space == "global"
        else (where < min(WINDOWS.values())) & (space == "generic")
    )


def sum32(old, b, flushed):
    """old + b of float32; where ``flushed``, subnormal inputs and results are zeros."""
    total = numerics.flush(numerics.flush(old) + numerics.flush(b))
    return numerics.canonical32(np.where(flushed, total, old + b))


def half_sum(ins, kind: str):
    decode, encode = codec(ins, kind)
    return lambda old, b: encode(decode(old) + decode(b))

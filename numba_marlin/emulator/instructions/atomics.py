"""atom and red: lanes one after the other where they meet at an address; the result is what each
found there.

https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom

.add.f32 flushes subnormals in global memory and keeps them in shared memory, as the ISA says of the
hardware.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.instructions.floating import choose
from numba_marlin.emulator.instructions.half import HALVES, codec
from numba_marlin.emulator.instructions.load_store import HINT, ORDER, SPACES, space_of, vector
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.state.memory import WINDOWS
from numba_marlin.emulator.state.registers import DTYPES
from numba_marlin.emulator.text.program import TYPE_BITS, Sink

FLOATS = (*HALVES, "f32", "f64")
MINMAX = ("min", "max")
LARGEST_VECTOR = 16  # bytes
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


VECTORS = {"v2": 2, "v4": 4, "v8": 8}


@instruction("atom", "red")
def atomic(ins, m):
    """#...-atom, #...-red; of a vector each element is an atom by itself, lane after lane."""
    allow(ins, *SPACES, *ORDER, *OPERATIONS, "noftz", *VECTORS)
    name = next((mod for mod in ins.modifiers if mod in OPERATIONS), None)
    if name is None:
        raise unsupported(ins, "names no operation")
    kind, length = type_of(ins), next((VECTORS[mod] for mod in ins.modifiers if mod in VECTORS), 0)
    if kind in FLOATS and name != "add" and not (length and kind in HALVES and name in MINMAX):
        raise unsupported(ins, f".{name} is not implemented for {kind}")
    size = TYPE_BITS[kind] // 8
    if length and (kind not in (*HALVES, "f32") or length * size > LARGEST_VECTOR):
        raise unsupported(ins, f"vectors are of floats, {LARGEST_VECTOR} bytes at most")
    count = (2 if ins.root == "red" else 3) + (name == "cas") + (HINT in ins.modifiers)
    values = list(operands(ins, count))
    target = Sink() if ins.root == "red" else values.pop(0)
    address = values.pop(0)
    if HINT in ins.modifiers:
        values.pop()
    at, memory, space = m.address(ins, address), m.memory, space_of(ins)
    function = half_function(ins, kind, name) if kind in HALVES else OPERATIONS[name]
    if not length:
        d = m.destination(ins, target, kind)
        sources = [m.source(ins, value, kind) for value in values]

        def step(lanes):
            where = at(lanes)
            memory.announce("atomic-request", space, ins, lanes, where, size)
            d[lanes.sel] = take_turns(memory, ins, lanes, space, where, kind, function, sources)

        return step
    if len(vector(values[0])) != length or len(vector(target)) not in (1, length):
        raise unsupported(ins, f"the number of registers does not fit .v{length}")
    elements = [
        (
            m.destination(ins, target if isinstance(target, Sink) else vector(target)[i], kind),
            [m.source(ins, value, kind)],
        )
        for i, value in enumerate(vector(values[0]))
    ]

    def vector_step(lanes):
        where = at(lanes)
        memory.require_aligned(ins, lanes, space, where, length * size)
        memory.announce("atomic-request", space, ins, lanes, where, length * size)
        for i, (d, sources) in enumerate(elements):
            d[lanes.sel] = take_turns(
                memory, ins, lanes, space, where + i * size, kind, function, sources
            )

    return vector_step


def take_turns(memory, ins, lanes, space, where, kind, function, sources):
    """What each lane found at its address: all at once if the addresses differ, else one lane after
    the other, in the order of warps and lanes."""
    dtype, size = np.dtype(DTYPES[kind]), TYPE_BITS[kind] // 8
    given = [
        np.broadcast_to(source[lanes.sel], lanes.shape + ((2,) if kind.endswith("x2") else ()))
        for source in sources
    ]
    if len(np.unique(where)) == where.size:
        return exchange(memory, ins, lanes, space, where, size, dtype, kind, function, given)
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
            [value[index].reshape(one.shape + value.shape[len(lanes.shape) :]) for value in given],
        )[0]
        active[index] = False
    return result


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


def half_function(ins, kind: str, name: str):
    decode, encode = codec(ins, kind)
    if name in MINMAX:
        return lambda old, b: encode(choose(name, decode(old), decode(b), propagate=False))
    return lambda old, b: encode(decode(old) + decode(b))

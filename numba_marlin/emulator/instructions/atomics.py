"""atom and red: lanes one after the other where they meet at an address (``contention``); the
result is what each found there.

https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-atom

.add.f32 flushes subnormals in global memory and keeps them in shared memory, as the ISA says of the
hardware.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.instructions.contention import Turns, in_turn
from numba_marlin.emulator.instructions.floating import choose
from numba_marlin.emulator.instructions.half import HALVES, codec
from numba_marlin.emulator.instructions.load_store import HINT, ORDER, SPACES, space_of, vector
from numba_marlin.emulator.state import numerics
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
ASSOCIATIVE = [OPERATIONS[name] for name in ("add", "and", "or", "xor", "min", "max", "exch")]
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
    """What each lane found at its address, as if they came one after the other, in the order of
    warps and lanes."""
    given = [
        np.broadcast_to(source[lanes.sel], lanes.shape + ((2,) if kind.endswith("x2") else ()))
        for source in sources
    ]
    if space != "generic":
        return exchange(memory, ins, lanes, space, where, kind, function, given)
    result, where = np.empty(given[0].shape, DTYPES[kind]), where.copy()
    for each, mask in memory.windows(where):
        mask = np.ones(lanes.shape, bool) if mask is None else mask
        part = lanes.narrow(mask)
        place = where[mask].reshape(part.shape)
        if each == "local":
            place = memory.local_owners.unmarked(ins, part, place)
        own = [value[mask].reshape(part.shape + value.shape[mask.ndim :]) for value in given]
        found = exchange(memory, ins, part, each, place, kind, function, own)
        result[mask] = found.reshape(result[mask].shape)
    return result


def exchange(memory, ins, lanes, space, where, kind, function, given):
    """Load, compute, store; returns what each lane found."""
    dtype, size = np.dtype(DTYPES[kind]), TYPE_BITS[kind] // 8
    raw = memory.load(ins, lanes, space, where, size, 1, "atomic")
    old = np.ascontiguousarray(raw).view(dtype) if kind.endswith("x2") else raw[..., 0].view(dtype)
    compute = function
    if kind == "f32":
        flushed = np.bool_(space == "global")
        compute = lambda old, b: sum32(old, b, flushed)  # noqa: E731
    turns = Turns(memory.places(ins, lanes, space, where).reshape(-1))
    if turns.distinct:
        new = np.asarray(compute(old, *given)).astype(dtype)
    else:
        flat = (where.size, *old.shape[len(lanes.shape) :])
        old, new = (
            values.reshape(old.shape)
            for values in in_turn(
                turns,
                old.reshape(flat),
                [value.reshape(flat) for value in given],
                lambda *values: np.asarray(compute(*values)).astype(dtype, copy=False),
                kind not in FLOATS and function in ASSOCIATIVE,
                function is OPERATIONS["cas"],
                next((name for name in ("inc", "dec") if function is OPERATIONS[name]), ""),
            )
        )
    bits, before = [
        np.ascontiguousarray(values).view(raw.dtype).reshape(raw.shape) for values in (new, old)
    ]
    progress = memory.progress
    made = old == given[0] if function is OPERATIONS["cas"] else None
    memory.store(ins, lanes, space, where, bits, "atomic", made)
    if np.array_equal(bits, before):  # a failed compare-and-swap is not progress
        memory.progress = progress
    return old


def sum32(old, b, flushed):
    """old + b of float32; where ``flushed``, subnormal inputs and results are zeros."""
    total = numerics.flush(numerics.flush(old) + numerics.flush(b))
    return numerics.canonical32(np.where(flushed, total, old + b))


def half_function(ins, kind: str, name: str):
    decode, encode = codec(ins, kind)
    if name in MINMAX:
        return lambda old, b: encode(choose(name, decode(old), decode(b), propagate=False))
    return lambda old, b: encode(decode(old) + decode(b))

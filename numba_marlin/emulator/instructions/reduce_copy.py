"""cp.reduce.async.bulk: bulk copies from shared to global memory, of spans and of boxes of tensors,
that add to what is there, or combine with it otherwise.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk
https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-reduce-async-bulk-tensor

They land when stores do (``asynchronous.bulk``). Each element is an atomic access of the GPU's
scope, rounded to its own type. Sums of float32 flush subnormals, as atom.add in global memory does.
The form from block to block is refused.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.asynchronous.tensor_copies import box_of, map_at, plain
from numba_marlin.emulator.instructions import instruction, operands, unsupported
from numba_marlin.emulator.instructions.atomics import OPERATIONS, half_function, sum32
from numba_marlin.emulator.instructions.bulk_copy import (
    TO_GLOBAL,
    UNIT,
    one_by_one,
    positions,
    sizes_of,
    store,
)
from numba_marlin.emulator.instructions.load_store import HINT
from numba_marlin.emulator.state.registers import DTYPES
from numba_marlin.emulator.text.program import Vector

WORDS, LONGS, BITS = ("u32", "s32", "u64"), ("s64",), ("b32", "b64")
HALF, FLOAT = ("f16", "bf16"), ("f32", "f64")
TYPES = {
    "add": WORDS + HALF + FLOAT,
    "min": WORDS + LONGS + HALF,
    "max": WORDS + LONGS + HALF,
    "inc": ("u32",),
    "dec": ("u32",),
    "and": BITS,
    "or": BITS,
    "xor": BITS,
}
OF_MAPS = {  # elements of tensor maps
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}


def combined(ins, name: str, kind: str):
    """Function: (bytes that are there, bytes that come) -> the bytes they make."""
    if kind not in TYPES[name]:
        raise unsupported(ins, f".{name} is not defined for {kind}")
    if kind in HALF:
        function = half_function(ins, kind, name)
    elif kind == "f32":
        function = lambda old, new: sum32(old, new, flushed=np.True_)  # noqa: E731
    else:
        function = OPERATIONS[name]
    dtype = DTYPES[kind]

    def combine(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            made = function(np.ascontiguousarray(old).view(dtype), new.view(dtype))
        return np.ascontiguousarray(made.astype(dtype, copy=False)).view(np.uint8)

    return combine


@instruction("cp.reduce.async.bulk")
def span(ins, m):
    """cp.reduce.async.bulk.global.shared::cta.bulk_group{.L2::cache_hint}.op{.noftz}.type [dst],
    [src], size"""
    hints = (HINT,) if HINT in ins.modifiers else ()
    name, kind = next((mod for mod in ins.modifiers if mod in TYPES), ""), ins.modifiers[-1]
    # sums of halves, and they alone, are said not to be flushed
    tail = (name, "noftz", kind) if name == "add" and kind in HALF else (name, kind)
    if not name or ins.modifiers != (*TO_GLOBAL, *hints, *tail):
        raise unsupported(ins, f"is .{'.'.join(TO_GLOBAL)}, an operation, and its type")
    combine = combined(ins, name, kind)
    target, origin, nbytes = operands(ins, 3 + len(hints))[:3]
    at, place = m.address(ins, target), positions(ins, m, origin, UNIT)
    sizes = m.source(ins, nbytes, "u32")

    def step(lanes):
        starts, where = place(lanes) * UNIT, at(lanes)
        size = sizes_of(ins, lanes, sizes, where)
        for index, lane in one_by_one(lanes):
            count, address = int(size[index]), int(where[index])
            fetch, put = plain(ins, m.memory.globals, lane, address, count, writes=True)
            far = where[index].reshape(1), count
            m.memory.announce("bulk-write", "global", ins, lane, *far)
            store(ins, m, lane, int(starts[index]), count, adding(combine, fetch, put), far)

    return step


def adding(combine, fetch, put):
    """Function: bytes that come -> None, what ``put`` is to a copy."""
    return lambda data: put(combine(fetch(), data))


@instruction("cp.reduce.async.bulk.tensor")
def box(ins, m):
    """cp.reduce.async.bulk.tensor.Nd.global.shared::cta.op{.tile}.bulk_group{.L2::cache_hint} [map,
    {x, y}], [src]; the map says of which type the elements are."""
    words = [mod for mod in ins.modifiers if mod not in (HINT, "tile")]
    ranks = {f"{rank}d": rank for rank in range(1, 6)}
    if (
        len(words) != 5
        or words[0] not in ranks
        or words[3] not in TYPES
        or words[1:3] + words[4:] != list(TO_GLOBAL)
    ):
        raise unsupported(ins, "is .Nd.global.shared::cta, an operation, {.tile}.bulk_group")
    name, rank = words[3], ranks[words[0]]
    there, origin = operands(ins, 2 + (HINT in ins.modifiers))[:2]
    if not isinstance(there.index, Vector) or len(there.index.items) != rank:
        raise unsupported(ins, f"needs [map, {{coordinates}}] with {rank} of them")
    maps, place = m.address(ins, there), positions(ins, m, origin, UNIT)
    coordinates = [m.source(ins, item, "s32") for item in there.index.items]

    def step(lanes):
        starts, where = place(lanes) * UNIT, maps(lanes)
        first = [np.broadcast_to(source[lanes.sel], lanes.shape) for source in coordinates]
        for index, lane in one_by_one(lanes):
            at = tuple(int(values[index]) for values in reversed(first))
            start, address = int(starts[index]), int(where[index])
            kind = OF_MAPS.get(map_at(ins, m, lane, address)[0].dtype, "")
            if name in ("and", "or", "xor"):
                kind = f"b{kind[1:]}"
            combine = combined(ins, name, kind)
            nbytes, fetch, put, far = box_of(ins, m, lane, address, at, start, writes=True)
            store(ins, m, lane, start, nbytes, adding(combine, fetch, put), far)

    return step

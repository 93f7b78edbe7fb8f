"""wmma: matrices of a warp whose elements are held by lanes as the machine likes (the ISA leaves it
open).

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-wmma-load
and the sections on wmma.store and wmma.mma.

Products of 8-bit integers are summed exactly, those of fp64 in fp64, those of fp16, bf16 and tf32,
in fp32 or fp16, as in ``tensor``; in fp32 if C or D is, which is an assumption where only one of
them is.
Here word p of a matrix (row-major, or column-major where the load says so) is register p // 32 of
lane p % 32; where the ISA has more registers than that takes, the rest are copies.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, unsupported
from numba_marlin.emulator.instructions.load_store import SPACES, space_of
from numba_marlin.emulator.instructions.tensor import as_warps
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.tensor.integer_sums import add_integers
from numba_marlin.emulator.tensor.tensor_sums import add_products
from numba_marlin.emulator.text.program import Immediate

SHAPES = {
    "m16n16k16": (16, 16, 16),
    "m32n8k16": (32, 8, 16),
    "m8n32k16": (8, 32, 16),
    "m16n16k8": (16, 16, 8),
    "m8n8k4": (8, 8, 4),
}
# types of a and b, and of c and d; of the shapes that are not here, OTHERS
TYPES = {"m16n16k8": (("tf32",), ("f32",)), "m8n8k4": (("f64",), ("f64",))}
OTHERS = ("f16", "bf16", "s8", "u8"), ("f32", "f16", "s32")
LAYOUTS = ("row", "col")
# elements of a type in a register, and what they are held as
ELEMENTS = {
    "f32": (1, np.float32),
    "s32": (1, np.int32),
    "f16": (2, np.uint16),
    "bf16": (2, np.uint16),
    "s8": (4, np.int8),
    "u8": (4, np.uint8),
    "tf32": (1, np.uint32),
    "f64": (1, np.float64),
}
REGISTERS = {
    **{"f32": "f32", "s32": "s32", "f64": "f64", "f16": "f16x2", "bf16": "bf16x2"},
    **{"s8": "b32", "u8": "b32", "tf32": "b32"},
}


def shape_of(ins) -> tuple[int, int, int]:
    shape = next((SHAPES[mod] for mod in ins.modifiers if mod in SHAPES), None)
    if shape is None:
        raise unsupported(ins, f"only the shapes {', '.join(SHAPES)} are implemented")
    return shape


def named(ins) -> list[str]:
    """The types in the opcode."""
    return [mod for mod in ins.modifiers if mod in ELEMENTS]


def types_of(ins) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which types matrices a and b, and c and d, of the shape may have."""
    return next((TYPES[mod] for mod in ins.modifiers if mod in TYPES), OTHERS)


def size_of(ins, which: str) -> tuple[int, int]:
    m, n, k = shape_of(ins)
    return {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}[which]


def fragment(ins, m, operand, kind: str, elements: int, bind):
    """The registers of a fragment, ``bind`` (m.source or m.destination) each; kind of ELEMENTS."""
    wide, _ = ELEMENTS[kind]
    needed = elements // WARP // wide
    if not needed or len(operand.items) % needed:
        raise unsupported(
            ins, f"{len(operand.items)} registers do not fit {elements} elements of {kind}"
        )
    return [bind(ins, item, REGISTERS[kind]) for item in operand.items], needed


def gathered(sources, needed: int, sel, count: int, kind: str) -> np.ndarray:
    """[warps, elements] in the order they lie in memory: bit patterns of 16 bits, or numbers."""
    wide, dtype = ELEMENTS[kind]
    held = np.empty((count, needed, WARP, wide), dtype)
    for i, source in enumerate(sources[:needed]):
        words = source[sel]
        if wide == 4:
            words = np.ascontiguousarray(np.broadcast_to(words, (count, WARP))).view(dtype)
        held[:, i] = np.reshape(words, held[:, i].shape)
    return held.reshape(count, -1)


def scattered(targets, needed: int, sel, values: np.ndarray) -> None:
    """The inverse of ``gathered``; more registers than needed get copies."""
    count = len(values)
    parts = values.reshape(count, needed, WARP, -1)
    if values.itemsize == 1:
        parts = np.ascontiguousarray(parts).view(np.uint32)
    for i, target in enumerate(targets):
        target[sel] = parts[:, i % needed, :, 0] if parts.shape[-1] == 1 else parts[:, i % needed]


def addresses(ins, m, operands, rows: int, cols: int, nbytes: int):
    """Function: lanes -> int64 [warps, lane, elements of a lane]; consecutive elements of a row
    (column) of a lane's register are pairs."""
    layout = [mod for mod in ins.modifiers if mod in LAYOUTS]
    if len(layout) != 1:
        raise unsupported(ins, "needs .row or .col")
    minor = cols if layout == ["row"] else rows
    at = m.address(ins, operands[0])
    stride = m.source(ins, operands[1] if len(operands) > 1 else Immediate(minor), "u32")
    wide = max(1, 4 // nbytes)
    flat = (
        np.arange(rows * cols // WARP // wide)[:, None, None] * WARP + np.arange(WARP)[:, None]
    ) * wide + np.arange(wide)
    major, within = np.divmod(flat, minor)

    def where(lanes):
        base = at(lanes)[:, None, :, None]
        step = np.broadcast_to(stride[lanes.sel], lanes.shape).astype(np.int64)[:, None, :, None]
        return base + (major * step + within) * nbytes

    return where, layout[0]


@instruction("wmma.load")
def load(ins, m):
    """wmma.load.{a,b,c}.sync.aligned.layout.shape{.space}.type r, [p]{, stride}"""
    allow(ins, "a", "b", "c", "sync", "aligned", "tf32", *LAYOUTS, *SHAPES, *SPACES)
    which, kind = ins.modifiers[0], named(ins)[-1]
    if kind not in types_of(ins)[which == "c"]:
        raise unsupported(ins, f"type .{kind} is not implemented for matrix {which}")
    rows, cols = size_of(ins, which)
    targets, needed = fragment(ins, m, ins.operands[0], kind, rows * cols, m.destination)
    size = np.dtype(ELEMENTS[kind][1]).itemsize
    where, layout = addresses(ins, m, ins.operands[1:], rows, cols, size)
    space, memory = space_of(ins), m.memory

    def step(lanes):
        lanes.require_whole_warps(ins, "wmma.load")
        lanes = as_warps(lanes)
        at = where(lanes)
        values = np.empty(at.shape, f"u{size}")
        for i in range(at.shape[1]):
            for j in range(at.shape[3]):
                values[:, i, :, j] = memory.load(ins, lanes, space, at[:, i, :, j].copy(), size)[
                    ..., 0
                ]
        flat = stored_rows(values.reshape(len(values), -1), layout, rows, cols)
        scattered(targets, needed, lanes.sel, flat.view(ELEMENTS[kind][1]))

    return step


def stored_rows(flat: np.ndarray, layout: str, rows: int, cols: int) -> np.ndarray:
    """Elements in the order of memory, row-major."""
    return (
        flat
        if layout == "row"
        else np.ascontiguousarray(flat.reshape(-1, cols, rows).transpose(0, 2, 1)).reshape(
            len(flat), -1
        )
    )


@instruction("wmma.store")
def store(ins, m):
    """wmma.store.d.sync.aligned.layout.shape{.space}.type [p], r{, stride}"""
    allow(ins, "d", "sync", "aligned", *LAYOUTS, *SHAPES, *SPACES)
    kind = named(ins)[-1]
    if kind not in types_of(ins)[1]:
        raise unsupported(ins, f"type .{kind} is not implemented")
    rows, cols = size_of(ins, "d")
    sources, needed = fragment(ins, m, ins.operands[1], kind, rows * cols, m.source)
    size = np.dtype(ELEMENTS[kind][1]).itemsize
    where, layout = addresses(ins, m, (ins.operands[0], *ins.operands[2:]), rows, cols, size)
    space, memory = space_of(ins), m.memory

    def step(lanes):
        lanes.require_whole_warps(ins, "wmma.store")
        lanes = as_warps(lanes)
        flat = gathered(sources, needed, lanes.sel, lanes.shape[0], kind)
        if layout == "col":
            flat = np.ascontiguousarray(flat.reshape(-1, rows, cols).transpose(0, 2, 1)).reshape(
                len(flat), -1
            )
        at = where(lanes)
        values = flat.view(f"u{size}").reshape(at.shape)
        for i in range(at.shape[1]):
            for j in range(at.shape[3]):
                memory.store(
                    ins,
                    lanes,
                    space,
                    at[:, i, :, j].copy(),
                    np.ascontiguousarray(values[:, i, :, j])[..., None],
                )

    return step


@instruction("wmma.mma")
def multiply(ins, m):
    """wmma.mma.sync.aligned.alayout.blayout.shape.dtype{.atype.btype}.ctype d, a, b, c: without
    types of a and b they are fp16. Integers may have .satfinite at the end, fp64 has .rn there."""
    rows, cols, depth = shape_of(ins)
    types = named(ins)
    out, accumulator, kinds = types[0], types[-1], types[1:-1] or ["f16", "f16"]
    whole, kind = kinds in (["s8", "s8"], ["u8", "u8"]), kinds[0]
    double = kind == "f64"
    allow(
        ins,
        *("sync", "aligned", "tf32", *LAYOUTS, *SHAPES),
        *(("satfinite",) if whole else ("rn",) if double else ()),
    )
    sums = {"s32"} if whole else {"f32", "f16"} if kind == "f16" else {"f64" if double else "f32"}
    factors, _ = types_of(ins)
    if (
        len(types) not in (2, 4)
        or kinds != [kind, kind]
        or kind not in factors
        or {out, accumulator} - sums
    ):
        raise unsupported(ins, f"types {'.'.join(types)} are not implemented")
    saturated = "satfinite" in ins.modifiers
    d, d_needed = fragment(ins, m, ins.operands[0], out, rows * cols, m.destination)
    a, a_needed = fragment(ins, m, ins.operands[1], kind, rows * depth, m.source)
    b, b_needed = fragment(ins, m, ins.operands[2], kind, depth * cols, m.source)
    c, c_needed = fragment(ins, m, ins.operands[3], accumulator, rows * cols, m.source)

    def step(lanes):
        lanes.require_whole_warps(ins, "wmma.mma")
        lanes = as_warps(lanes)
        s, count = lanes.sel, lanes.shape[0]
        left = gathered(a, a_needed, s, count, kind).reshape(count, rows, depth)
        right = gathered(b, b_needed, s, count, kind).reshape(count, depth, cols)
        before = gathered(c, c_needed, s, count, accumulator).reshape(count, rows, cols)
        if whole:
            result = add_integers(left, right.swapaxes(1, 2), before, saturated)
            scattered(d, d_needed, s, result.reshape(count, -1))
            return
        if double:
            scattered(d, d_needed, s, (before + left @ right).reshape(count, -1))
            return
        if accumulator == "f16":
            before = before.view(np.float16)
        if out == "f32":
            before = before.astype(np.float32)
        factors = np.concatenate([left, right.swapaxes(1, 2)], axis=1)
        result = add_products(kind, factors, rows, before, m.adder).reshape(count, -1)
        if out == "f16":
            result = result.astype(np.float16).view(np.uint16)
        scattered(d, d_needed, s, result)

    return step

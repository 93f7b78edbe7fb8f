"""mma.sync, ldmatrix and stmatrix: whole warps at once.

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions

Products of fp16 (or bf16) are exact; they and an accumulator are added as a tensor core of the
program's target adds them (``emulator.tensor.tensor_sums``). NaN is canonical.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import (
    allow,
    block_scale,
    instruction,
    mma_kinds,
    mma_sparse,
    operands,
    unsupported,
)
from numba_marlin.emulator.instructions.load_store import vector
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.tensor.tensor_sums import add_products
from numba_marlin.layout import fragments


def inverse(rows: np.ndarray, cols: np.ndarray, width: int) -> np.ndarray:
    """Where, in [register, lane] flattened, each matrix element (row-major) is held; maps [lane,
    register]."""
    return np.argsort((rows * width + cols).T.ravel())


def gather_map(depth: int) -> tuple[int, np.ndarray]:
    """(k, index of pairs of k of the rows of A, then of the columns of B, in [register, lane]) of
    m16n8k{depth}; k8 uses the first half of the registers of k16. A register holds two neighbours
    in k."""
    a, b = fragments.MMA_M16N8K16_A, fragments.MMA_M16N8K16_B
    keep_a, keep_b = depth // 2, depth // 4
    k = np.concatenate([a.col_of[:, :keep_a], b.row_of[:, :keep_b]], axis=1)
    line = np.concatenate([a.row_of[:, :keep_a], MMA_ROWS + b.col_of[:, :keep_b]], axis=1)
    return depth, inverse(line[:, ::2], k[:, ::2] // 2, depth // 2)


MMA_ROWS, MMA_COLUMNS = 16, 8
SHAPES = {"m16n8k16": gather_map(16), "m16n8k8": gather_map(8)}
_C = fragments.MMA_M16N8K16_C
C_INDEX, C_BACK = inverse(_C.row_of, _C.col_of, 8), (_C.row_of * 8 + _C.col_of).T.ravel()
# With packed results a register holds two neighbours in a row.
PAIR_INDEX, PAIR_BACK = (
    inverse(_C.row_of[:, ::2], _C.col_of[:, ::2] // 2, 4),
    (_C.row_of[:, ::2] * 4 + _C.col_of[:, ::2] // 2).T.ravel(),
)


@instruction("mma")
def mma(ins, m):
    """#warp-level-matrix-instructions-mma: .sync.aligned.m16n8k{8,16}.row.col with fp16 or bf16 in;
    fp32 or fp16 out. More in ``mma_kinds``, ``mma_sparse`` and ``block_scale``."""
    if mma_sparse.find(ins):
        return mma_sparse.multiply(ins, m, as_warps)
    if block_scale.find(ins):
        return block_scale.multiply(ins, m, as_warps)
    if mma_kinds.find(ins) is not None:
        return mma_kinds.multiply(ins, m, as_warps)
    allow(ins, "sync", "aligned", *SHAPES, "row", "col")
    shape = next((mod for mod in ins.modifiers if mod in SHAPES), None)
    types = ins.types
    if (
        shape is None
        or ("row" not in ins.modifiers or "col" not in ins.modifiers)
        or len(types) != 4
    ):
        raise unsupported(ins, "only m16n8k8 and m16n8k16, .row.col, are implemented")
    out, kind, b_kind, accumulator = types
    if (
        kind not in ("f16", "bf16")
        or b_kind != kind
        or out != accumulator
        or out not in ("f32", "f16")
        or (kind == "bf16" and out == "f16")
    ):
        raise unsupported(ins, f"types {'.'.join(types)} are not implemented")
    (depth, index), adder = SHAPES[shape], m.adder
    packed = out == "f16"
    given = [vector(operand) for operand in operands(ins, 4)]
    if [len(items) for items in given] != [
        2 if packed else 4,
        depth // 4,
        depth // 8,
        2 if packed else 4,
    ]:
        raise unsupported(ins, "the number of registers does not fit the shape")
    sums, left, right, addends = given
    d = [m.destination(ins, item, "b32" if packed else "f32") for item in sums]
    factors = [m.source(ins, item, "b32") for item in (*left, *right)]
    c = [m.source(ins, item, "b32" if packed else "f32") for item in addends]

    def held_by(sources, sel, count, dtype, places):
        """[warp, element]: what the registers hold, in the order of ``places``."""
        held = np.empty((count, len(sources), WARP), dtype)
        for i, source in enumerate(sources):
            held[:, i] = source[sel]
        return held.reshape(count, -1).take(places, axis=1)

    def step(lanes):
        lanes.require_whole_warps(ins, "mma")
        lanes = as_warps(lanes)
        s, count = lanes.sel, lanes.shape[0]
        bits = (
            held_by(factors, s, count, np.uint32, index).view(np.uint16).reshape(count, -1, depth)
        )
        if packed:
            start, places = (
                held_by(c, s, count, np.uint32, PAIR_INDEX).view(np.float16),
                PAIR_BACK,
            )
        else:
            start, places = held_by(c, s, count, np.float32, C_INDEX), C_BACK
        start = start.reshape(count, MMA_ROWS, MMA_COLUMNS)
        result = add_products(kind, bits, MMA_ROWS, start, adder).reshape(count, -1)
        if packed:
            result = result.view(np.uint32)
        back = result.take(places, axis=1).reshape(count, len(d), WARP)
        for i, target in enumerate(d):
            target[s] = back[:, i]

    return step


def as_warps(lanes):
    """The same lanes with values of shape [warps, 32] (they are whole warps)."""
    if lanes.full:
        return lanes
    return type(lanes)(lanes.placement, np.unique(lanes.warps), None)


@instruction("ldmatrix")
def ldmatrix(ins, m):
    """#warp-level-matrix-instructions-ldmatrix: .m8n8.x{1,2,4}{.trans}.shared.b16

    Lanes 8i..8i+7 give the addresses of the rows of matrix i; a lane receives element pair (lane %
    4) of row lane / 4.
    """
    allow(ins, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
    if "m8n8" not in ins.modifiers or ins.types != ["b16"]:
        raise unsupported(ins, "only m8n8 .b16 is implemented")
    count = next((int(mod[1]) for mod in ins.modifiers if mod in ("x1", "x2", "x4")), 0)
    target, address = operands(ins, 2)
    items = vector(target)
    if len(items) != count:
        raise unsupported(ins, f"{len(items)} registers do not fit .x{count}")
    at, memory = m.address(ins, address), m.memory
    space = "shared" if "shared" in ins.modifiers or "shared::cta" in ins.modifiers else "generic"
    targets = [m.destination(ins, item, "b32") for item in items]
    fragment = fragments.LDMATRIX_8X8
    rows, cols = fragment.row_of, fragment.col_of
    if "trans" in ins.modifiers:
        rows, cols = cols, rows

    def step(lanes):
        lanes.require_whole_warps(ins, "ldmatrix")
        lanes = as_warps(lanes)
        # Addresses of lanes beyond the last matrix are not used: only the first 8 * count lanes
        # load.
        users, address = lanes, at(lanes)
        if count < 4:
            using = np.zeros(lanes.shape, bool)
            using[:, : 8 * count] = True
            users, address = lanes.narrow(using), address[using]
        loaded = memory.load(ins, users, space, address, 4, 4, "ldmatrix")
        stored = np.ascontiguousarray(loaded).view(np.uint16).reshape(-1, count, 8, 8)
        s = lanes.sel
        for i, target in enumerate(targets):
            target[s] = np.ascontiguousarray(stored[:, i][:, rows, cols]).view(np.uint32)[..., 0]

    return step


@instruction("stmatrix")
def stmatrix(ins, m):
    """#warp-level-matrix-instructions-stmatrix: .m8n8.x{1,2,4}{.trans}.shared.b16; the inverse of
    ldmatrix"""
    allow(ins, "sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared::cta")
    if "m8n8" not in ins.modifiers or ins.types != ["b16"]:
        raise unsupported(ins, "only m8n8 .b16 is implemented")
    count = next((int(mod[1]) for mod in ins.modifiers if mod in ("x1", "x2", "x4")), 0)
    address, origin = operands(ins, 2)
    items = vector(origin)
    if len(items) != count:
        raise unsupported(ins, f"{len(items)} registers do not fit .x{count}")
    at, memory = m.address(ins, address), m.memory
    space = "shared" if "shared" in ins.modifiers or "shared::cta" in ins.modifiers else "generic"
    sources = [m.source(ins, item, "b32") for item in items]
    fragment = fragments.LDMATRIX_8X8
    rows, cols = (
        (fragment.col_of, fragment.row_of)
        if "trans" in ins.modifiers
        else (fragment.row_of, fragment.col_of)
    )

    def step(lanes):
        lanes.require_whole_warps(ins, "stmatrix")
        lanes = as_warps(lanes)
        stored = np.empty((lanes.shape[0], count, 8, 8), np.uint16)
        for i, source in enumerate(sources):
            held = np.ascontiguousarray(np.broadcast_to(source[lanes.sel], lanes.shape))
            stored[:, i, rows, cols] = held.view(np.uint16).reshape(*lanes.shape, 2)
        users, address, values = lanes, at(lanes), np.empty((*lanes.shape, 4), np.uint32)
        values[:, : 8 * count] = stored.reshape(lanes.shape[0], 8 * count, 8).view(np.uint32)
        if count < 4:
            using = np.zeros(lanes.shape, bool)
            using[:, : 8 * count] = True
            users, address, values = lanes.narrow(using), address[using], values[using]
        memory.store(ins, users, space, address, values, "stmatrix")

    return step

"""Integers side by side in one word: two of 16 bits (add, min, max of sm_90) and the SIMD video
instructions; fns.

https://docs.nvidia.com/cuda/parallel-thread-execution/#simd-video-instructions
https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-fns

Of the video instructions: vadd, vsub, vavrg, vabsdiff, vmin, vmax and vset of two halves or four
bytes, all of them and in place, with .sat and .add. ``video_scalar`` has those of whole words.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, refuse, unsupported
from numba_marlin.emulator.instructions.dot import parts
from numba_marlin.emulator.instructions.integer import arithmetic_for
from numba_marlin.emulator.instructions.video_scalar import COMPARISONS

FUNCTIONS = {
    "vadd": np.add,
    "vsub": np.subtract,
    "vavrg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
PAIRED = {"add": np.add, "min": np.minimum, "max": np.maximum}


@arithmetic_for("add", "u16x2", "s16x2")
@arithmetic_for("min", "u16x2", "s16x2")
@arithmetic_for("max", "u16x2", "s16x2")
def pairs(ins, m, kind):
    """#integer-arithmetic-instructions-add, -min, -max: .u16x2 and .s16x2."""
    allow(ins, "relu")
    if ins.root == "add" or kind == "u16x2":
        refuse(ins, kind, "relu")
    d, a, b = m.bind(ins, kind, kind, kind)
    function, relu = PAIRED[ins.root], "relu" in ins.modifiers

    def step(lanes):
        s = lanes.sel
        result = function(a[s], b[s])
        d[s] = np.maximum(result, 0) if relu else result

    return step


@instruction(*(f"{name}{count}" for name in (*FUNCTIONS, "vset") for count in (2, 4)))
def video(ins, m):
    """v...4.dtype.atype.btype{.sat}{.add} d, a, b, c: element by element; with .add d is c plus the
    sum of the results. vset4.atype.btype.cmp{.add}: 1 where the comparison holds, else 0."""
    types, count = ins.types, int(ins.root[-1])
    if ins.root.startswith("vset"):
        allow(ins, *COMPARISONS, "add")
        functions = [COMPARISONS[mod] for mod in ins.modifiers if mod in COMPARISONS]
        types = ["u32", *types]
    else:
        allow(ins, "sat", "add")
        functions = [FUNCTIONS[ins.root[:-1]]]
    if len(types) != 3 or any(kind not in ("u32", "s32") for kind in types):
        raise unsupported(ins, "needs the types of its operands, .u32 or .s32")
    if len(functions) != 1:
        raise unsupported(ins, "needs one comparison")
    function, bits, sums = functions[0], 32 // count, "add" in ins.modifiers
    d, a, b, c = m.bind(ins, types[0], types[1], types[2], types[0])
    low, high = (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if types[0] == "s32" else (0, (1 << bits) - 1)
    )

    def step(lanes):
        s = lanes.sel
        left, right = (
            parts(source[s], kind == "s32", f"u{bits // 8}", lanes.shape)
            for source, kind in ((a, types[1]), (b, types[2]))
        )
        result = function(left, right).astype(np.int64)
        if "sat" in ins.modifiers:
            result = np.clip(result, low, high)
        if sums:
            word = (np.asarray(c[s]).astype(np.int64) + result.sum(axis=-1)).astype(np.uint32)
        else:
            word = np.ascontiguousarray(result.astype(f"u{bits // 8}")).view(np.uint32)[..., 0]
        d[s] = word.view(np.int32 if types[0] == "s32" else np.uint32)

    return step


@instruction("fns")
def fns(ins, m):
    """fns.b32 d, mask, base, offset: where the offset-th set bit is, counted from bit base on
    (upwards for positive offsets); all ones if there is none."""
    allow(ins)
    operands(ins, 4)
    d, mask, base, offset = m.bind(ins, "b32", "b32", "b32", "s32")

    def step(lanes):
        s = lanes.sel
        words, first, wanted = (
            np.broadcast_to(np.asarray(source[s]), lanes.shape)[..., None].astype(np.int64)
            for source in (mask, base, offset)
        )
        bits = np.arange(32)
        present = (words >> bits & 1).astype(bool)
        up, down = (
            np.cumsum(present & (bits >= first), axis=-1),
            np.cumsum((present & (bits <= first))[..., ::-1], axis=-1)[..., ::-1],
        )
        hit = np.where(
            wanted > 0,
            present & (bits >= first) & (up == wanted),
            np.where(
                wanted < 0, present & (bits <= first) & (down == -wanted), present & (bits == first)
            ),
        )
        d[s] = np.where(hit.any(axis=-1), hit.argmax(axis=-1), 0xFFFFFFFF).astype(np.uint32)

    return step

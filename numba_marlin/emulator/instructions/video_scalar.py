"""Video instructions on whole words: vadd, vsub, vabsdiff, vmin, vmax, vshl, vshr, vmad, vset.

https://docs.nvidia.com/cuda/parallel-thread-execution/#video-instructions

Computed exactly, then cut off with .sat, then combined with c (.add, .min, .max), and of that the
low 32 bits. Selectors of bytes and halves (%r1.b0), and negated operands of vmad, are no words of
the parser: refused.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, unsupported

TWO = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": np.minimum,
    "vmax": np.maximum,
}
SHIFTS = {"vshl": lambda a, b: a << b, "vshr": lambda a, b: a >> b}
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
SECOND = {"add": lambda a, c: a + c, "min": np.minimum, "max": np.maximum}
RANGES = {"u32": (0, 2**32 - 1), "s32": (-(2**31), 2**31 - 1)}
SCALES = {"shr7": 7, "shr15": 15}


def python_ints(source, lanes) -> np.ndarray:
    """Values of any size, by lane: exact arithmetic."""
    return np.broadcast_to(source[lanes.sel], lanes.shape).astype(object)


def low32(values: np.ndarray, like) -> np.ndarray:
    return (values & 0xFFFFFFFF).astype(np.uint32).view(like.dtype)


def types_of(ins, count: int) -> list[str]:
    if len(ins.types) != count or not set(ins.types) <= set(RANGES):
        raise unsupported(ins, f"needs {count} types .u32 or .s32")
    return ins.types


def second_of(ins):
    return next((SECOND[mod] for mod in ins.modifiers if mod in SECOND), None)


@instruction(*TWO, *SHIFTS)
def arithmetic(ins, m):
    """#video-instructions: vop.dtype.atype.btype{.sat}{.mode}{.op2} d, a, b{, c}"""
    shifts = ins.root in SHIFTS
    allow(ins, "sat", *SECOND, *(("clamp", "wrap") if shifts else ()))
    to, kind_a, kind_b = types_of(ins, 3)
    if shifts and (kind_b != "u32" or ("clamp" in ins.modifiers) == ("wrap" in ins.modifiers)):
        raise unsupported(ins, "shifts by .u32, with .clamp or .wrap")
    second = second_of(ins)
    d, a, b, *c = m.bind(ins, to, kind_a, kind_b, *((to,) if second else ()))
    function, sat, clamp = (
        {**TWO, **SHIFTS}[ins.root],
        "sat" in ins.modifiers,
        "clamp" in ins.modifiers,
    )

    def step(lanes):
        x, y = python_ints(a, lanes), python_ints(b, lanes)
        if shifts:
            y = np.minimum(y, 32) if clamp else y & 31
        result = function(x, y)
        if sat:
            result = np.clip(result, *RANGES[to])
        if second is not None:
            result = second(result, python_ints(c[0], lanes))
        d[lanes.sel] = low32(result, d)

    return step


@instruction("vset")
def compare(ins, m):
    """#video-instructions-vset: vset.atype.btype.cmp{.op2} d, a, b{, c}: 1 or 0; c is unsigned."""
    allow(ins, *COMPARISONS, *SECOND)
    names = [mod for mod in ins.modifiers if mod in COMPARISONS]
    if len(names) != 1:
        raise unsupported(ins, "needs one comparison")
    kind_a, kind_b = types_of(ins, 2)
    second = second_of(ins)
    d, a, b, *c = m.bind(ins, "u32", kind_a, kind_b, *(("u32",) if second else ()))

    def step(lanes):
        holds = COMPARISONS[names[0]](python_ints(a, lanes), python_ints(b, lanes))
        result = np.where(holds.astype(bool), 1, 0).astype(object)
        if second is not None:
            result = second(result, python_ints(c[0], lanes))
        d[lanes.sel] = low32(result, d)

    return step


@instruction("vmad")
def multiply(ins, m):
    """#video-instructions-vmad: vmad.dtype.atype.btype{.po}{.sat}{.scale} d, a, b, c: a * b + c,
    and 1 more with .po, shifted."""
    allow(ins, "po", "sat", *SCALES)
    to, kind_a, kind_b = types_of(ins, 3)
    shift = next((SCALES[mod] for mod in ins.modifiers if mod in SCALES), 0)
    final = "s32" if "s32" in (kind_a, kind_b) else "u32"
    d, a, b, c = m.bind(ins, to, kind_a, kind_b, final)
    more, sat = int("po" in ins.modifiers), "sat" in ins.modifiers

    def step(lanes):
        x, y, z = (python_ints(source, lanes) for source in (a, b, c))
        result = x * y + z + more >> shift
        if sat:
            result = np.clip(result, *RANGES[final])
        d[lanes.sel] = low32(result, d)

    return step

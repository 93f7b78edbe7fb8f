"""setp, set, selp, slct.

https://docs.nvidia.com/cuda/parallel-thread-execution/#comparison-and-selection-instructions
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, refuse, unsupported
from numba_marlin.emulator.instructions.half import HALVES, codec
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.text.program import Pair, Sink

# With NaN every ordered comparison is false; ne alone must exclude it, because NumPy calls NaN
# different from all.
ORDERED = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "ne": lambda x, y: (x < y) | (x > y),
}
INTEGER = {
    **ORDERED,
    "ne": np.not_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
UNORDERED = {f"{name}u": name for name in ORDERED}
COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(ins, kind: str):
    """(name of the comparison, its function on values as they lie in registers)."""
    name = ins.modifiers[0]
    if kind[0] not in "fb" or kind in ("b16", "b32", "b64"):
        refuse(ins, kind, "ftz")
        if name not in INTEGER:
            raise unsupported(ins, f"comparison .{name} is not defined for {kind}")
        return INTEGER[name]
    if kind == "f64":
        refuse(ins, kind, "ftz")
    decode = (
        codec(ins, kind)[0]
        if kind in HALVES
        else numerics.flush
        if "ftz" in ins.modifiers
        else lambda x: x
    )
    if name in ORDERED:
        test, either = ORDERED[name], None
    elif name in UNORDERED:
        test, either = ORDERED[UNORDERED[name]], True
    elif name == "num":
        return lambda x, y: (decode(x) == decode(x)) & (decode(y) == decode(y))
    elif name == "nan":
        return lambda x, y: (decode(x) != decode(x)) | (decode(y) != decode(y))
    else:
        raise unsupported(ins, f"comparison .{name} is not defined for {kind}")

    def function(x, y):
        x, y = decode(x), decode(y)
        result = test(x, y)
        return result | (x != x) | (y != y) if either else result

    return function


@instruction("setp")
def setp(ins, m):
    """#comparison-and-selection-instructions-setp: p|q = (a cmp b) boolop c, and the same with the
    comparison inverted."""
    allow(ins, *INTEGER, *UNORDERED, "num", "nan", "ftz", *COMBINE)
    kind = ins.types[-1]
    result, *rest = operands(ins, 3, 4)
    function = comparison(ins, kind)
    combine = next((COMBINE[mod] for mod in ins.modifiers[1:] if mod in COMBINE), None)
    packed = kind.endswith("x2")
    first, second = (result.first, result.second) if isinstance(result, Pair) else (result, None)
    p = m.destination(ins, first, "pred")
    q = m.destination(ins, second if second is not None else Sink(), "pred")
    a, b = m.source(ins, rest[0], kind), m.source(ins, rest[1], kind)
    c = m.source(ins, rest[2], "pred") if combine is not None else None
    if packed:

        def step(lanes):
            s = lanes.sel
            holds = function(a[s], b[s])
            if c is not None:
                holds = combine(holds, np.asarray(c[s])[..., None])
            p[s], q[s] = holds[..., 0], holds[..., 1]

    elif c is None and second is None:

        def step(lanes):
            s = lanes.sel
            p[s] = function(a[s], b[s])

    else:

        def step(lanes):
            s = lanes.sel
            holds = function(a[s], b[s])
            other = ~holds
            if c is not None:
                with_c = c[s]
                holds, other = combine(holds, with_c), combine(other, with_c)
            p[s], q[s] = holds, other

    return step


# True as each result type has it; of packed halves, in each half.
YES = {
    "u32": 0xFFFFFFFF,
    "s32": -1,
    "f32": 1,
    "u16": 0xFFFF,
    "s16": -1,
    "f16": 0x3C00,
    "bf16": 0x3F80,
}
PACKED_YES = {"u32": 0xFFFF, "s32": 0xFFFF, "f16x2": 0x3C00, "bf16x2": 0x3F80}


@instruction("set")
def set_(ins, m):
    """#comparison-and-selection-instructions-set: all ones or zero for integers, 1.0 or 0.0 for
    floats; packed halves one by one."""
    allow(ins, *INTEGER, *UNORDERED, "num", "nan", "ftz", *COMBINE)
    if len(ins.types) != 2:
        raise unsupported(ins, "needs two types")
    to, kind = ins.types
    d, a, b, *rest = operands(ins, 3, 4)
    function = comparison(ins, kind)
    combine = next((COMBINE[mod] for mod in ins.modifiers[1:] if mod in COMBINE), None)
    c = m.source(ins, rest[0], "pred") if rest else None
    packed = kind.endswith("x2")
    if to not in (PACKED_YES if packed else YES):
        raise unsupported(ins, f"result type {to} of {kind} is not implemented")
    d, a, b = (
        m.destination(ins, d, "f16x2" if packed else to),
        m.source(ins, a, kind),
        m.source(ins, b, kind),
    )
    dtype = np.uint16 if packed else m.dtype(to)
    yes = dtype((PACKED_YES if packed else YES)[to])

    def step(lanes):
        s = lanes.sel
        holds = function(a[s], b[s])
        if c is not None:
            holds = combine(holds, np.asarray(c[s])[..., None] if packed else c[s])
        d[s] = np.where(holds, yes, dtype(0))

    return step


@instruction("selp")
def selp(ins, m):
    """#comparison-and-selection-instructions-selp: p ? a : b"""
    allow(ins)
    kind = ins.types[-1]
    d, a, b, p = m.bind(ins, kind, kind, kind, "pred")

    def step(lanes):
        s = lanes.sel
        d[s] = np.where(p[s], a[s], b[s])

    return step


@instruction("slct")
def slct(ins, m):
    """#comparison-and-selection-instructions-slct: c >= 0 ? a : b; with .ftz a subnormal c is
    zero."""
    allow(ins, "ftz")
    if len(ins.types) != 2 or ins.types[1] not in ("s32", "f32"):
        raise unsupported(ins, "needs a type and .s32 or .f32")
    kind, sign = ins.types
    d, a, b, c = m.bind(ins, kind, kind, kind, sign)
    ftz = "ftz" in ins.modifiers
    if sign == "s32":
        refuse(ins, sign, "ftz")

    def step(lanes):
        s = lanes.sel
        d[s] = np.where((numerics.flush(c[s]) if ftz else np.asarray(c[s])) >= 0, a[s], b[s])

    return step

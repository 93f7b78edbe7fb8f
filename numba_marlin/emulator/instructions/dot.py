"""dp4a and dp2a: dot products of the bytes of a word, added to an integer.

https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions-dp4a, -dp2a
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, unsupported


def parts(values, signed: bool, dtype: str, shape) -> np.ndarray:
    """int64 [*shape, parts] of 32-bit words."""
    words = np.ascontiguousarray(np.broadcast_to(np.asarray(values), shape)).view(np.uint32)
    return words[..., None].view(dtype if not signed else dtype.replace("u", "i")).astype(np.int64)


@instruction("dp4a", "dp2a")
def dot(ins, m):
    """d = c + the sum of products; dp2a takes two halves of a and the two .lo or .hi bytes of b."""
    pair = ins.root == "dp2a"
    allow(ins, *(("lo", "hi") if pair else ()))
    types = ins.types
    if (
        len(types) != 2
        or any(kind not in ("u32", "s32") for kind in types)
        or pair
        and ("lo" in ins.modifiers) == ("hi" in ins.modifiers)
    ):
        raise unsupported(ins, "needs two types .u32 or .s32" + (" and .lo or .hi" if pair else ""))
    signed_a, signed_b = (kind == "s32" for kind in types)
    result = "s32" if signed_a or signed_b else "u32"
    d, a, b, c = m.bind(ins, result, types[0], types[1], result)
    which = slice(2, 4) if "hi" in ins.modifiers else slice(0, 2 if pair else 4)

    def step(lanes):
        s = lanes.sel
        left = parts(a[s], signed_a, "u2" if pair else "u1", lanes.shape)
        right = parts(b[s], signed_b, "u1", lanes.shape)[..., which]
        total = (left * right).sum(axis=-1) + np.asarray(c[s]).astype(np.int64)
        d[s] = total.astype(np.uint32).view(np.int32 if result == "s32" else np.uint32)

    return step

"""Extended precision: add.cc, addc, sub.cc, subc, mad.cc, madc. Every thread has a carry flag,
which those with .cc write and those with c read.

https://docs.nvidia.com/cuda/parallel-thread-execution/#extended-precision-arithmetic-instructions

The flag is the carry of the adder, and a - b is a + ~b + 1 there: after a subtraction it is 1 where
nothing was borrowed. The ISA calls CC.CF a borrow behind sub.cc and subc.cc; ptxas does not invert
it between the two kinds (IADD3 and IADD3.X share one predicate), so it shows where an addc follows
a sub.cc. Nothing else touches the flag; it is 0 when a kernel begins (ISA: undefined).
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, type_of, unsupported
from numba_marlin.emulator.instructions.integer import high_part
from numba_marlin.emulator.state.registers import DTYPES, UNSIGNED
from numba_marlin.emulator.text.program import TYPE_BITS

TYPES = ("u32", "s32", "b32", "u64", "s64", "b64")


@instruction("add.cc", "addc", "sub.cc", "subc", "mad.lo.cc", "mad.hi.cc", "madc")
def extended(ins, m):
    """#extended-precision-arithmetic-instructions-add-cc and its kin: with the flag as a 33rd
    (65th) bit."""
    product = ins.root.startswith("mad")
    allow(ins, "cc", *(("lo", "hi") if ins.root == "madc" else ()))
    kind = type_of(ins, *TYPES)
    high = "hi" in ins.root.split(".") or "hi" in ins.modifiers
    if ins.root == "madc" and high == ("lo" in ins.modifiers):
        raise unsupported(ins, "needs .lo or .hi")
    takes, gives = (
        ins.root in ("addc", "subc", "madc"),
        ins.root.endswith("cc") and ins.root != "madc" and "." in ins.root or "cc" in ins.modifiers,
    )
    subtracts, bits = ins.root.startswith("sub"), TYPE_BITS[kind]
    d, a, b, *c = m.bind(ins, *(kind,) * (4 if product else 3))
    word, carry = UNSIGNED[bits], m.carry

    def step(lanes):
        s = lanes.sel
        x, y = (np.broadcast_to(np.asarray(source[s]), lanes.shape) for source in (a, b))
        if product:
            x = high_part(x, y, bits, kind[0] == "s") if high else x * y
            y = np.broadcast_to(np.asarray(c[0][s]), lanes.shape)
        x, y = np.ascontiguousarray(x).view(word), np.ascontiguousarray(y).view(word)
        more = carry[s].astype(word) if takes else word(subtracts)
        first = x + (~y if subtracts else y)
        result = first + more
        out = (first < x) | (result < first)
        d[s] = result.view(DTYPES[kind])
        if gives:
            carry[s] = out

    return step

"""Integer arithmetic: wraps around at the width of the type.

https://docs.nvidia.com/cuda/parallel-thread-execution/#integer-arithmetic-instructions

add, sub, mul, mad, div, min, max, neg and abs share their opcode with the floating-point forms:
``arithmetic`` dispatches on the type, ``floating`` and ``half`` register theirs in ARITHMETIC.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, type_of, unsupported
from numba_marlin.emulator.state.registers import SIGNED, UNSIGNED
from numba_marlin.emulator.text.program import TYPE_BITS

INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (16, 32, 64))
ARITHMETIC: dict[tuple[str, str], object] = {}


def arithmetic_for(root: str, *types: str):
    """Register ``handler(ins, machine, kind)`` for ``root`` with one of ``types``."""

    def register(handler):
        for kind in types:
            ARITHMETIC[root, kind] = handler
        return handler

    return register


@instruction(
    "add", "sub", "mul", "mad", "fma", "div", "min", "max", "neg", "abs", "rcp", "sqrt", "rsqrt"
)
def arithmetic(ins, m):
    """Chooses by (opcode, type)."""
    kind = ".".join(ins.types)
    handler = ARITHMETIC.get((ins.root, kind))
    if handler is None:
        raise unsupported(ins, f"type {kind or '(none)'} is not implemented")
    return handler(ins, m, kind)


@arithmetic_for("add", *INTEGERS)
@arithmetic_for("sub", *INTEGERS)
def add(ins, m, kind):
    """#integer-arithmetic-instructions-add, -sub: of s32 also with .sat"""
    allow(ins, *(("sat",) if kind == "s32" else ()))
    d, a, b = m.bind(ins, kind, kind, kind)
    if "sat" in ins.modifiers:
        function = np.add if ins.root == "add" else np.subtract

        def step(lanes):
            s = lanes.sel
            d[s] = clamp32(function(a[s], b[s], dtype=np.int64))

    elif ins.root == "add":

        def step(lanes):
            s = lanes.sel
            d[s] = a[s] + b[s]

    else:

        def step(lanes):
            s = lanes.sel
            d[s] = a[s] - b[s]

    return step


def clamp32(values):
    """int64 -> int32, cut off at both ends."""
    info = np.iinfo(np.int32)
    return np.clip(values, info.min, info.max).astype(np.int32)


def high_part(a, b, bits: int, signed: bool):
    """Upper half of the exact product of two ``bits``-wide integers."""
    if bits < 64:
        wide = (SIGNED if signed else UNSIGNED)[2 * bits]
        return ((np.asarray(a).astype(wide) * np.asarray(b).astype(wide)) >> wide(bits)).astype(
            (SIGNED if signed else UNSIGNED)[bits]
        )
    ua, ub = np.asarray(a).view(np.uint64), np.asarray(b).view(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1, b0, b1 = ua & low, ua >> shift, ub & low, ub >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    cross = a0 * b1 + (middle & low)
    high = a1 * b1 + (middle >> shift) + (cross >> shift)
    if not signed:
        return high
    # As signed numbers each negative factor takes the other one off the upper half.
    high = (
        high
        - np.where(ua >> np.uint64(63) != 0, ub, np.uint64(0))
        - np.where(ub >> np.uint64(63) != 0, ua, np.uint64(0))
    )
    return high.view(np.int64)


@arithmetic_for("mul", *INTEGERS)
@arithmetic_for("mad", *INTEGERS)
def mul(ins, m, kind):
    """#integer-arithmetic-instructions-mul, -mad: .lo, .hi, .wide, and with c added; of
    mad.hi.s32 also with .sat."""
    allow(ins, "lo", "hi", "wide", *saturable(ins, "mad"))
    bits, signed = TYPE_BITS[kind], kind[0] == "s"
    part = ins.modifiers[0]
    if part == "wide" and bits == 64:
        raise unsupported(ins, ".wide needs 16 or 32 bits")
    result = f"{kind[0]}{2 * bits}" if part == "wide" else kind
    wide = (SIGNED if signed else UNSIGNED)[min(64, 2 * bits)]
    if part == "lo":

        def product(x, y):
            return x * y

    elif part == "hi":

        def product(x, y):
            return high_part(x, y, bits, signed)

    elif part == "wide":

        def product(x, y):
            return np.multiply(x, y, dtype=wide)

    else:
        raise unsupported(ins, "needs .lo, .hi or .wide")
    if ins.root == "mul":
        d, a, b = m.bind(ins, result, kind, kind)

        def step(lanes):
            s = lanes.sel
            d[s] = product(a[s], b[s])

    else:
        d, a, b, c = m.bind(ins, result, kind, kind, result)
        add = sum32 if "sat" in ins.modifiers else np.add

        def step(lanes):
            s = lanes.sel
            d[s] = add(product(a[s], b[s]), c[s])

    return step


def saturable(ins, root: str) -> tuple[str, ...]:
    """.sat is for ``root``.hi.sat.s32 alone."""
    return ("sat",) if (ins.root, ins.modifiers[0], ins.type) == (root, "hi", "s32") else ()


def sum32(a, b):
    """a + b of int32, cut off at both ends."""
    return clamp32(np.add(a, b, dtype=np.int64))


def divide(a, b, kind: str):
    """(quotient towards zero, remainder with the sign of a). By zero: all ones and a, as GPUs do
    (ISA: unspecified)."""
    a, b = np.broadcast_arrays(a, b)
    zero = b == 0
    divisor = np.where(zero, b.dtype.type(1), b)
    if kind[0] == "u":
        quotient = a // divisor
    else:
        # The most negative number has no positive twin; as unsigned its magnitude is right and the
        # result wraps.
        unsigned = UNSIGNED[TYPE_BITS[kind]]
        magnitude = np.abs(a).view(unsigned) // np.abs(divisor).view(unsigned)
        quotient = np.where((a < 0) != (divisor < 0), unsigned(0) - magnitude, magnitude).view(
            a.dtype
        )
    remainder = a - quotient * divisor
    quotient = np.where(zero, ~b.dtype.type(0), quotient)
    return quotient, np.where(zero, a, remainder)


@arithmetic_for("div", *INTEGERS)
def div(ins, m, kind):
    """#integer-arithmetic-instructions-div"""
    allow(ins)
    d, a, b = m.bind(ins, kind, kind, kind)

    def step(lanes):
        s = lanes.sel
        d[s] = divide(a[s], b[s], kind)[0]

    return step


@instruction("rem")
def rem(ins, m):
    """#integer-arithmetic-instructions-rem"""
    allow(ins)
    kind = type_of(ins, *INTEGERS)
    d, a, b = m.bind(ins, kind, kind, kind)

    def step(lanes):
        s = lanes.sel
        d[s] = divide(a[s], b[s], kind)[1]

    return step


@arithmetic_for("min", *INTEGERS)
@arithmetic_for("max", *INTEGERS)
def minmax(ins, m, kind):
    """#integer-arithmetic-instructions-min, -max: of s32 also with .relu, 0 for what is negative"""
    allow(ins, *(("relu",) if kind == "s32" else ()))
    d, a, b = m.bind(ins, kind, kind, kind)
    choose = np.minimum if ins.root == "min" else np.maximum
    relu = "relu" in ins.modifiers

    def step(lanes):
        s = lanes.sel
        result = choose(a[s], b[s])
        d[s] = np.maximum(result, 0) if relu else result

    return step


@arithmetic_for("neg", "s16", "s32", "s64")
@arithmetic_for("abs", "s16", "s32", "s64")
def negate(ins, m, kind):
    """#integer-arithmetic-instructions-neg, -abs: the most negative number stays what it is."""
    allow(ins)
    d, a = m.bind(ins, kind, kind)
    function = np.negative if ins.root == "neg" else np.abs

    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s])

    return step


@instruction("mul24", "mad24")
def mul24(ins, m):
    """#integer-arithmetic-instructions-mul24, -mad24: of the 48-bit product of two 24-bit numbers,
    .lo or .hi 32 bits; of mad24.hi.s32 also with .sat."""
    allow(ins, "lo", "hi", *saturable(ins, "mad24"))
    kind = type_of(ins, "u32", "s32")
    wide, shift = (np.int64, 40) if kind == "s32" else (np.uint64, 40)
    kinds = (kind,) * (3 if ins.root == "mul24" else 4)
    d, a, b, *c = m.bind(ins, *kinds)
    take = 0 if "lo" in ins.modifiers else 16
    add = sum32 if "sat" in ins.modifiers else np.add

    def low24(x):
        return (np.asarray(x).astype(wide) << wide(shift)) >> wide(shift)

    def step(lanes):
        s = lanes.sel
        value = (
            ((low24(a[s]) * low24(b[s])) >> wide(take))
            .astype(np.uint32)
            .view(np.int32 if kind == "s32" else np.uint32)
        )
        d[s] = add(value, c[0][s]) if c else value

    return step


@instruction("sad")
def sad(ins, m):
    """#integer-arithmetic-instructions-sad: |a - b| + c"""
    allow(ins)
    kind = type_of(ins, *INTEGERS)
    d, a, b, c = m.bind(ins, kind, kind, kind, kind)

    def step(lanes):
        s = lanes.sel
        x, y = a[s], b[s]
        d[s] = c[s] + (np.maximum(x, y) - np.minimum(x, y))

    return step

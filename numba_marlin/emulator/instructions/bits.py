"""Logic, shifts, bit fields, byte permutation.

https://docs.nvidia.com/cuda/parallel-thread-execution/#logic-and-shift-instructions
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import (
    allow,
    either,
    instruction,
    operands,
    type_of,
    unsupported,
)
from numba_marlin.emulator.state.registers import DTYPES, UNSIGNED, Constant
from numba_marlin.emulator.text.program import TYPE_BITS, Pair, Sink

BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@instruction("and", "or", "xor")
def bitwise(ins, m):
    """#logic-and-shift-instructions-and, -or, -xor"""
    allow(ins)
    kind = type_of(ins, "pred", "b16", "b32", "b64")
    d, a, b = m.bind(ins, kind, kind, kind)
    function = BITWISE[ins.root]

    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s], b[s])

    return step


@instruction("not", "cnot")
def invert(ins, m):
    """#logic-and-shift-instructions-not, -cnot (1 where a is 0, else 0)"""
    allow(ins)
    kind = type_of(ins, "pred", "b16", "b32", "b64")
    d, a = m.bind(ins, kind, kind)
    logical = ins.root == "cnot"

    def step(lanes):
        s = lanes.sel
        d[s] = (a[s] == 0) if logical else ~a[s]

    return step


def lop3_function(table: int):
    """The function of three words with truth table ``table``: bit (a << 2 | b << 1 | c) of it for
    each bit position.

    A sum of products over b and c of the four cofactors in a; 0x.. constants fold because & with 0
    and | with 0 vanish.
    """

    def function(a, b, c):
        result = None
        for row in range(8):
            if table >> row & 1:
                term = a if row & 4 else ~a
                term = term & (b if row & 2 else ~b)
                term = term & (c if row & 1 else ~c)
                result = term if result is None else result | term
        return a & np.uint32(0) if result is None else result

    return SHORT_TABLES.get(table, function)


# The tables kernels really use, in fewer operations; a test holds every table against the
# definition.
SHORT_TABLES = {
    0xEA: lambda a, b, c: (a & b) | c,
    0xF8: lambda a, b, c: a | (b & c),
    0xC0: lambda a, b, c: a & b,
    0xFC: lambda a, b, c: a | b,
    0x3C: lambda a, b, c: a ^ b,
    0x96: lambda a, b, c: a ^ b ^ c,
    0x80: lambda a, b, c: a & b & c,
    0xFE: lambda a, b, c: a | b | c,
    0xE8: lambda a, b, c: (a & b) | (c & (a | b)),
    0xCA: lambda a, b, c: (a & b) | (~a & c),
    0x6A: lambda a, b, c: (a & b) ^ c,
    0x78: lambda a, b, c: a ^ (b & c),
}


@instruction("lop3")
def lop3(ins, m):
    """#logic-and-shift-instructions-lop3: lop3.b32 d, a, b, c, immLut; with .or or .and, d|p has
    the predicate (d != 0) and the last operand combined."""
    allow(ins, "or", "and")
    type_of(ins, "b32")
    combine = next((BITWISE[mod] for mod in ins.modifiers if mod in BITWISE), None)
    target, *given = operands(ins, 5 if combine is None else 6)
    if isinstance(target, Pair) == (combine is None):
        raise unsupported(ins, "with .or or .and the result is d|p, without it d")
    first, second = (target.first, target.second) if combine else (target, Sink())
    d, p = m.destination(ins, first, "b32"), m.destination(ins, second, "pred")
    a, b, c = (m.source(ins, operand, "b32") for operand in given[:3])
    q = m.source(ins, given[4], "pred") if combine else None
    function = lop3_function(m.immediate(ins, 4))

    def step(lanes):
        s = lanes.sel
        result = function(a[s], b[s], c[s])
        if combine is not None:
            p[s] = combine(np.asarray(result) != 0, q[s])
        d[s] = result

    return step


@instruction("shl", "shr")
def shift(ins, m):
    """#logic-and-shift-instructions-shl, -shr: amounts above the width clamp to it."""
    allow(ins)
    kind = type_of(ins)
    bits = TYPE_BITS[kind]
    d, a, amount = m.bind(ins, kind, kind, "u32")
    function = np.left_shift if ins.root == "shl" else np.right_shift
    dtype = DTYPES[kind]
    arithmetic = kind[0] == "s" and ins.root == "shr"
    if isinstance(amount, Constant) and int(amount[0]) < bits:
        by = dtype(int(amount[0]))

        def step(lanes):
            s = lanes.sel
            d[s] = function(a[s], by)

        return step

    def step(lanes):
        s = lanes.sel
        n = np.minimum(amount[s], np.uint32(bits))
        value = function(a[s], np.minimum(n, bits - 1).astype(dtype))
        d[s] = value if arithmetic else np.where(n == bits, dtype(0), value)

    return step


@instruction("shf")
def funnel_shift(ins, m):
    """#logic-and-shift-instructions-shf: the 64-bit word b:a shifted; .clamp stops at 32, .wrap
    takes n modulo 32."""
    allow(ins, "l", "r", "clamp", "wrap")
    type_of(ins, "b32")
    d, a, b, c = m.bind(ins, "b32", "b32", "b32", "u32")
    left, wrap = "l" in ins.modifiers, "wrap" in ins.modifiers

    def step(lanes):
        s = lanes.sel
        n = (c[s] & np.uint32(31) if wrap else np.minimum(c[s], np.uint32(32))).astype(np.uint64)
        both = np.asarray(b[s]).astype(np.uint64) << np.uint64(32) | a[s]
        d[s] = (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return step


@instruction("bfe")
def bit_field_extract(ins, m):
    """#integer-arithmetic-instructions-bfe: signed fields extend the bit at min(pos + len - 1,
    msb)."""
    allow(ins)
    kind = type_of(ins, "u32", "s32", "u64", "s64")
    bits = TYPE_BITS[kind]
    word = UNSIGNED[bits]
    d, a, position, length = m.bind(ins, f"b{bits}", f"b{bits}", "u32", "u32")
    signed = kind[0] == "s"

    def step(lanes):
        s = lanes.sel
        value, pos, count = a[s], position[s] & np.uint32(255), length[s] & np.uint32(255)
        low = word(bits - 1)
        shifted = np.where(pos < bits, value >> np.minimum(pos, bits - 1).astype(word), word(0))
        inside = np.where(
            count >= bits, ~word(0), (word(1) << np.minimum(count, bits - 1).astype(word)) - word(1)
        )
        field = shifted & inside
        if signed:
            top = np.minimum(pos + count - np.uint32(1), np.uint32(bits - 1)).astype(word) & low
            negative = (count > 0) & ((value >> top & word(1)) != 0)
            filled = np.where(
                pos < bits, inside & (~word(0) >> np.minimum(pos, bits - 1).astype(word)), word(0)
            )
            field = np.where(negative, (field & filled) | ~filled, field)
        d[s] = field

    return step


@instruction("bfi")
def bit_field_insert(ins, m):
    """#integer-arithmetic-instructions-bfi: the low ``len`` bits of a into b from ``pos``
    upwards."""
    allow(ins)
    kind = type_of(ins, "b32", "b64")
    bits = TYPE_BITS[kind]
    word = UNSIGNED[bits]
    d, a, b, position, length = m.bind(ins, kind, kind, kind, "u32", "u32")

    def step(lanes):
        s = lanes.sel
        pos, count = position[s] & np.uint32(255), length[s] & np.uint32(255)
        ones = np.where(
            count >= bits, ~word(0), (word(1) << np.minimum(count, bits - 1).astype(word)) - word(1)
        )
        by = np.minimum(pos, bits - 1).astype(word)
        mask = np.where(pos < bits, ones << by, word(0))
        d[s] = (b[s] & ~mask) | (np.asarray(a[s]) << by & mask)

    return step


@instruction("bmsk")
def bit_mask(ins, m):
    """#integer-arithmetic-instructions-bmsk: b ones from bit a upwards. .clamp stops at bit 32,
    .wrap takes a and b modulo 32."""
    clamp = either(ins, "clamp", "wrap") == "clamp"
    type_of(ins, "b32")
    d, a, b = m.bind(ins, "b32", "u32", "u32")

    def step(lanes):
        s = lanes.sel
        first, count = (np.asarray(source[s]).astype(np.uint64) for source in (a, b))
        if clamp:
            first, count = np.minimum(first, np.uint64(32)), np.minimum(count, np.uint64(32))
        else:
            first, count = first & np.uint64(31), count & np.uint64(31)
        ones = (np.uint64(1) << count) - np.uint64(1)
        d[s] = (ones << first).astype(np.uint32)

    return step


@instruction("szext")
def extend(ins, m):
    """#integer-arithmetic-instructions-szext: the low b bits of a, extended by their sign (s32) or
    by zeros. .clamp takes all of a from b = 32 on, .wrap takes b modulo 32."""
    clamp = either(ins, "clamp", "wrap") == "clamp"
    kind = type_of(ins, "u32", "s32")
    d, a, b = m.bind(ins, "b32", "b32", "u32")

    def step(lanes):
        s = lanes.sel
        count = np.minimum(b[s], np.uint32(32)) if clamp else b[s] & np.uint32(31)
        count = np.asarray(count).astype(np.uint64)
        value = np.asarray(a[s]).astype(np.uint64) & ((np.uint64(1) << count) - np.uint64(1))
        if kind == "s32":
            sign = (np.uint64(1) << count) >> np.uint64(1)
            value = (value ^ sign) - sign
        d[s] = value.astype(np.uint32)

    return step


@instruction("prmt")
def permute_bytes(ins, m):
    """#data-movement-and-conversion-instructions-prmt: default mode and .f4e .b4e .rc8 .ecl .ecr
    .rc16"""
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    allow(ins, *modes)
    d, a, b, c = m.bind(ins, "b32", "b32", "b32", "b32")
    mode = next((mode for mode in ins.modifiers if mode in modes), None)

    def step(lanes):
        s = lanes.sel
        both = np.asarray(b[s]).astype(np.uint64) << np.uint64(32) | a[s]
        selector = np.asarray(c[s])
        result = np.uint32(0)
        for i in range(4):
            if mode is None:
                nibble = selector >> np.uint32(4 * i) & np.uint32(15)
            else:
                nibble = mode_selector(mode, i, selector & np.uint32(3))
            byte = (
                both >> ((nibble & np.uint32(7)).astype(np.uint64) << np.uint64(3))
                & np.uint64(0xFF)
            ).astype(np.uint32)
            sign = np.where(byte >= 128, np.uint32(0xFF), np.uint32(0))
            result = result | np.where(nibble >= 8, sign, byte) << np.uint32(8 * i)
        d[s] = result

    return step


def mode_selector(mode: str, i: int, n):
    """Which byte of b:a becomes byte ``i`` of the result, by the tables of the special modes."""
    n = np.asarray(n, np.uint32)
    i = np.uint32(i)
    if mode == "f4e":
        return n + i
    if mode == "b4e":
        return (n - i) & np.uint32(7)
    if mode == "rc8":
        return n
    if mode == "ecl":
        return np.maximum(n, i)
    if mode == "ecr":
        return np.minimum(n, i)
    return (n & np.uint32(1)) * np.uint32(2) + (i & np.uint32(1))


@instruction("popc")
def popc(ins, m):
    """#integer-arithmetic-instructions-popc"""
    allow(ins)
    kind = type_of(ins, "b32", "b64")
    d, a = m.bind(ins, "u32", kind)

    def step(lanes):
        s = lanes.sel
        d[s] = np.bitwise_count(a[s])

    return step


def leading_position(value, bits: int):
    """Bit number of the highest set bit of unsigned ``value``; -1 where there is none."""
    value, position = np.asarray(value).copy(), np.zeros(np.shape(value), np.int32)
    word = UNSIGNED[bits]
    empty = value == 0
    for step in (32, 16, 8, 4, 2, 1):
        if step < bits:
            high = value >> word(step) != 0
            position += np.where(high, np.int32(step), np.int32(0))
            value = np.where(high, value >> word(step), value)
    return np.where(empty, np.int32(-1), position)


@instruction("clz")
def clz(ins, m):
    """#integer-arithmetic-instructions-clz"""
    allow(ins)
    kind = type_of(ins, "b32", "b64")
    d, a = m.bind(ins, "u32", kind)
    bits = TYPE_BITS[kind]

    def step(lanes):
        s = lanes.sel
        d[s] = bits - 1 - leading_position(a[s], bits)

    return step


@instruction("bfind")
def bfind(ins, m):
    """#integer-arithmetic-instructions-bfind: position of the highest bit that differs from the
    sign; -1 if none."""
    allow(ins, "shiftamt")
    kind = type_of(ins, "u32", "s32", "u64", "s64")
    bits = TYPE_BITS[kind]
    d, a = m.bind(ins, "u32", kind)

    def step(lanes):
        s = lanes.sel
        value = np.asarray(a[s])
        value = np.where(value < 0, ~value, value).astype(UNSIGNED[bits])
        position = leading_position(value, bits)
        if "shiftamt" in ins.modifiers:
            position = np.where(position < 0, np.int32(-1), np.int32(bits - 1) - position)
        d[s] = position.astype(np.int32).view(np.uint32)

    return step


@instruction("brev")
def brev(ins, m):
    """#integer-arithmetic-instructions-brev"""
    allow(ins)
    kind = type_of(ins, "b32", "b64")
    d, a = m.bind(ins, kind, kind)
    bits = TYPE_BITS[kind]

    def step(lanes):
        s = lanes.sel
        value, result = np.asarray(a[s]), UNSIGNED[bits](0)
        for i in range(bits):
            result = result << UNSIGNED[bits](1) | (value >> UNSIGNED[bits](i) & UNSIGNED[bits](1))
        d[s] = result

    return step

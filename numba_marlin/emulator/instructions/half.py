"""fp16 and bf16 arithmetic, scalar and packed: each lane of a pair is rounded once to its own
format.

https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions

Values travel as bit patterns (uint16; packed: a last axis of 2, low half first). fp16 sums and
products in float32 and then to fp16 round as if once, because 24 >= 2 * 11 + 2 bits; bf16 likewise
(24 >= 2 * 8 + 2). fp16 .ftz flushes subnormals; of the options, bf16 has .relu alone.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, operands, refuse, unsupported
from numba_marlin.emulator.instructions.floating import MODES, choose_with_options, rounding
from numba_marlin.emulator.instructions.integer import arithmetic_for
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.state.numerics import (
    brain_bits,
    brain_values,
    half_bits,
    half_values,
    sum_to_odd,
)

HALVES = ("f16", "f16x2", "bf16", "bf16x2")
SIGN = np.uint16(0x8000)


def flush16(bits):
    """fp16 subnormals to zero of the same sign."""
    return np.where(bits & np.uint16(0x7C00) == 0, bits & SIGN, bits)


def codec(ins, kind: str):
    """(bits -> float32, float -> bits) of ``kind`` with the options of ``ins``."""
    decode, encode = half_values, half_bits
    if kind.startswith("bf16"):
        refuse(ins, kind, "ftz", "sat")
        decode, encode = brain_values, brain_bits
    if "sat" in ins.modifiers:
        inner_sat = encode

        def encode(values):
            return inner_sat(numerics.saturate(np.asarray(values)))

    if "relu" in ins.modifiers:
        inner_relu = encode

        def encode(values):
            return inner_relu(np.where(values < 0, np.asarray(values).dtype.type(0), values))

    if "ftz" in ins.modifiers:
        inner = encode

        def decode(bits):
            return half_values(flush16(bits))

        def encode(values):
            return flush16(inner(values))

    return decode, encode


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def binary(ins, m, kind):
    """#half-precision-floating-point-instructions-add, -sub, -mul"""
    allow(ins, "rn", "ftz", "sat")
    d, a, b = m.bind(ins, kind, kind, kind)
    decode, encode = codec(ins, kind)
    function = BINARY[ins.root]

    def step(lanes):
        s = lanes.sel
        d[s] = encode(function(decode(a[s]), decode(b[s])))

    return step


def fused(ins, m, kind):
    """#half-precision-floating-point-instructions-fma: one rounding, because float64 holds the sum
    wherever rounding can tell.

    Products of fp16 have 22 bits. If the product leads and does not overflow fp16, the sum spans at
    most 42 bits; if c leads, the product would have to sit within 33 bits of c's top to reach a
    tie, and then the sum is exact as well. Otherwise the result is c or an infinity either way.
    """
    allow(ins, "rn", "ftz", "sat", "relu")
    d, a, b, c = m.bind(ins, kind, kind, kind, kind)
    decode, encode = codec(ins, kind)
    # bf16 has the exponents of float32, so there the sum does need rounding to odd.
    add = sum_to_odd if kind.startswith("bf16") else np.add

    def step(lanes):
        s = lanes.sel
        d[s] = encode(add(np.multiply(decode(a[s]), decode(b[s]), dtype=np.float64), decode(c[s])))

    return step


def mixed(ins, m, kind):
    """#mixed-precision-floating-point-instructions-add, -sub, -fma: add.f32.f16 d, a, c and
    fma.f32.f16 d, a, b, c, where a and b are halves (sm_100); rounded once, to float32."""
    allow(ins, *MODES, "sat")
    half = kind.split(".")[1]
    decode = half_values if half == "f16" else brain_values
    mode, sat = rounding(ins), "sat" in ins.modifiers
    product = ins.root == "fma"
    d, *halves, c = m.bind(ins, "f32", *(half,) * (2 if product else 1), "f32")

    def step(lanes):
        s = lanes.sel
        x, y = decode(halves[0][s]).astype(np.float64), np.asarray(c[s]).astype(np.float64)
        if product:
            x = x * decode(halves[1][s])
        result = numerics.sum32(x, -y if ins.root == "sub" else y, mode)
        d[s] = numerics.saturate(result) if sat else result

    return step


def minmax(ins, m, kind):
    """#half-precision-floating-point-instructions-min, -max"""
    allow(ins, "ftz", "NaN", "xorsign", "abs")
    if ("abs" in ins.modifiers) != ("xorsign" in ins.modifiers):
        raise unsupported(ins, ".xorsign and .abs come together")
    operands(ins, 3)
    d, a, b = m.bind(ins, kind, kind, kind)
    decode, encode = codec(ins, kind)

    def step(lanes):
        s = lanes.sel
        d[s] = encode(choose_with_options(ins, decode(a[s]), decode(b[s])))

    return step


def sign(ins, m, kind):
    """#half-precision-floating-point-instructions-neg, -abs: only the sign bit changes."""
    allow(ins, "ftz")
    if kind.startswith("bf16"):
        refuse(ins, kind, "ftz")
    d, a = m.bind(ins, kind, kind)
    negate, ftz = ins.root == "neg", "ftz" in ins.modifiers

    def step(lanes):
        s = lanes.sel
        bits = flush16(a[s]) if ftz else a[s]
        d[s] = bits ^ SIGN if negate else bits & ~SIGN

    return step


def transcendental(ins, m, kind):
    """#half-precision-floating-point-instructions-ex2, -tanh: .approx; here the exact value,
    rounded once. ex2 of bf16 takes .ftz."""
    allow(ins, "approx", *(("ftz",) if ins.root == "ex2" else ()))
    flushes = "ftz" in ins.modifiers
    decode, encode = (
        (brain_values, brain_bits) if kind.startswith("bf16") else (half_values, half_bits)
    )
    flush = (
        (lambda bits: np.where(bits & np.uint16(0x7F80) == 0, bits & SIGN, bits))
        if kind.startswith("bf16")
        else flush16
    )
    function = np.exp2 if ins.root == "ex2" else np.tanh
    d, a = m.bind(ins, kind, kind)

    def step(lanes):
        s = lanes.sel
        bits = np.asarray(a[s])
        result = encode(function(decode(flush(bits) if flushes else bits).astype(np.float64)))
        d[s] = flush(result) if flushes else result

    return step


for _roots, _handler in (
    (("ex2", "tanh"), transcendental),
    (("add", "sub", "mul"), binary),
    (("fma",), fused),
    (("min", "max"), minmax),
    (("neg", "abs"), sign),
):
    for _root in _roots:
        arithmetic_for(_root, *HALVES)(_handler)
for _root in ("add", "sub", "fma"):
    arithmetic_for(_root, "f32.f16", "f32.bf16")(mixed)

"""float32 and float64 arithmetic: one rounding each, canonical NaN for float32, .ftz and .sat where
asked for.

https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions

The .approx forms (div, rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh) are computed in float64 and
rounded once: at least as accurate as a GPU, not the same last bits.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import (
    allow,
    instruction,
    operands,
    refuse,
    type_of,
    unsupported,
)
from numba_marlin.emulator.instructions.integer import ARITHMETIC, arithmetic_for
from numba_marlin.emulator.state import doubles, numerics

MODES = ("rn", "rz", "rm", "rp")


def rounding(ins) -> str:
    return next((mode for mode in ins.modifiers if mode in MODES), "rn")


def with_options(ins, function):
    """``function(*float32 arrays)`` with .ftz on its inputs and result and .sat on its result."""
    ftz, sat = "ftz" in ins.modifiers, "sat" in ins.modifiers
    if not (ftz or sat):
        return function

    def wrapped(*values):
        if ftz:
            values = [numerics.flush(value) for value in values]
        result = function(*values)
        if ftz:
            result = numerics.flush(result)
        return numerics.saturate(np.asarray(result)) if sat else result

    return wrapped


def apply2(d, a, b, function):
    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s], b[s])

    return step


SINGLE = {
    "add": (np.add, numerics.sum32),
    "sub": (np.subtract, lambda x, y, mode: numerics.sum32(x, np.negative(y), mode)),
    "mul": (
        np.multiply,
        lambda x, y, mode: numerics.narrow32(np.multiply(x, y, dtype=np.float64), mode),
    ),
    # a quotient of 24 bits each that is no float32 lies further from all of them than half an ulp
    # of a float64, so rounding it twice in one direction is rounding once
    "div": (
        np.divide,
        lambda x, y, mode: numerics.narrow32(np.divide(x, y, dtype=np.float64), mode),
    ),
}


@arithmetic_for("add", "f32", "f32x2")
@arithmetic_for("sub", "f32", "f32x2")
@arithmetic_for("mul", "f32", "f32x2")
@arithmetic_for("div", "f32")
def binary32(ins, m, kind):
    """#floating-point-instructions-add, -sub, -mul, -div; of pairs (sm_100) each by itself"""
    allow(ins, *MODES, "ftz", "sat", *(("approx", "full") if ins.root == "div" else ()))
    if kind == "f32x2":
        refuse(ins, kind, "sat")
    nearest, directed = SINGLE[ins.root]
    mode = rounding(ins)
    if mode == "rn":

        def function(x, y):
            return numerics.canonical32(nearest(x, y))

    else:

        def function(x, y):
            return directed(x, y, mode)

    return apply2(*m.bind(ins, kind, kind, kind), with_options(ins, function))


DOUBLE = {
    "add": (np.add, doubles.total),
    "sub": (np.subtract, lambda x, y, mode: doubles.total(x, np.negative(y), mode)),
    "mul": (np.multiply, doubles.product),
    "div": (np.divide, lambda x, y, mode: doubles.quotient(x, y, mode=mode)),
}


@arithmetic_for("add", "f64")
@arithmetic_for("sub", "f64")
@arithmetic_for("mul", "f64")
@arithmetic_for("div", "f64")
def binary64(ins, m, kind):
    """#floating-point-instructions-add, ..."""
    allow(ins, *MODES)
    nearest, directed = DOUBLE[ins.root]
    mode = rounding(ins)
    return apply2(
        *m.bind(ins, kind, kind, kind),
        nearest if mode == "rn" else lambda x, y: directed(x, y, mode),
    )


@arithmetic_for("fma", "f32", "f32x2", "f64")
@arithmetic_for("mad", "f32", "f64")
def fused(ins, m, kind):
    """#floating-point-instructions-fma, -mad: a * b + c rounded once."""
    allow(ins, *MODES, "ftz", "sat")
    mode = rounding(ins)
    if kind == "f64":
        refuse(ins, kind, "ftz", "sat")
    if kind == "f32x2":
        refuse(ins, kind, "sat")
    d, a, b, c = m.bind(ins, kind, kind, kind, kind)
    if kind == "f64":
        function = lambda x, y, z: doubles.fma(x, y, z, mode=mode)  # noqa: E731
    else:
        function = with_options(ins, lambda x, y, z: numerics.fma32(x, y, z, mode))

    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s], b[s], c[s])

    return step


def choose(root: str, x, y, propagate: bool):
    """min or max: of one NaN the other operand (or NaN with .NaN), -0 below +0."""
    sign_x = np.signbit(x)
    x_first = (x < y) | ((x == y) & sign_x) if root == "min" else (x > y) | ((x == y) & ~sign_x)
    result = np.where(x_first, x, y)
    x_nan, y_nan = x != x, y != y
    if propagate:
        return np.where(x_nan | y_nan, x + y, result)
    return np.where(x_nan, y, np.where(y_nan, x, result))


@arithmetic_for("min", "f32")
@arithmetic_for("max", "f32")
@arithmetic_for("min", "f64")
@arithmetic_for("max", "f64")
def minmax(ins, m, kind):
    """#floating-point-instructions-min, -max: of two, or of three float32 (sm_100)."""
    if kind == "f64":
        allow(ins)
        return apply2(
            *m.bind(ins, kind, kind, kind), lambda x, y: choose(ins.root, x, y, propagate=False)
        )
    three = len(operands(ins, 3, 4)) == 4
    allow(ins, "ftz", "NaN", *(("abs",) if three else ("xorsign", "abs")))
    if not three and ("abs" in ins.modifiers) != ("xorsign" in ins.modifiers):
        raise unsupported(ins, "of two operands, .xorsign and .abs come together")
    function = with_options(
        ins, lambda *values: numerics.canonical32(choose_with_options(ins, *values))
    )
    d, *sources = m.bind(ins, *(kind,) * len(ins.operands))

    def step(lanes):
        s = lanes.sel
        d[s] = function(*(source[s] for source in sources))

    return step


def choose_with_options(ins, *values):
    """min or max of floats with .NaN, .abs and .xorsign: with the last the result's sign is the
    exclusive or of the operands'."""
    sizes = tuple(np.abs(value) for value in values) if "abs" in ins.modifiers else values
    result = sizes[0]
    for value in sizes[1:]:
        result = choose(ins.root, result, value, "NaN" in ins.modifiers)
    if "xorsign" in ins.modifiers:
        negative = np.signbit(values[0]) ^ np.signbit(values[1])
        result = np.where(negative & (result == result), np.negative(result), result)
    return result


@arithmetic_for("neg", "f32")
@arithmetic_for("abs", "f32")
@arithmetic_for("neg", "f64")
@arithmetic_for("abs", "f64")
def sign(ins, m, kind):
    """#floating-point-instructions-neg, -abs"""
    allow(ins, "ftz")
    if kind == "f64":
        refuse(ins, kind, "ftz")
    d, a = m.bind(ins, kind, kind)
    function = with_options(ins, np.negative if ins.root == "neg" else np.abs)

    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s])

    return step


UNARY = {
    "rcp": lambda x: 1 / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


def upper_half(exact):
    """#floating-point-instructions-rcp-approx-ftz-f64, -rsqrt-approx-ftz-f64: from the upper 32
    bits of the operand, and of the result only those."""

    def rough(x):
        words = np.atleast_1d(np.asarray(x, np.float64)).view(np.uint64) & np.uint64(
            0xFFFFFFFF00000000
        )
        words = np.where(words & np.uint64(0x7FF0000000000000), words, words & np.uint64(1 << 63))
        result = exact(words.view(np.float64))
        words = np.where(
            np.abs(result) < np.finfo(np.float64).tiny, np.copysign(0.0, result), result
        ).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
        return words.view(np.float64).reshape(np.shape(x))

    return rough


DIRECTED64 = {
    "rcp": lambda x, mode: doubles.quotient(1.0, x, mode=mode),
    "sqrt": lambda x, mode: doubles.root(x, mode=mode),
}


def unary(ins, m, kind):
    """#floating-point-instructions-rcp, -sqrt, -rsqrt, -ex2, -lg2, -sin, -cos, -tanh"""
    exactly = ins.root in DIRECTED64 and any(mode in ins.modifiers for mode in MODES)
    allow(ins, "ftz", *(MODES if exactly else ("approx",)))
    d, a = m.bind(ins, kind, kind)
    exact, mode = UNARY[ins.root], rounding(ins)
    if kind == "f32":  # one rounding from float64: 1/x and sqrt of 24 bits are clear of ties in 53
        function = with_options(
            ins, lambda x: numerics.narrow32(exact(np.asarray(x, np.float64)), mode)
        )
    elif exactly:
        refuse(ins, kind, "ftz")
        function = exact if mode == "rn" else lambda x: DIRECTED64[ins.root](x, mode)
    elif "ftz" in ins.modifiers and ins.root in ("rcp", "rsqrt"):
        function = upper_half(exact)
    elif "ftz" not in ins.modifiers and ins.root == "rsqrt":
        function = exact
    else:
        raise unsupported(ins, "of f64 there are rcp.approx.ftz and rsqrt.approx{.ftz} only")

    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s])

    return step


for _root in ("rcp", "sqrt", "rsqrt"):
    arithmetic_for(_root, "f32", "f64")(unary)


@instruction("ex2", "lg2", "sin", "cos", "tanh")
def transcendental(ins, m):
    """As ``unary``, for opcodes that only exist for floats."""
    if ins.types == ["f32"]:
        return unary(ins, m, "f32")
    handler = ARITHMETIC.get((ins.root, ins.types[-1] if len(ins.types) == 1 else ""))
    if handler is None:
        raise unsupported(ins, f"type {'.'.join(ins.types) or '(none)'} is not implemented")
    return handler(ins, m, ins.types[-1])


@instruction("copysign")
def copysign(ins, m):
    """#floating-point-instructions-copysign: copysign d, a, b gives b the sign of a."""
    allow(ins)
    kind = type_of(ins, "f32", "f64")
    return apply2(*m.bind(ins, kind, kind, kind), lambda x, y: np.copysign(y, x))


@instruction("testp")
def testp(ins, m):
    """#floating-point-instructions-testp"""
    kind = type_of(ins, "f32", "f64")
    d, a = m.bind(ins, "pred", kind)
    smallest = np.finfo(m.dtype(kind)).tiny
    tests = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: x == x,
        "notanumber": lambda x: x != x,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= smallest),
        "subnormal": lambda x: (np.abs(x) < smallest) & (x != 0),
    }
    allow(ins, *tests)
    test = ins.modifiers[0]
    if test not in tests:
        raise unsupported(ins, f"names none of the tests {', '.join(tests)}")

    def step(lanes):
        s = lanes.sel
        d[s] = tests[test](a[s])

    return step

"""cvt: among integers, fp16, bf16, float32 and float64, with every rounding each pair allows.
``convert_packed`` has those of several numbers at once and of smaller floats.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt

Every source becomes an intermediate that loses nothing (integers as they are, floats as float64),
is rounded to an integer if .r?i says so, saturated, and encoded once.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, refuse, unsupported
from numba_marlin.emulator.instructions.convert_packed import (
    HALF_ENCODERS,
    half_encoder,
    special_form,
)
from numba_marlin.emulator.state import doubles, numerics
from numba_marlin.emulator.state.registers import DTYPES
from numba_marlin.emulator.text.program import TYPE_BITS

FLOATS = ("f16", "bf16", "f32", "f64")
INTEGER_ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
FLOAT_ROUNDINGS = ("rn", "rz", "rm", "rp")
DECODE = {
    "f16": lambda x: numerics.half_values(x).astype(np.float64),
    "bf16": lambda x: numerics.brain_values(x).astype(np.float64),
    "f32": lambda x: np.asarray(x).astype(np.float64),
    "f64": np.asarray,
}
ENCODE = {
    "f32": numerics.narrow32,
    "f64": lambda x, mode: np.asarray(x),
}


def encode(ins, kind: str, mode: str):
    """float64 -> bits of ``kind``."""
    if kind in HALF_ENCODERS:
        return half_encoder(ins, kind, mode)
    return lambda values: ENCODE[kind](values, mode)


@instruction("cvt")
def cvt(ins, m):
    if (step := special_form(ins, m)) is not None:
        return step
    allow(ins, *INTEGER_ROUNDINGS, *FLOAT_ROUNDINGS, "ftz", "sat", "relu", "satfinite")
    if len(ins.types) != 2:
        raise unsupported(ins, "needs a destination and a source type")
    to, kind = ins.types
    if "ftz" in ins.modifiers and "f32" not in (to, kind):
        raise unsupported(ins, "modifier .ftz is defined where f32 takes part")
    target, origin = operands(ins, 2)
    d = m.extended(ins, target, to)
    a = m.source(ins, origin, kind)
    function = conversion(ins, to, kind)

    def step(lanes):
        s = lanes.sel
        d[s] = function(a[s])  # assignment extends by the sign of the values

    return step


def conversion(ins, to: str, kind: str):
    """Function from register values of ``kind`` to register values of ``to``."""
    from_float, to_float = kind in FLOATS, to in FLOATS
    sat = "sat" in ins.modifiers
    if to not in HALF_ENCODERS or kind != "f32":
        refuse(ins, f"{to} from {kind}", "relu", "satfinite")
    mode = next((x for x in ins.modifiers if x in FLOAT_ROUNDINGS), "rn")
    whole = next((INTEGER_ROUNDINGS[x] for x in ins.modifiers if x in INTEGER_ROUNDINGS), None)
    if not from_float and not to_float:
        return integer_to_integer(to, kind, sat)
    ftz = "ftz" in ins.modifiers
    if not from_float:
        write = encode(ins, to, mode)
        if sat:
            return lambda x: write(numerics.saturate(integer_value(x, to, mode)))
        return lambda x: write(integer_value(x, to, mode))
    read = DECODE[kind]
    if ftz and kind == "f32":
        read = lambda x: numerics.flush(np.asarray(x)).astype(np.float64)  # noqa: E731
    if not to_float:
        if whole is None:
            raise unsupported(ins, "float to integer needs .rni, .rzi, .rmi or .rpi")
        return lambda x: float_to_integer(whole(read(x)), to, kind)
    if kind == to and whole is None and not sat and not ftz:
        return np.asarray
    write = encode(ins, to, mode)

    def function(x):
        value = read(x)
        if whole is not None:
            value = whole(value)
        if sat:
            value = numerics.saturate(value)
        result = write(value)
        return numerics.flush(result) if ftz and to == "f32" else result

    return function


def integer_to_integer(to: str, kind: str, sat: bool):
    """Truncate or extend (by the source's sign); .sat clamps to the destination's range instead."""
    dtype = DTYPES[to]
    if not sat:
        return lambda x: np.asarray(x).astype(dtype)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    source = np.iinfo(DTYPES[kind])
    low, high = max(int(low), int(source.min)), min(int(high), int(source.max))
    return lambda x: np.clip(np.asarray(x), DTYPES[kind](low), DTYPES[kind](high)).astype(dtype)


def integer_value(x, to: str, mode: str):
    """An integer as float64: exact below 54 bits, else rounded to odd (in ``mode`` for a float64
    result)."""
    x = np.asarray(x)
    if x.dtype.itemsize < 8 or to == "f64" and mode == "rn":
        return x.astype(np.float64)
    shift = x.dtype.type(32)
    high = (x >> shift).astype(np.float64) * 2.0**32
    low = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return doubles.total(high, low, mode) if to == "f64" else numerics.sum_to_odd(high, low)


def float_to_integer(values, to: str, kind: str):
    """A whole float64 as ``to``, clamped to its range. NaN is 0, or the sign bit alone where f64 or
    64 bits take part."""
    dtype = DTYPES[to]
    info = np.iinfo(dtype)
    nan = values != values
    # 2**63 and 2**64 are floats, their predecessors as integers are not: compare, do not clip.
    above, below = values >= float(info.max), values <= float(info.min)
    inside = np.where(nan | above | below, 0.0, values)
    result = inside.astype(dtype)
    result = np.where(above, dtype(info.max), np.where(below, dtype(info.min), result))
    bits = TYPE_BITS[to]
    special = (
        dtype(0)
        if kind != "f64" and bits != 64
        else np.array(1 << bits - 1, f"u{bits // 8}").view(dtype)
    )
    return np.where(nan, special, result)

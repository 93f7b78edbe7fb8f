"""cvt: among integers, fp16, bf16, float32 and float64, with every rounding each pair allows; pairs
of 8-bit floats from float32, and to fp16.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt

Every source becomes an intermediate that loses nothing (integers as they are, floats as float64),
is rounded to an integer if .r?i says so, saturated, and encoded once.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.instructions import allow, instruction, operands, refuse, unsupported
from numba_marlin.emulator.state import numerics, small_floats
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
    "f16": numerics.half_bits_directed,
    "bf16": numerics.brain_bits,
    "f32": numerics.narrow32,
    "f64": lambda x, mode: np.asarray(x),
}


def encode(ins, kind: str, mode: str):
    """float64 -> bits of ``kind``; unknown (kind, mode) pairs are refused now, not at run time."""
    if kind in ("f16", "bf16") and mode not in ("rn", "rz"):
        raise unsupported(ins, f"rounding .{mode} to {kind} is not implemented")
    return lambda values: ENCODE[kind](values, mode)


@instruction("cvt")
def cvt(ins, m):
    if small := [kind for kind in small_floats.KINDS if f"{kind}x2" in ins.modifiers]:
        return small_pair(ins, m, small[0])
    allow(ins, *INTEGER_ROUNDINGS, *FLOAT_ROUNDINGS, "ftz", "sat", "relu")
    if len(ins.types) != 2:
        raise unsupported(ins, "needs a destination and a source type")
    to, kind = ins.types
    if "ftz" in ins.modifiers and "f32" not in (to, kind):
        raise unsupported(ins, "modifier .ftz is defined where f32 takes part")
    if to.endswith("x2"):
        return packed(ins, m, to, kind)
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
    if "relu" in ins.modifiers:
        raise unsupported(ins, ".relu is implemented for packed results only")
    mode = next((x for x in ins.modifiers if x in FLOAT_ROUNDINGS), "rn")
    whole = next((INTEGER_ROUNDINGS[x] for x in ins.modifiers if x in INTEGER_ROUNDINGS), None)
    if not from_float and not to_float:
        return integer_to_integer(to, kind, sat)
    ftz = "ftz" in ins.modifiers
    if not from_float:
        write = encode(ins, to, mode)
        if to == "f64" and mode != "rn":
            raise unsupported(ins, f"rounding .{mode} to f64 is not implemented")
        if sat:
            return lambda x: write(numerics.saturate(integer_value(x, to)))
        return lambda x: write(integer_value(x, to))
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


def integer_value(x, to: str):
    """An integer as float64: exact below 54 bits, else rounded to odd (to nearest for a float64
    result)."""
    x = np.asarray(x)
    if to == "f64" or x.dtype.itemsize < 8:
        return x.astype(np.float64)
    shift = x.dtype.type(32)
    high = (x >> shift).astype(np.float64) * 2.0**32
    return numerics.sum_to_odd(high, (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64))


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


def packed(ins, m, to: str, kind: str):
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper, b the lower half."""
    if kind != "f32":
        raise unsupported(ins, f"{to} from {kind} is not implemented")
    mode = next((x for x in ins.modifiers if x in FLOAT_ROUNDINGS), "rn")
    write = encode(ins, to[:-2], mode)
    relu = "relu" in ins.modifiers
    refuse(ins, to, "sat", "ftz", *INTEGER_ROUNDINGS)
    d, a, b = m.bind(ins, to, "f32", "f32")

    def step(lanes):
        s = lanes.sel
        for half, source in ((1, a), (0, b)):
            value = np.asarray(source[s]).astype(np.float64)
            if relu:
                value = np.where(value < 0, 0.0, value)
            d[(s, slice(None), half) if isinstance(s, slice) else index_half(s, half)] = write(
                value
            )

    return step


def index_half(sel, half: int):
    """Index of one half of a packed register for array selections."""
    return (*sel, half) if isinstance(sel, tuple) else (sel, slice(None), half)


def small_pair(ins, m, kind: str):
    """cvt.rn.satfinite.e4m3x2.f32 d, a, b: a becomes the upper, b the lower byte;
    cvt.rn.f16x2.e4m3x2 d, a: halves in the same order."""
    if ins.modifiers == ("rn", "f16x2", f"{kind}x2"):
        d, a = m.bind(ins, "u32", "u16")
        halves = small_floats.HALVES[kind].astype(np.uint32)

        def widen(lanes):
            s = lanes.sel
            pair = np.asarray(a[s])
            d[s] = halves[pair & np.uint16(0xFF)] | halves[pair >> np.uint16(8)] << np.uint32(16)

        return widen
    if ins.modifiers != ("rn", "satfinite", f"{kind}x2", "f32"):
        raise unsupported(
            ins, f"{kind}x2 is implemented from .f32 with .rn.satfinite, and to .f16x2 with .rn"
        )
    d, a, b = m.bind(ins, "u16", "f32", "f32")

    def narrow(lanes):
        s = lanes.sel
        d[s] = small_floats.codes_of(a[s], kind) << np.uint16(8) | small_floats.codes_of(b[s], kind)

    return narrow

"""What ZLUDA's tests give their kernels and want back: the calls of ``test_ptx!``,
``test_ptx_warp!`` and ``test_ptx_with_32!`` in ptx/src/test/spirv_run/mod.rs, read as text.

A value is a Rust literal with or without its type, or one of the few expressions that stand there:
``f32::NAN``, ``i32::MIN``, ``half::f16::from_f32(3.14)``, ``f32::from_bits(0x800000)``,
``PI / 2f32``. Values of one list have one type: that of any that says it, else i32, or f64 where
one has a point. ValueError for anything else.
"""

import math
import re
from dataclasses import dataclass

import numpy as np

CALL = re.compile(
    r"^test_ptx(?P<kind>_warp|_with_32)?!\((?P<inside>.*?)\);", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"//[^\n]*")
DTYPES = {
    f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)
}
DTYPES |= {"f16": "float16", "f32": "float32", "f64": "float64"}
SUFFIX = "|".join(DTYPES)
NUMBER = re.compile(
    r"(?P<sign>-?)(?P<digits>0x[\da-f_]+|0b[01_]+|\d[\d_]*(?:\.\d*)?)(?P<type>[ui]\d+|f\d+)?",
    re.IGNORECASE,
)
NAMED = re.compile(rf"(?:half::)?(?P<type>{SUFFIX})::(?P<name>NAN|INFINITY|NEG_INFINITY|MAX|MIN)")
MADE = re.compile(rf"(?:half::)?(?P<type>{SUFFIX})::from_(?P<how>bits|f32|f64)\((?P<value>[^)]*)\)")
FLOATS = {"NAN": math.nan, "INFINITY": math.inf, "NEG_INFINITY": -math.inf}
REAL = "f64"  # of a literal with a point that says no type


@dataclass(frozen=True)
class Test:
    """``given`` and ``wanted``: None where the suite has no values; ``threads``: of the block."""

    name: str
    given: np.ndarray | None
    wanted: np.ndarray | None
    threads: int
    in_32_bits: bool


def tests(text: str) -> list[Test]:
    """Of mod.rs."""
    found = []
    for call in CALL.finditer(COMMENT.sub("", text)):
        name, *lists = split(call["inside"])
        arrays = [array(each) for each in lists]
        if call["kind"] == "_warp":
            found.append(Test(name, None, arrays[0], 64, False))
        elif arrays:
            found.append(Test(name, *arrays, 1, call["kind"] == "_with_32"))
        else:
            found.append(Test(name, None, None, 1, False))
    return found


def split(text: str) -> list[str]:
    """At the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def array(text: str) -> np.ndarray:
    """Of ``[1u32, 2]``."""
    values = [value(each) for each in split(text.strip()[1:-1])]
    said = {kind for _, kind in values if kind} - {REAL} or {kind for _, kind in values if kind}
    if len(said) > 1:
        raise ValueError(f"{text} has values of {' and '.join(sorted(said))}")
    dtype = np.dtype(DTYPES[said.pop() if said else "i32"])
    if dtype.kind == "f":
        return np.array([each for each, _ in values], dtype)
    bits = [each % (1 << 8 * dtype.itemsize) for each, _ in values]
    return np.array(bits, f"u{dtype.itemsize}").view(dtype)


def value(text: str) -> tuple[int | float, str | None]:
    """A value and its type, None where the text does not say it."""
    if text.endswith(".to_bits()"):
        inner, kind = value(text.removesuffix(".to_bits()"))
        bits = np.array(inner, DTYPES[kind])
        return int(bits.view(f"u{bits.itemsize}")), f"u{8 * bits.itemsize}"
    if "/" in text:
        (above, kind), (below, _) = map(value, map(str.strip, text.split("/")))
        return float(np.dtype(DTYPES[kind]).type(above) / np.dtype(DTYPES[kind]).type(below)), kind
    if constant := re.fullmatch(rf"std::(?P<type>{SUFFIX})::consts::PI", text):
        return math.pi, constant["type"]
    text = text.replace("::max_value()", "::MAX").removeprefix("std::")
    if named := NAMED.fullmatch(text):
        dtype = np.dtype(DTYPES[named["type"]])
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        known = FLOATS | {"MAX": limits.max, "MIN": limits.min}
        return known[named["name"]], named["type"]
    if made := MADE.fullmatch(text):
        inner, dtype = value(made["value"])[0], np.dtype(DTYPES[made["type"]])
        if made["how"] == "bits":
            inner = np.array(inner, f"u{dtype.itemsize}").view(dtype).item()
        return inner, made["type"]
    if number := NUMBER.fullmatch(text):
        digits, kind = number["digits"].replace("_", ""), number["type"]
        real = "." in digits or (kind or "").startswith("f")
        found = float(digits) if real else int(digits, 0 if digits[:2] in ("0x", "0b") else 10)
        return (-found if number["sign"] else found), kind or (REAL if "." in digits else None)
    raise ValueError(f"{text!r} is no value that is known here")

"""The 16-bit float types of scales and activations, by name: ``"float16"`` and ``"bfloat16"``.

NumPy has no bfloat16; bfloat16 arrays use ``ml_dtypes``, which is imported on first use.
``round_to`` is the only conversion that rounds: once, to nearest even, from exact float64 values.
(``astype`` of ml_dtypes goes from float64 to bfloat16 through float32, so that 1 + 2**-8 + 2**-40
becomes 1.)"""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

HALF_TYPES = ("float16", "bfloat16")


def float_type(dtype: DTypeLike) -> np.dtype:
    """Convert a dtype, or its name, to a np.dtype in native byte order. ImportError, with advice,
    for bfloat16 without ml_dtypes."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        try:
            from ml_dtypes import bfloat16
        except ImportError as error:
            raise ImportError(
                "bfloat16 arrays on the host need ml_dtypes: pip install ml_dtypes"
            ) from error
        return np.dtype(bfloat16)
    return np.dtype(dtype).newbyteorder("=")


def number(name: str, value: Any) -> float:
    """Convert a real number (Python's, an array library's, or a 0-dimensional array) to float;
    numbers beyond float64 become infinite. TypeError, with ``name``, for anything else."""
    plain: Any = value.item() if getattr(value, "shape", None) == () else value
    if not isinstance(plain, numbers.Real):
        kind = (
            f"{value!r}"
            if isinstance(value, (str, complex, type(None)))
            else f"a {type(value).__name__}"
        )
        raise TypeError(f"{name} is {kind}, must be a number")
    try:
        return float(plain)
    except OverflowError:  # an int
        return math.inf if value > 0 else -math.inf


def is_single(value: float) -> bool:
    """Whether a number is finite and exact in float32."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(value)) and float(np.float32(value)) == value


def two_sizes(name: str, sizes: object, what: str) -> tuple[int, int]:
    """Two Python integers; TypeError for anything else."""
    if (
        not isinstance(sizes, (tuple, list))
        or len(sizes) != 2
        or not all(isinstance(size, numbers.Integral) for size in sizes)
    ):
        raise TypeError(f"{name}={sizes!r} must be {what}, two integers")
    return int(sizes[0]), int(sizes[1])


def as_numpy(name: str, array: object) -> np.ndarray:
    """``numpy.asarray(array)``. TypeError, with advice, if NumPy cannot read it, such as torch's
    bfloat16 or an array on a GPU."""
    try:
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name} is a {type(array).__name__} that NumPy cannot read ({error}): bring it to the"
            " host, in a type that NumPy has, first"
        ) from error


def largest(dtype: DTypeLike) -> float:
    """The largest finite number of a 16-bit float type."""
    return 65504.0 if float_type(dtype).name == "float16" else (2 - 2.0**-7) * 2.0**127


def smallest_subnormal(dtype: DTypeLike) -> float:
    return 2.0**-24 if float_type(dtype).name == "float16" else 2.0**-133


def unit_roundoff(dtype: DTypeLike) -> float:
    """Half the distance from 1 to the next number: the largest relative error of one rounding to
    nearest."""
    return {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}[float_type(dtype).name]


def round_to(values: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Round float32 or float64 values once, to nearest even; values above the largest number become
    infinite."""
    dtype = float_type(dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype.name != "bfloat16":
            return np.asarray(values).astype(dtype, copy=False)
        return _odd_float32(np.asarray(values)).astype(dtype)


def _odd_float32(values: np.ndarray) -> np.ndarray:
    """float64 -> float32, rounded to odd: the last bit is 1 if anything was cut off, so that a
    second rounding, to 22 bits or fewer, gives what a single rounding would have given."""
    single = values.astype(np.float32)
    if values.dtype == np.float32:
        return single
    inexact = (single != values) & np.isfinite(values)
    away = inexact & (np.abs(single) > np.abs(values))
    # towards zero; one below infinity is the largest number
    bits = single.view(np.uint32) - away.astype(np.uint32)
    return (bits | inexact.astype(np.uint32)).view(np.float32)

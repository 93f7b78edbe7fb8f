"""Arrays of every kind that has found a bug: plain functions of a kind and a seed. The strategies
of ``weights`` draw kinds and seeds.

The same arguments give the same array. ValueError for an unknown kind.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.floats import HALF_TYPES, float_type, largest, round_to
from numba_marlin.formats.types import SUPPORTED_BITS, ZEROS_KINDS

CODE_KINDS = ("uniform", "constant", "extremes", "ramp")
SCALE_KINDS = ("power_of_two", "ordinary", "denormal", "extreme", "signed", "zero")
WEIGHT_KINDS = ("normal", "heavy_tailed", "tiny", "large", "sparse", "zero")
EVERY_TYPE = {"bits": SUPPORTED_BITS, "zeros_kinds": ZEROS_KINDS, "scale_dtypes": HALF_TYPES}
"""For the strategies: every type of QuantizedWeight."""


def make_codes(kind: str, k: int, n: int, seed: int, bits: int = 4) -> np.ndarray:
    """uint8 [k, n] of one of CODE_KINDS."""
    rng = np.random.default_rng(seed)
    levels, half = 1 << bits, 1 << (bits - 1)
    if kind == "uniform":
        return rng.integers(0, levels, (k, n), dtype=np.uint8)
    if kind == "constant":
        return np.full((k, n), rng.integers(0, levels), dtype=np.uint8)
    if kind == "extremes":
        return rng.choice(np.array([0, half - 1, half, levels - 1], dtype=np.uint8), (k, n))
    if kind == "ramp":  # Neighbours always differ, along k and along n.
        return ((np.arange(k)[:, None] + 3 * np.arange(n)[None, :] + seed) % levels).astype(
            np.uint8
        )
    raise ValueError(f"kind={kind!r} must be one of {CODE_KINDS}")


def make_scales(kind: str, groups: int, n: int, seed: int, dtype: str = "float16") -> np.ndarray:
    """[groups, n] of one of HALF_TYPES, of one of SCALE_KINDS, always finite."""
    rng = np.random.default_rng(seed)
    shape = (groups, n)
    if kind == "power_of_two":
        return round_to(np.ldexp(1.0, rng.integers(-14, 12, shape)), dtype)
    if kind == "ordinary":
        return round_to(rng.uniform(0.002, 0.02, shape), dtype)
    if kind == "denormal":
        mantissas = 1024 if dtype == "float16" else 128
        return rng.integers(1, mantissas, shape).astype(np.uint16).view(float_type(dtype))
    if kind == "extreme":
        return round_to(
            rng.choice(np.array([2.0**-24, 2.0**-14, 1.0, 8188.0, largest("float16")]), shape),
            dtype,
        )
    if kind == "signed":
        return round_to(rng.standard_normal(shape), dtype)
    if kind == "zero":
        return np.zeros(shape, dtype=float_type(dtype))
    raise ValueError(f"kind={kind!r} must be one of {SCALE_KINDS}")


def make_zeros(
    kind: str | None, groups: int, n: int, seed: int, bits: int = 4
) -> np.ndarray | None:
    """Zero points [groups, n] of one of ZEROS_KINDS: any integers of the grid, or float16 multiples
    of 1/2 on and off the grid."""
    if kind not in ZEROS_KINDS:
        raise ValueError(f"kind={kind!r} must be one of {ZEROS_KINDS}")
    rng = np.random.default_rng([seed, 1])
    if kind is None:
        return None
    integers = rng.integers(0, 1 << bits, (groups, n))
    return (
        integers.astype(np.uint8)
        if kind == "integer"
        else (integers - rng.integers(0, 4, (groups, n)) / 2).astype(np.float16)
    )


def make_quantized(
    code_kind: str,
    scale_kind: str,
    k: int,
    n: int,
    group_size: int,
    seed: int,
    *,
    bits: int = 4,
    zeros_kind: str | None = None,
    scale_dtype: str = "float16",
) -> QuantizedWeight:
    """A QuantizedWeight [k, n] with these kinds of codes, scales and zero points."""
    groups = 1 if group_size == -1 or group_size >= k else k // group_size
    return QuantizedWeight(
        codes=make_codes(code_kind, k, n, seed, bits),
        scales=make_scales(scale_kind, groups, n, seed, scale_dtype),
        zeros=make_zeros(zeros_kind, groups, n, seed, bits),
        bits=bits,
        group_size=group_size,
    )


def make_weights(kind: str, k: int, n: int, seed: int, dtype: type = np.float32) -> np.ndarray:
    """[k, n] of ``dtype``, finite and quantisable, of one of WEIGHT_KINDS."""
    rng = np.random.default_rng(seed)
    if kind == "normal":
        w = 0.02 * rng.standard_normal((k, n))
    elif kind == "heavy_tailed":
        w = np.clip(0.02 * rng.standard_t(2, (k, n)), -1000, 1000)
    elif kind == "tiny":  # Scales come out subnormal, or at their smallest.
        w = 2.0**-22 * rng.standard_normal((k, n))
    elif kind == "large":
        w = rng.uniform(-61000, 61000, (k, n))
    elif kind == "sparse":
        w = np.where(rng.random((k, n)) < 0.01, rng.standard_normal((k, n)), 0)
    elif kind == "zero":
        w = np.zeros((k, n))
    else:
        raise ValueError(f"kind={kind!r} must be one of {WEIGHT_KINDS}")
    return w.astype(dtype)

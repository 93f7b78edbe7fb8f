"""A random layer in any stored format, as an example: random codes, scales of ordinary weights,
and zero points if the format has them."""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.stored import StoredFormat
from numba_marlin.formats.types import QuantizedWeight

GROUP = 32


def random_layer(
    form: StoredFormat, k: int, n: int, bits: int | None, seed: int
) -> dict[str, np.ndarray]:
    """name -> tensor. Raises ValueError if the format has no codes of this size, or cannot store k
    and n."""
    rng = np.random.default_rng(seed)
    bits = (4 if 4 in form.bits else form.bits[0]) if bits is None else bits
    if bits not in form.bits:
        raise ValueError(
            f"bits={bits}: format {form.name!r} has codes of {', '.join(map(str, form.bits))} bits"
        )
    if form.holds == "BlockWeight":
        return form.write(_blocks(form, k, n, rng), allow_loss=True)
    zeros = rng.integers(0, 1 << bits, (k // GROUP, n), dtype=np.uint8)
    codes, scales = (
        rng.integers(0, 1 << bits, (k, n), dtype=np.uint8),
        rng.uniform(0.002, 0.02, (k // GROUP, n)).astype(np.float16),
    )
    symmetric = QuantizedWeight(codes, scales, None, bits, GROUP)
    try:
        return form.write(QuantizedWeight(codes, scales, zeros, bits, GROUP), allow_loss=True)
    except ValueError:  # no zero points there
        return form.write(symmetric, allow_loss=True)


def _blocks(form: StoredFormat, k: int, n: int, rng) -> BlockWeight:
    """Random blocks like those of the format's own test cases."""
    geometry = form.test_geometries[0]
    if geometry.scale_dtype in ("e4m3", "e8m0"):
        scales = rng.integers(96, 120, (k // geometry.group, n), dtype=np.uint8)
        factor = None if geometry.scale_dtype == "e8m0" else 0.25
        return BlockWeight(
            rng.integers(0, 16, (k, n), dtype=np.uint8),
            "e2m1",
            scales,
            geometry.scale_dtype,
            (geometry.group, 1),
            factor,
        )
    block = (min(128, k), min(128, n)) if geometry.group != -1 else (k, n)
    scales = rng.uniform(0.0005, 0.002, (-(-k // block[0]), -(-n // block[1]))).astype(np.float32)
    return BlockWeight(rng.integers(0, 127, (k, n), dtype=np.uint8), "e4m3", scales, None, block)

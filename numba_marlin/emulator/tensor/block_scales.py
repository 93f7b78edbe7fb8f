"""Products of block-scaled small floats, as tcgen05.mma and mma.sync with .block_scale make them:
what the codes are worth, and how they are added up.

The ISA leaves the order and the rounding of the sum open, and they were not measured: this
is an ASSUMPTION, not a model of any GPU. The products of a block (16 or 32 elements that share a
scale of A and one of B) and their sum are exact, so is that sum times the two scales; block after
block, in order of k, it is added to the accumulator in fp32, each time rounded once, to nearest
even. NaN is canonical. Small integers with scales that are powers of two come out the same in any
order.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.state import numerics, small_floats

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
VALUES = {
    "e2m1": np.concatenate([_E2M1, -_E2M1]),
    "e4m3": small_floats.HALVES["e4m3"].view(np.float16).astype(np.float64),
    "e8m0": np.ldexp(1.0, np.arange(256) - 127),
}
"""float64 by code. Scales of e4m3 have no sign: their highest bit is 0."""
VALUES["e8m0"][0xFF] = np.nan


def codes_of(held: np.ndarray, bits: int) -> np.ndarray:
    """Bytes [..., count] -> codes [..., count * 8 / bits], the low half of a byte before the high
    one."""
    if bits == 8:
        return held
    return np.stack([held & 15, held >> 4], axis=-1).reshape(*held.shape[:-1], -1)


def multiply(a, b, sfa, sfb, c, elements: tuple[str, str], scale: str) -> np.ndarray:
    """float32 [..., rows, columns]: c + (a * sfa) @ (b * sfb).T; a [..., rows, k], b [..., columns,
    k] codes; sfa [..., rows, vectors], sfb [..., columns, vectors] bytes of type ``scale``; c
    float32."""
    vectors, depth = sfa.shape[-1], a.shape[-1]
    # either way the sums of a block are exact
    work = np.float32 if elements == ("e2m1", "e2m1") else np.float64
    left, right = (VALUES[name].astype(work)[codes] for name, codes in zip(elements, (a, b)))
    scales_a, scales_b = (VALUES[scale][each] for each in (sfa, sfb))
    block = depth // vectors
    with np.errstate(all="ignore"):
        for vector in range(vectors):
            part = slice(vector * block, (vector + 1) * block)
            sums = left[..., part] @ np.swapaxes(right[..., part], -1, -2)
            scaled = sums * (scales_a[..., :, None, vector] * scales_b[..., None, :, vector])
            c = numerics.sum32(c.astype(np.float64), scaled, "rn")
    return c

"""What a probe left, small enough to carry: in full, or as digests of blocks and a beginning; and
how it compares with another run.

``keep(probe, results)`` -> arrays under ``full/<probe>/<result>`` where it has up to ``whole``
elements, else ``digest/...`` (uint64, a row a block of 4096 elements: of its bits, and of its bits
with every NaN the same) and ``head/...`` (the first ``HEAD`` elements). ``compare`` needs the
results of this side and the arrays of the other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from numba_marlin.witness.probe import Probe

BLOCK = 4096  # elements
HEAD = 256
WHOLE = 1 << 14  # elements that are kept in full
NAN = {
    "float16": (np.uint16, 0x7FFF, 0x7C00),
    "bfloat16": (np.uint16, 0x7FFF, 0x7F80),
    "float32": (np.uint32, 0x7FFFFFFF, 0x7F800000),
}
"""unsigned type, mask of all but the sign, infinity"""


@dataclass(frozen=True)
class Comparison:
    """equal, nan_only: elements with equal bits, and elements that are NaN on both sides with other
    bits; total. Counted in whole blocks where only digests came back (``exact`` False). first:
    index of the first element, or of the first block, that differs in more than a NaN's bits; here,
    there: its bits.
    """

    total: int
    equal: int
    nan_only: int
    exact: bool
    first: int | None = None
    here: int | None = None
    there: int | None = None

    @property
    def ok(self) -> bool:
        return self.equal + self.nan_only == self.total


def one_nan(bits: np.ndarray, floats: str | None) -> np.ndarray:
    """Bits with every NaN of their 16 or 32-bit elements replaced by all ones."""
    if floats is None:
        return bits
    kind, mask, infinity = NAN[floats]
    narrow = np.ascontiguousarray(bits).view(kind)
    return (
        np.where((narrow & kind(mask)) > kind(infinity), kind(~kind(0)), narrow)
        .view(bits.dtype)
        .reshape(bits.shape)
    )


def digests(bits: np.ndarray, floats: str | None) -> np.ndarray:
    """uint64 [blocks, 2]"""

    def of(flat):
        return [
            int.from_bytes(
                hashlib.blake2b(flat[start : start + BLOCK].tobytes(), digest_size=8).digest(),
                "little",
            )
            for start in range(0, flat.size, BLOCK)
        ]

    return np.array([of(bits.reshape(-1)), of(one_nan(bits, floats).reshape(-1))], np.uint64).T


def keep(probe: Probe, results: dict[str, np.ndarray], whole: int = WHOLE) -> dict[str, np.ndarray]:
    found = {}
    for name, bits in results.items():
        place = f"{probe.name}/{name}"
        if bits.size <= whole:
            found[f"full/{place}"] = bits
        else:
            found[f"digest/{place}"], found[f"head/{place}"] = (
                digests(bits, probe.results[name].floats),
                bits.reshape(-1)[:HEAD],
            )
    return found


def sources(probe: Probe, buffers: dict[str, np.ndarray]) -> str:
    """SHA-256 of the text and of all memory it starts from."""
    digest = hashlib.sha256(probe.text.encode())
    for name, array in buffers.items():
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def compare(probe: Probe, name: str, here: np.ndarray, kept) -> Comparison:
    """A result of this side with the other's ``kept`` arrays (any mapping with their names)."""
    floats, place, flat = probe.results[name].floats, f"{probe.name}/{name}", here.reshape(-1)
    if f"full/{place}" in kept:
        there = kept[f"full/{place}"].reshape(-1)
        same, alike = flat == there, one_nan(flat, floats) == one_nan(there, floats)
        wrong = np.flatnonzero(~alike)
        detail = (
            (int(wrong[0]), int(flat[wrong[0]]), int(there[wrong[0]]))
            if wrong.size
            else (None, None, None)
        )
        return Comparison(flat.size, int(same.sum()), int((alike & ~same).sum()), True, *detail)
    mine, theirs, head = digests(here, floats), kept[f"digest/{place}"], kept[f"head/{place}"]
    sizes = np.minimum(BLOCK, flat.size - BLOCK * np.arange(len(mine)))
    same, alike = (mine == theirs).T
    wrong = np.flatnonzero(~alike)
    detail = (None, None, None)
    if wrong.size:
        within = np.flatnonzero(one_nan(flat[: head.size], floats) != one_nan(head, floats))
        detail = (
            (int(within[0]), int(flat[within[0]]), int(head[within[0]]))
            if within.size
            else (int(wrong[0]) * BLOCK, None, None)
        )
    return Comparison(
        flat.size, int(sizes[same].sum()), int(sizes[alike & ~same].sum()), False, *detail
    )

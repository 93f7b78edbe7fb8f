"""The rules by which a warp's accesses become transactions. Pure functions of addresses: int64
[warps, 32], with a mask of the lanes that take part.

Shared memory has 32 banks of 4 bytes; a wavefront takes one word of each bank, which any number of
lanes may want. Accesses of up to 4 bytes are served together, 8-byte ones by halves of the warp,
16-byte ones by quarters: as many wavefronts at least, and as many in each as the bank with the most
*different* words has. Atomics take turns even at the same word. (CUDA C++ programming guide,
"Shared memory", and the conflict counts of Nsight Compute; that hardware sometimes serves two
halves at once when they want the same words is not counted on.) ldmatrix and stmatrix are quarters
too: 8 rows of 16 bytes are one wavefront.

Global memory is fetched in sectors of 32 bytes, which lie in lines of 128: an instruction of a warp
asks for the sectors that its lanes touch.
"""

from __future__ import annotations

import numpy as np

BANKS, BANK_BYTES = 32, 4
SECTOR_BYTES, LINE_BYTES = 32, 128
SECTORS_PER_LINE = LINE_BYTES // SECTOR_BYTES
WARP = 32


def wavefronts(
    address: np.ndarray, active: np.ndarray, nbytes: int, serial: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(wavefronts, how few they could have been) [warps] of shared accesses of ``nbytes`` (1 to 32)
    a lane, aligned to their size.

    ``serial``: lanes with the same word take turns, as atomics do.
    """
    words = max(nbytes // BANK_BYTES, 1)
    groups = len(address) * words
    wanted = (address // BANK_BYTES)[..., None] + np.arange(words)
    wanted = wanted.reshape(groups, -1)  # WARP words: as many lanes as are served together
    taking = np.repeat(active, words, axis=-1).reshape(groups, -1)
    if not serial:
        order = np.where(taking, wanted, -1)
        order.sort(axis=1)
        taking = order >= 0
        taking[:, 1:] &= order[:, 1:] != order[:, :-1]
        wanted = order
    rows = np.nonzero(taking)[0]
    per_bank = np.bincount(rows * BANKS + wanted[taking] % BANKS, minlength=groups * BANKS).reshape(
        groups, BANKS
    )
    most = per_bank.max(axis=1)
    return most.reshape(-1, words).sum(axis=1), (most > 0).reshape(-1, words).sum(axis=1)


def distinct(values: np.ndarray, active: np.ndarray) -> np.ndarray:
    """How many different values the active lanes of each warp have: [warps]."""
    order = np.where(active, values, -1)
    order.sort(axis=1)
    first = order >= 0
    first[:, 1:] &= order[:, 1:] != order[:, :-1]
    return first.sum(axis=1)


def sectors(
    address: np.ndarray, active: np.ndarray, nbytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sectors asked for, sectors that would do, different bytes) [warps] of global accesses of
    ``nbytes`` (1 to 32) a lane, aligned to their size."""
    asked = distinct(address // SECTOR_BYTES, active)
    used = distinct(address, active) * nbytes
    return asked, -(-used // SECTOR_BYTES), used


def span(address: int, nbytes: int) -> tuple[int, int]:
    """(sectors of a contiguous copy, sectors that would do)."""
    return (address + nbytes - 1) // SECTOR_BYTES - address // SECTOR_BYTES + 1, -(
        -nbytes // SECTOR_BYTES
    )

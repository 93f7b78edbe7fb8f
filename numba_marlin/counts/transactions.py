"""The rules by which a warp's accesses become transactions. Pure functions of addresses: int64
[warps, 32], with a mask of active lanes.

Shared memory has 32 banks of 4 bytes; a wavefront reads one word per bank, for any number of lanes.
Accesses of up to 4 bytes are served for the whole warp at once, 8-byte accesses per half warp,
16-byte accesses per quarter warp. Each of these takes as many wavefronts as the largest number of
*different* words in one bank. Atomics to the same word are serialised too. (CUDA C++ programming
guide, "Shared memory", and the conflict counts of Nsight Compute; hardware sometimes serves two
half warps at once if they access the same words; this is not modelled.) ldmatrix and stmatrix are
served per quarter too: 8 rows of 16 bytes are one wavefront.

Global memory is fetched in sectors of 32 bytes, which lie in lines of 128: an instruction of a warp
requests the sectors that its lanes touch.
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
    """(wavefronts, wavefronts without bank conflicts), each [warps], of shared accesses of
    ``nbytes`` (1 to 32) per lane, aligned to their size.

    ``serial``: accesses to the same word are serialised, as atomics are.
    """
    words = max(nbytes // BANK_BYTES, 1)
    groups = len(address) * words
    wanted = (address // BANK_BYTES)[..., None] + np.arange(words)
    wanted = wanted.reshape(groups, -1)  # WARP words: the lanes that are served together
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
    """The number of different values among the active lanes of each warp: [warps]."""
    order = np.where(active, values, -1)
    order.sort(axis=1)
    first = order >= 0
    first[:, 1:] &= order[:, 1:] != order[:, :-1]
    return first.sum(axis=1)


def sectors(
    address: np.ndarray, active: np.ndarray, nbytes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sectors requested, sectors needed, distinct bytes), each [warps], of global accesses of
    ``nbytes`` (1 to 32) per lane, aligned to their size."""
    asked = distinct(address // SECTOR_BYTES, active)
    used = distinct(address, active) * nbytes
    return asked, -(-used // SECTOR_BYTES), used


def span(address: int, nbytes: int) -> tuple[int, int]:
    """(sectors of a contiguous copy, sectors needed)."""
    return (address + nbytes - 1) // SECTOR_BYTES - address // SECTOR_BYTES + 1, -(
        -nbytes // SECTOR_BYTES
    )

"""The XOR swizzle of the activation tile in shared memory, and the bank-conflict counter that
proves it.

The tile has ``16 * m_blocks`` rows of 64 or 128 halves, that is 8 or 16 chunks of 16 bytes. It is
written by ``cp.async``, 16 bytes to a thread along the rows, and read by ``ldmatrix``, which takes
the same chunk of 8 consecutive rows in one phase. Stored plainly, those 8 chunks lie a multiple of
128 bytes apart, all in the same four banks: 8 accesses one after another. With chunk ``c`` of row
``r`` stored at chunk ``c ^ (r % 8)`` of its row, the 8 rows of a phase use 8 different chunk
columns, and the 8 threads that write an aligned run of 8 chunks still write 8 different ones.

Shared memory has 32 banks of 4 bytes. A 16-byte access by a warp is served in 4 phases of 8
threads, an 8-byte one in 2 phases of 16:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#shared-memory
"""

from __future__ import annotations

import numpy as np

CHUNK_BYTES = 16
BANKS = 32
BANK_BYTES = 4
CHUNKS_PER_WAVE = BANKS * BANK_BYTES // CHUNK_BYTES


def swizzle(row, chunk, chunks_per_row: int):
    """Index, in chunks from the start of the tile, where chunk ``chunk`` of row ``row`` is stored.
    Ints or int arrays.

    ``chunks_per_row`` must be a multiple of 8 (a row of 64, 128, ... halves); otherwise ValueError.
    """
    if chunks_per_row <= 0 or chunks_per_row % CHUNKS_PER_WAVE:
        raise ValueError(
            f"chunks_per_row={chunks_per_row} must be a positive multiple of {CHUNKS_PER_WAVE}"
        )
    return row * chunks_per_row + (chunk ^ (row % CHUNKS_PER_WAVE))


def bank_conflicts(addresses: np.ndarray, access_bytes: int = CHUNK_BYTES) -> int:
    """Extra passes that one access by the threads of a warp costs; 0 is free of conflicts.

    addresses: byte addresses, one per thread in lane order, multiples of ``access_bytes`` (4, 8 or
    16); their number a multiple of the threads of one phase. In a phase, threads that want the same
    word share it, and a bank serves one word a pass. ``ldmatrix`` is one 16-byte access with the
    row addresses of its matrices.
    """
    if access_bytes not in (4, 8, 16):
        raise ValueError(f"access_bytes={access_bytes} must be 4, 8 or 16")
    addresses = np.asarray(addresses).ravel()
    threads = BANKS * BANK_BYTES // access_bytes
    if addresses.size == 0 or addresses.size % threads:
        raise ValueError(
            f"{addresses.size} addresses must be a positive multiple of the {threads} threads of a"
            " phase"
        )
    if (addresses % access_bytes).any():
        raise ValueError(
            f"address {addresses[addresses % access_bytes != 0][0]} must be a multiple of"
            f" {access_bytes}"
        )
    extra = 0
    for phase in addresses.reshape(-1, threads):
        words = phase[:, None] // BANK_BYTES + np.arange(access_bytes // BANK_BYTES)
        extra += int(np.bincount(np.unique(words) % BANKS).max()) - 1
    return extra

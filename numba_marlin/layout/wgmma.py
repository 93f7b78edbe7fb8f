"""Who holds what in ``wgmma``: fragments over the 128 lanes of a warpgroup, matrix descriptors, and
the shared-memory tiles they describe.

``wgmma.mma_async.m64nNk16`` multiplies A [64, 16] by B [16, N] of 16-bit elements into D [64, N] of
32-bit ones, ``m64nNk32`` A [64, 32] by B [32, N] of 8-bit elements. Warp w of the warpgroup has
rows 16w .. 16w+15 of A and D, in the registers that ``mma.m16n8k16`` (``m16n8k32``) has them in, D
repeated every 8 columns. A matrix in shared memory, B always and A if it is not in registers, is
named by a 64-bit descriptor. Usually its k is contiguous ("K-major"): "rows" are rows of A or
columns of B, and the 32 bytes of k of a row are two chunks of 16 bytes.

- Swizzle 128, 64 or 32: rows lie ``swizzle`` bytes apart within groups of eight, groups
  ``stride_bytes`` apart, and bits 4.. of the shared address are XORed with bits 7.. of it
  (``tensor_map.swizzled``), just as tensor copies of such rows leave them. A step of 16 along k
  within a row is 32 bytes more in the address.
- Swizzle 0: eight rows of a chunk are 128 contiguous bytes, a core matrix; the next chunk of k is
  ``leading_bytes`` on, the next eight rows ``stride_bytes``.

Of 16-bit elements A and B may also lie the other way round ("MN-major", an immediate of the
instruction says so): a chunk holds eight rows' elements of one k.

- Swizzle 128, 64 or 32: the chunks of ``swizzle`` bytes of rows lie side by side, the next of them
  ``leading_bytes`` on; k are ``swizzle`` bytes apart within groups of eight, groups
  ``stride_bytes``: tensor copies of a box [k, swizzle bytes of rows] leave them so.
- Swizzle 0: eight k of a chunk are 128 contiguous bytes; the next chunk of rows is ``stride_bytes``
  on, the next eight k ``leading_bytes``.

https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions
(register fragments, "Shared Memory Matrix Layout" and "Matrix Descriptor Format"); measured with
contiguous k on an H200. The MN-major forms are also the canonical layouts that CUTLASS documents
(``make_gmma_desc<Major::MN>``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from numba_marlin.layout.fragments import (
    LANES,
    MMA_M16N8K16_A,
    MMA_M16N8K16_C,
    MMA_M16N8K32_A,
    Fragment,
)
from numba_marlin.layout.tensor_map import CHUNK_BYTES, SWIZZLES, swizzled

WARPS = 4
ROWS, DEPTH = 64, 16
DEPTH_BYTES = 32  # of a row of k, whatever its type
COLUMNS = range(8, 257, 8)
CORE_ROWS = 8
CHUNKS = DEPTH_BYTES // CHUNK_BYTES  # of a row of k
ADDRESS_BITS = 18
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # swizzle -> the two upper bits
_UNUSED = ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62) & (1 << 64) - 1


@cache
def accumulator(columns: int) -> Fragment:
    """D [64, columns] of ``wgmma.m64nNk16``, N = columns: 128 lanes, columns / 2 floats each."""
    if columns not in COLUMNS:
        raise ValueError(f"columns={columns} must be a multiple of 8 from 8 to 256")
    c = MMA_M16N8K16_C
    blocks = columns // c.cols
    col_of = (c.col_of[:, None, :] + c.cols * np.arange(blocks)[:, None]).reshape(LANES, -1)
    return _over_warps(f"wgmma.m64n{columns}k16.D", columns, 32, np.tile(c.row_of, blocks), col_of)


def _over_warps(name, cols, bits, row_of, col_of):
    """The fragment of a warp, 16 rows, for four warps one below the other."""
    rows = np.concatenate([row_of + 16 * warp for warp in range(WARPS)])
    return Fragment(
        name, ROWS, cols, row_of.shape[1], bits, rows, np.tile(col_of, (WARPS, 1)), WARPS * LANES
    )


A_REGISTERS = _over_warps("wgmma.m64k16.A", DEPTH, 16, MMA_M16N8K16_A.row_of, MMA_M16N8K16_A.col_of)
"""A [64, 16] in registers, four a lane."""
A_BYTES = _over_warps(
    "wgmma.m64k32.A", DEPTH_BYTES, 8, MMA_M16N8K32_A.row_of, MMA_M16N8K32_A.col_of
)
"""A [64, 32] of 8-bit elements in registers, four a lane."""


@dataclass(frozen=True)
class Descriptor:
    """address in the shared window; leading_bytes (only without a swizzle) and stride_bytes as
    above; swizzle in bytes; all but the swizzle multiples of 16 below 2^18, which ``encode`` turns
    into the 64 bits (ValueError otherwise). base_offset, for tiles that begin inside of a swizzle's
    pattern, is decoded but not encoded: what it does was not measured.
    """

    address: int
    stride_bytes: int
    leading_bytes: int = CHUNK_BYTES
    swizzle: int = 128
    base_offset: int = 0

    def encode(self) -> int:
        for name in ("address", "stride_bytes", "leading_bytes"):
            value = getattr(self, name)
            if value % CHUNK_BYTES or not 0 <= value < 1 << ADDRESS_BITS:
                raise ValueError(
                    f"{name}={value} must be a multiple of {CHUNK_BYTES} below 2^{ADDRESS_BITS}"
                )
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"swizzle={self.swizzle} must be one of {SWIZZLES}")
        if self.base_offset:
            raise ValueError(
                f"base_offset={self.base_offset} must be 0: tiles begin where the pattern of their"
                " swizzle does"
            )
        return (
            self.address >> 4
            | self.leading_bytes >> 4 << 16
            | self.stride_bytes >> 4 << 32
            | _MODES[self.swizzle] << 62
        )


def decode(bits: int) -> Descriptor:
    """The inverse of ``Descriptor.encode``. ValueError if bits are set that mean nothing."""
    if bits & _UNUSED:
        raise ValueError(f"descriptor {bits:#018x} has bits set that mean nothing")
    swizzle = next(size for size, mode in _MODES.items() if mode == bits >> 62)
    return Descriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        swizzle,
        bits >> 49 & 7,
    )


def chunk_addresses(
    descriptor: Descriptor, rows: int, depth_bytes: int = DEPTH_BYTES
) -> np.ndarray:
    """Shared addresses of the 16-byte chunks of a matrix of ``rows`` (a multiple of 8) with so many
    bytes of k (64: B of a sparse product, not of swizzle 32): int64 [rows, depth_bytes / 16]."""
    row = np.arange(rows, dtype=np.int64)[:, None]
    chunk = np.arange(depth_bytes // CHUNK_BYTES)
    groups = row // CORE_ROWS * descriptor.stride_bytes
    if not descriptor.swizzle:
        return (
            descriptor.address
            + groups
            + row % CORE_ROWS * CHUNK_BYTES
            + chunk * descriptor.leading_bytes
        )
    return swizzled(
        descriptor.address + groups + row % CORE_ROWS * descriptor.swizzle + chunk * CHUNK_BYTES,
        descriptor.swizzle,
    )


def transposed_chunk_addresses(
    descriptor: Descriptor, rows: int, depth_bytes: int = DEPTH_BYTES
) -> np.ndarray:
    """Shared addresses of the 16-byte chunks of an MN-major matrix of ``rows`` (a multiple of 8)
    with so many bytes of k, of 16-bit elements, eight rows to a chunk: int64 [k, rows / 8]."""
    k = np.arange(depth_bytes // 2, dtype=np.int64)[:, None]
    chunk = np.arange(rows // CORE_ROWS)
    group, within = k // CORE_ROWS, k % CORE_ROWS
    if not descriptor.swizzle:
        return (
            descriptor.address
            + chunk * descriptor.stride_bytes
            + within * CHUNK_BYTES
            + group * descriptor.leading_bytes
        )
    panel, inside = np.divmod(chunk, descriptor.swizzle // CHUNK_BYTES)
    return swizzled(
        descriptor.address
        + panel * descriptor.leading_bytes
        + inside * CHUNK_BYTES
        + within * descriptor.swizzle
        + group * descriptor.stride_bytes,
        descriptor.swizzle,
    )


def store_transposed_tile(matrix: np.ndarray, swizzle: int) -> tuple[np.ndarray, list[Descriptor]]:
    """``store_tile`` of a matrix [k, rows] of 16-bit elements, MN-major. With a swizzle, rows are
    cut into panels of ``swizzle`` bytes, the last one filled up with zeros, each as a tensor copy
    of a box [k, swizzle bytes] leaves it."""
    depth, rows = matrix.shape
    if depth % DEPTH or rows % CORE_ROWS or matrix.itemsize != 2:
        raise ValueError(
            f"matrix {matrix.shape} of {matrix.dtype} must be [multiple of {DEPTH}, multiple of"
            f" {CORE_ROWS}] of 16-bit elements"
        )
    panel = swizzle or CHUNK_BYTES
    panels = -(-rows * 2 // panel)
    core = CORE_ROWS * panel
    descriptors = [
        Descriptor(step * 2 * core, core, depth * panel, swizzle)
        if swizzle
        else Descriptor(step * 2 * core, depth * panel, core, 0)
        for step in range(depth // DEPTH)
    ]
    chunks = (
        np.ascontiguousarray(matrix)
        .view(np.uint8)
        .reshape(depth // DEPTH, DEPTH, rows // CORE_ROWS, CHUNK_BYTES)
    )
    tile = np.zeros((panels * panel * depth // CHUNK_BYTES, CHUNK_BYTES), np.uint8)
    for step, descriptor in enumerate(descriptors):
        tile[transposed_chunk_addresses(descriptor, rows) // CHUNK_BYTES] = chunks[step]
    return tile.reshape(-1), descriptors


def store_tile(matrix: np.ndarray, swizzle: int) -> tuple[np.ndarray, list[Descriptor]]:
    """Lay out a matrix [rows, k] of 16-bit elements, k a multiple of 16, rows of 8, as descriptors
    can name it. 8-bit elements go in pairs, ``matrix.view(np.uint16)``.

    -> (bytes of the tile, a descriptor for every 16 of k), for a tile at shared address 0; add the
    tile's address, a multiple of 8 * swizzle (or 16), to those of the descriptors. With a swizzle,
    k is cut into panels of ``swizzle`` bytes, each as a tensor copy of a box [rows, swizzle bytes]
    leaves it; without, into chunks one after the other.
    """
    rows, depth = matrix.shape
    if depth % DEPTH or rows % CORE_ROWS or matrix.itemsize != 2:
        raise ValueError(
            f"matrix {matrix.shape} of {matrix.dtype} must be [multiple of {CORE_ROWS}, multiple of"
            f" {DEPTH}] of 16-bit elements"
        )
    panel = swizzle or DEPTH * 2
    steps = [
        (step * DEPTH * 2 // panel * panel * rows, step * DEPTH * 2 % panel)
        for step in range(depth // DEPTH)
    ]
    core = CORE_ROWS * CHUNK_BYTES
    descriptors = [
        (
            Descriptor(start + inside, CORE_ROWS * swizzle, CHUNK_BYTES, swizzle)
            if swizzle
            else Descriptor(start, core, core * (rows // CORE_ROWS), 0)
        )
        for start, inside in steps
    ]
    chunks = (
        np.ascontiguousarray(matrix)
        .view(np.uint8)
        .reshape(rows, depth // DEPTH, CHUNKS, CHUNK_BYTES)
    )
    tile = np.zeros((-(-depth * 2 // panel) * panel * rows // CHUNK_BYTES, CHUNK_BYTES), np.uint8)
    for step, descriptor in enumerate(descriptors):
        tile[chunk_addresses(descriptor, rows) // CHUNK_BYTES] = chunks[:, step]
    return tile.reshape(-1), descriptors

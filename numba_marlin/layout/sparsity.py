"""Where the metadata of a sparse product are: which lane's register says which elements of a row of
A are stored.

A [16, k] of ``mma.sp``, or a warp's 16 rows of A of ``wgmma.mma_async.sp``, is stored as [16, k/2].
A chunk of a row is 4 cells, of which 2 are stored: 4 elements of 16 or 8 bits (2:4), 2 of tf32
(1:2, an element is 2 cells), 8 of 4 bits (4:8, two side by side are a cell). Four bits of metadata
belong to a chunk: the number of the first stored cell in the lower two, of the second in the
upper two. In every quad of lanes, lanes 4g to 4g + 3, some hold those of rows g and g + 8:

- elements of 16 bits and more: a lane has 4 chunks of row g in its lower half, the same 4 of
  row g + 8 in its upper half; the next lane has the next 4 chunks;
- elements of 8 and 4 bits: a lane has 8 chunks of row g, the next lane those of row g + 8, the
  next two lanes the next 8 chunks.

One, two or four lanes of a quad suffice; where it is one or two, the sparsity selector says which.

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma-sp and
#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma-async-sp: the ISA draws these maps in
figures. The maps of ``wgmma.mma_async.sp`` are those of CuTe's ``ELayout_64x16``, ``_64x32`` and
``_64x64``; those of the deeper shapes of ``mma.sp`` are the same, and the shapes of half the depth
have their first half (inferred from how CUTLASS reorders metadata; an H200 agrees,
experiments/05_hardware).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.layout.fragments import LANES

ROWS, QUAD = 16, 4
CODE_BITS = 4  # of metadata, of a chunk
STORED, CELLS = 2, 4  # of a chunk
CHUNK = {32: 2, 16: 4, 8: 4, 4: 8}
"""Elements of a chunk, by their bits."""


@dataclass(frozen=True)
class Metadata:
    """Of a product of ``depth`` elements of k, of ``bits`` each."""

    bits: int
    depth: int

    @property
    def chunks(self) -> int:
        """Of a row."""
        return self.depth // CHUNK[self.bits]

    @property
    def lanes(self) -> int:
        """Lanes of a quad that hold metadata."""
        return self.chunks * 2 * CODE_BITS // 32

    @property
    def selectors(self) -> int:
        """The sparsity selector is below it."""
        return QUAD // self.lanes

    def places(self, selector: int) -> tuple[np.ndarray, np.ndarray]:
        """(the lane, the lowest bit in its register) of every chunk's metadata: two [16, chunks].
        ValueError for a selector that the shape does not have."""
        if selector not in range(self.selectors):
            raise ValueError(f"selector={selector} must be one of {tuple(range(self.selectors))}")
        row, chunk = np.arange(ROWS)[:, None], np.arange(self.chunks)
        group, half = row % (LANES // QUAD), row // (LANES // QUAD)
        if self.bits >= 16:
            member, within = np.broadcast_to(chunk // 4, (ROWS, self.chunks)), chunk % 4 + 4 * half
        else:
            member = half + 2 * (chunk // 8)
            within = np.broadcast_to(chunk % 8, (ROWS, self.chunks))
        return QUAD * group + self.lanes * selector + member, CODE_BITS * within

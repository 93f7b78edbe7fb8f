"""What a wgmma instruction says, and a warp's part of one that it has issued.

https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma-async
and #asynchronous-warpgroup-level-matrix-instructions-wgmma-mma-async-sp
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from numba_marlin.emulator.tensor import sparsity
from numba_marlin.emulator.tensor.tensor_sums import Adder
from numba_marlin.emulator.tensor.wgmma_forms import Form
from numba_marlin.emulator.text.program import Instruction
from numba_marlin.layout import wgmma
from numba_marlin.layout.sparsity import Metadata


@dataclass(frozen=True)
class Operand:
    """A matrix [rows, ``depth_bytes`` of k] in shared memory, of which ``ins`` has a descriptor: 32
    but for B of a sparse product."""

    ins: Instruction
    descriptor: int
    rows: int
    transposed: bool
    depth_bytes: int = wgmma.DEPTH_BYTES

    def chunk_addresses(self, named: wgmma.Descriptor) -> np.ndarray:
        """[row, chunk], or if it is transposed [k, chunk]."""
        find = wgmma.transposed_chunk_addresses if self.transposed else wgmma.chunk_addresses
        return find(named, self.rows, self.depth_bytes)


@dataclass(frozen=True, eq=False)
class Sparse:
    """Of a wgmma.mma_async.sp: the register number of its metadata, its row in WgmmaRegisters, its
    selector, and how to read them."""

    metadata: Metadata
    selector: int
    register: int
    rows: np.ndarray


@dataclass(eq=False)
class Shape:
    """What a wgmma instruction says: register numbers of D and A [4, or none: it is in shared
    memory], and their rows in WgmmaRegisters; where elements of D are in them; its types; whether
    the product is subtracted, and a sum of integers saturated; whether A and B in shared memory are
    MN-major; what is different if A is ``sparse``.
    """

    ins: Instruction
    columns: int
    d: np.ndarray
    a: np.ndarray
    d_rows: np.ndarray
    a_rows: np.ndarray
    d_places: np.ndarray
    d_back: np.ndarray
    form: Form
    negated: bool
    saturated: bool
    a_transposed: bool
    b_transposed: bool
    sparse: Sparse | None = None

    def operands(self, a: int | None, b: int) -> list[Operand]:
        """What these descriptors name in shared memory."""
        depth_bytes = wgmma.DEPTH_BYTES * (1 if self.sparse is None else 2)
        found = [Operand(self.ins, b, self.columns, self.b_transposed, depth_bytes)]
        if a is not None:
            found.append(Operand(self.ins, a, wgmma.ROWS, self.a_transposed))
        return found

    @property
    def accumulators(self) -> tuple:
        """Products that agree in it may add to the same registers one after the other."""
        sparse = self.sparse is not None
        return self.columns, self.form.depth, sparse, self.form.d, tuple(self.d.tolist())

    @property
    def read_rows(self) -> np.ndarray:
        """Rows in WgmmaRegisters that the product reads and does not write: A and metadata."""
        if self.sparse is None:
            return self.a_rows
        return np.concatenate([self.a_rows, self.sparse.rows])

    def multiply(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray, codes: np.ndarray | None, adder: Adder
    ) -> np.ndarray:
        """``Form.multiply`` of a uint8 [64, 32], which is what is stored of a sparse A with this
        metadata ``codes`` [64, chunks]."""
        signs = self.negated, self.saturated
        if codes is None:
            return self.form.multiply(a, b, c, *signs, adder)
        a = sparsity.expand(a, codes)
        if not sparsity.any_special(self.form.b, self.form.elements(b)):
            return self.form.multiply(a, b, c, *signs, adder, sparse=True)
        columns = sparsity.met(b, codes)
        rows = (slice(row, row + 1) for row in range(wgmma.ROWS))
        return np.concatenate(
            [
                self.form.multiply(a[row], columns[row][0], c[row], *signs, adder, sparse=True)
                for row in rows
            ]
        )


@dataclass(frozen=True)
class Product:
    """One warp's part of a product: descriptors as numbers (a: None for registers), ``adds``: D is
    added to, not replaced. ``found``: the bytes of b, and of a in shared memory, at issue."""

    shape: Shape
    a: int | None
    b: int
    adds: bool
    found: list[np.ndarray] = field(compare=False)

"""Which types wgmma multiplies, and what comes out: ``FORMS`` by the types that the instruction
names, ``Form.multiply`` on the bytes of its operands.

Of every type a row of A, or a column of B, has 32 bytes of k. Floats are added as in
``tensor_sums``, integers as in ``integer_sums``.
https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma-async
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator.tensor.integer_sums import DTYPES, add_bits, add_integers
from numba_marlin.emulator.tensor.tensor_sums import SMALL, SMALL_FLOATS, Adder, add_products
from numba_marlin.layout import wgmma

ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
BITS = {"b1": 1, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f16": 16, "bf16": 16, "tf32": 32}
NO_ODD_EIGHTS = tuple(n for n in wgmma.COLUMNS if n % 16 == 0 or n <= 24)
"""The numbers of columns that the ISA has for integers."""


@dataclass(frozen=True)
class Form:
    """Types of D, A and B."""

    d: str
    a: str
    b: str

    @property
    def named(self) -> tuple[str, ...]:
        """As the instruction names it."""
        return (self.d, self.a, self.b, *(("and", "popc") if self.a == "b1" else ()))

    @property
    def depth(self) -> int:
        return wgmma.DEPTH_BYTES * 8 // BITS[self.a]

    @property
    def integer(self) -> bool:
        return self.d == "s32"

    @property
    def saturates(self) -> bool:
        """Has it .satfinite?"""
        return self.a in DTYPES

    @property
    def columns(self) -> tuple[int, ...]:
        return NO_ODD_EIGHTS if self.integer else tuple(wgmma.COLUMNS)

    @property
    def immediates(self) -> int:
        """How many of them scale A and B: 1 or -1."""
        return 0 if self.integer else 2

    @property
    def transposes(self) -> bool:
        """Are there immediates that say which way A and B lie in shared memory?"""
        return BITS[self.a] == 16

    @property
    def accumulator(self) -> type:
        return ACCUMULATORS[self.d]

    def registers(self, columns: int) -> int:
        """32-bit registers of D in a lane."""
        return columns // 2 * np.dtype(self.accumulator).itemsize // 4

    def elements(self, b: np.ndarray) -> np.ndarray:
        """Bytes of B as bit patterns of its type; of integers and bits, bytes."""
        return b.view({16: np.uint16, 32: np.uint32}.get(BITS[self.b], np.uint8))

    def multiply(
        self,
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        negated: bool,
        saturated: bool,
        adder: Adder,
        sparse: bool = False,
    ) -> np.ndarray:
        """[rows, columns] like c: c + a @ b.T, or c - a @ b.T; a uint8 [rows, 32] and b uint8
        [columns, 32], the bytes of rows; or, of a sparse a with its zeros, twice as many."""
        if self.a == "b1":
            return add_bits(np.unpackbits(a, axis=1), np.unpackbits(b, axis=1), c, "and")
        if self.integer:
            return add_integers(a.view(DTYPES[self.a]), b.view(DTYPES[self.b]), c, saturated)
        if BITS[self.a] == 8:
            left, right = (
                codes.astype(np.uint16) + np.uint16(SMALL[kind])
                for codes, kind in ((a, self.a), (b, self.b))
            )
            kind, sign, adder = "f8", 0x80, SMALL_FLOATS
        else:
            word = np.uint16 if BITS[self.a] == 16 else np.uint32
            left, right = a.view(word), b.view(word)
            kind, sign = self.a, 1 << BITS[self.a] - 1
        if sparse:
            adder = adder.of_sparse
        factors = np.concatenate([left ^ left.dtype.type(sign if negated else 0), right])
        return add_products(kind, factors[None], len(left), c[None], adder)[0]


FORMS = {
    form.named: form
    for form in (
        Form("f32", "f16", "f16"),
        Form("f16", "f16", "f16"),
        Form("f32", "bf16", "bf16"),
        *(Form(d, a, b) for d in ("f32", "f16") for a in SMALL for b in SMALL),
        Form("f32", "tf32", "tf32"),
        *(Form("s32", a, b) for a in DTYPES for b in DTYPES),
        Form("s32", "b1", "b1"),
    )
}

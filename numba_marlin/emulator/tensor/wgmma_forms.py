"""Which types wgmma multiplies, and what comes out: ``FORMS`` by the types that the instruction
names, ``Form.multiply`` on the bytes of its operands.

Of every type a row of A, or a column of B, has 32 bytes of k. Floats are added as in
``tensor_sums``. Sums of integers are exact and wrap, or stop at the ends of their range with
.satfinite, once an instruction.
https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions-wgmma-mma-async
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator.tensor.tensor_sums import SMALL, SMALL_FLOATS, Adder, add_products
from numba_marlin.layout import wgmma

ACCUMULATORS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
INTEGERS = {"s8": np.int8, "u8": np.uint8}
BITS = {"f16": 16, "bf16": 16, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8}
NO_ODD_EIGHTS = tuple(n for n in wgmma.COLUMNS if n % 16 == 0 or n <= 24)
"""The numbers of columns that the ISA has for integers."""


@dataclass(frozen=True)
class Form:
    """Types of D, A and B, as the instruction names them."""

    d: str
    a: str
    b: str

    @property
    def depth(self) -> int:
        return wgmma.DEPTH_BYTES * 8 // BITS[self.a]

    @property
    def integer(self) -> bool:
        return self.a in INTEGERS

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

    def multiply(
        self,
        a: np.ndarray,
        b: np.ndarray,
        c: np.ndarray,
        negated: bool,
        saturated: bool,
        adder: Adder,
    ) -> np.ndarray:
        """[64, columns] like c: c + a @ b.T, or c - a @ b.T; a uint8 [64, 32] and b uint8
        [columns, 32], the bytes of rows."""
        if self.integer:
            return add_integers(a.view(INTEGERS[self.a]), b.view(INTEGERS[self.b]), c, saturated)
        if BITS[self.a] == 8:
            left, right = (
                codes.astype(np.uint16) + np.uint16(SMALL[kind])
                for codes, kind in ((a, self.a), (b, self.b))
            )
            kind, sign, adder = "f8", 0x80, SMALL_FLOATS
        else:
            left, right = a.view(np.uint16), b.view(np.uint16)
            kind, sign = self.a, 0x8000
        factors = np.concatenate([left ^ np.uint16(sign if negated else 0), right])
        return add_products(kind, factors[None], wgmma.ROWS, c[None], adder)[0]


FORMS = {
    (form.d, form.a, form.b): form
    for form in (
        Form("f32", "f16", "f16"),
        Form("f16", "f16", "f16"),
        Form("f32", "bf16", "bf16"),
        *(Form(d, a, b) for d in ("f32", "f16") for a in SMALL for b in SMALL),
        *(Form("s32", a, b) for a in INTEGERS for b in INTEGERS),
    )
}


def add_integers(left: np.ndarray, right: np.ndarray, c: np.ndarray, saturated: bool) -> np.ndarray:
    """int32 [rows, columns]: c + left @ right.T; integers of up to 8 bits, at most 256 of them in
    a row. The sums of products are exact in float32."""
    total = (left.astype(np.float32) @ right.astype(np.float32).T).astype(np.int64) + c
    if saturated:
        limits = np.iinfo(np.int32)
        total = np.clip(total, limits.min, limits.max)
    return total.astype(np.int32)

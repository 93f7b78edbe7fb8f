"""Fragment maps: which lane of a warp holds which element of a matrix, and in which register.

A fragment of a ``rows x cols`` matrix is spread over the 32 lanes of a warp, ``elements`` to a
lane. The maps are the index formulas of the PTX ISA, section "Warp-level matrix instructions",
evaluated for every lane and element:

- ``mma.m16n8k16`` with .f16/.bf16 operands:
  https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16816-float
- ``mma.m16n8k32`` with 8-bit operands:
  https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16832
- ``ldmatrix``:
  https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-ldmatrix

Elements are numbered in register order. With 16-bit elements, element ``2 * r`` is the low half and
``2 * r + 1`` the high half of 32-bit register ``r``; with 32-bit elements each one has a register
of its own.

Every map is checked when it is built: a fragment that is not a bijection between (lane, element)
and (row, col) raises ValueError at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

LANES = 32


@dataclass(frozen=True, eq=False)
class Fragment:
    """A matrix of ``rows x cols`` elements of ``bits`` bits, spread over the 32 lanes of a warp, or
    the 128 of a warpgroup.

    ``row_of`` and ``col_of`` are read-only int64 arrays [lanes, elements]: the coordinates of what
    a lane holds.
    """

    name: str
    rows: int
    cols: int
    elements: int
    bits: int
    row_of: np.ndarray
    col_of: np.ndarray
    lanes: int = LANES

    def __post_init__(self) -> None:
        for label in ("row_of", "col_of"):
            array = np.array(getattr(self, label), dtype=np.int64)
            if array.shape != (self.lanes, self.elements):
                raise ValueError(
                    f"{self.name}: {label}.shape={array.shape} must be ({self.lanes},"
                    f" {self.elements})"
                )
            array.setflags(write=False)
            object.__setattr__(self, label, array)
        if not is_bijection(self):
            raise ValueError(
                f"{self.name}: {self.lanes} lanes x {self.elements} elements must hold every"
                f" element of a {self.rows} x {self.cols} matrix exactly once"
            )

    @property
    def registers(self) -> int:
        """32-bit registers that each lane spends on the fragment."""
        return self.elements * self.bits // 32

    def coords(self, lane: int, element: int) -> tuple[int, int]:
        """(row, col) of what ``lane`` holds as its ``element``-th element."""
        return int(self.row_of[lane, element]), int(self.col_of[lane, element])

    def holder(self, row: int, col: int) -> tuple[int, int]:
        """(lane, element) that holds matrix element (row, col): the inverse of ``coords``."""
        lanes, elements = np.nonzero((self.row_of == row) & (self.col_of == col))
        if lanes.size != 1:
            raise ValueError(
                f"({row}, {col}) must lie in the {self.rows} x {self.cols} matrix of {self.name}"
            )
        return int(lanes[0]), int(elements[0])

    def gather(self, matrix: np.ndarray) -> np.ndarray:
        """Matrix [..., rows, cols] -> what each lane holds, [..., lanes, elements] (a copy)."""
        matrix = np.asarray(matrix)
        if matrix.shape[-2:] != (self.rows, self.cols):
            raise ValueError(
                f"{self.name}: matrix.shape={matrix.shape} must end in ({self.rows}, {self.cols})"
            )
        return matrix[..., self.row_of, self.col_of]

    def scatter(self, fragment: np.ndarray) -> np.ndarray:
        """What each lane holds, [..., lanes, elements] -> matrix [..., rows, cols]: the inverse of
        ``gather``."""
        fragment = np.asarray(fragment)
        if fragment.shape[-2:] != (self.lanes, self.elements):
            raise ValueError(
                f"{self.name}: fragment.shape={fragment.shape} must end in ({self.lanes},"
                f" {self.elements})"
            )
        matrix = np.empty(fragment.shape[:-2] + (self.rows, self.cols), dtype=fragment.dtype)
        matrix[..., self.row_of, self.col_of] = fragment
        return matrix

    def transposed(self) -> Fragment:
        """The same registers read as a fragment of the transposed matrix."""
        return Fragment(
            f"{self.name}.trans",
            self.cols,
            self.rows,
            self.elements,
            self.bits,
            self.col_of,
            self.row_of,
            self.lanes,
        )


def is_bijection(fragment: Fragment) -> bool:
    """Whether every element of the matrix is held exactly once."""
    inside = (
        (fragment.row_of >= 0)
        & (fragment.row_of < fragment.rows)
        & (fragment.col_of >= 0)
        & (fragment.col_of < fragment.cols)
    )
    if not inside.all():
        return False
    held = np.sort((fragment.row_of * fragment.cols + fragment.col_of).ravel())
    return np.array_equal(held, np.arange(fragment.rows * fragment.cols))


def _evaluate(
    name: str,
    shape: tuple[int, int],
    bits: int,
    formula: Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> Fragment:
    """Build a Fragment from a formula (group, thread, element) -> (row, col) over index arrays.

    ``group`` is PTX's groupID (lane / 4) and ``thread`` its threadID_in_group (lane % 4).
    """
    rows, cols = shape
    elements = rows * cols // LANES
    lane = np.arange(LANES)[:, None]
    element = np.arange(elements)[None, :]
    row, col = formula(lane // 4, lane % 4, element)
    full = (LANES, elements)
    return Fragment(
        name, rows, cols, elements, bits, np.broadcast_to(row, full), np.broadcast_to(col, full)
    )


# Rows are m, columns k. Registers a0..a3 are the quadrants upper left, lower left, upper right,
# lower right.
MMA_M16N8K16_A = _evaluate(
    "mma.m16n8k16.A",
    (16, 16),
    16,
    lambda group, thread, i: (group + 8 * (i // 2 % 2), 2 * thread + i % 2 + 8 * (i // 4)),
)

# Rows are k, columns n. Registers b0, b1 are the upper and the lower half.
MMA_M16N8K16_B = _evaluate(
    "mma.m16n8k16.B",
    (16, 8),
    16,
    lambda group, thread, i: (2 * thread + i % 2 + 8 * (i // 2), group),
)

# As above with half the depth: a0, a1 are the upper and the lower rows; b is one register.
MMA_M16N8K8_A = _evaluate(
    "mma.m16n8k8.A",
    (16, 8),
    16,
    lambda group, thread, i: (group + 8 * (i // 2), 2 * thread + i % 2),
)
MMA_M16N8K8_B = _evaluate(
    "mma.m16n8k8.B", (8, 8), 16, lambda group, thread, i: (2 * thread + i, group)
)

# 8-bit elements, four to a register, k contiguous.
MMA_M16N8K32_A = _evaluate(
    "mma.m16n8k32.A",
    (16, 32),
    8,
    lambda group, thread, i: (group + 8 * (i // 4 % 2), 4 * thread + i % 4 + 16 * (i // 8)),
)
MMA_M16N8K32_B = _evaluate(
    "mma.m16n8k32.B",
    (32, 8),
    8,
    lambda group, thread, i: (4 * thread + i % 4 + 16 * (i // 4), group),
)

# 4-bit elements, eight to a register, k contiguous: of block-scaled products and of 4-bit integers.
MMA_M16N8K64_A = _evaluate(
    "mma.m16n8k64.A",
    (16, 64),
    4,
    lambda group, thread, i: (group + 8 * (i // 8 % 2), 8 * thread + i % 8 + 32 * (i // 16)),
)
MMA_M16N8K64_B = _evaluate(
    "mma.m16n8k64.B",
    (64, 8),
    4,
    lambda group, thread, i: (8 * thread + i % 8 + 32 * (i // 8), group),
)

# Rows are m, columns n; fp32 accumulators, so one element to a register. D has the same map.
MMA_M16N8K16_C = _evaluate(
    "mma.m16n8k16.C",
    (16, 8),
    32,
    lambda group, thread, i: (group + 8 * (i // 2), 2 * thread + i % 2),
)

# One 8x8 matrix of 16-bit elements as ldmatrix hands it to the lanes.
LDMATRIX_8X8 = _evaluate(
    "ldmatrix.8x8",
    (8, 8),
    16,
    lambda group, thread, i: (group, 2 * thread + i),
)

# With .trans, the lane that would hold (row, col) gets element (col, row) of the stored matrix.
LDMATRIX_8X8_TRANS = LDMATRIX_8X8.transposed()

FRAGMENTS = {
    fragment.name: fragment
    for fragment in (
        MMA_M16N8K16_A,
        MMA_M16N8K16_B,
        MMA_M16N8K8_A,
        MMA_M16N8K8_B,
        MMA_M16N8K32_A,
        MMA_M16N8K32_B,
        MMA_M16N8K64_A,
        MMA_M16N8K64_B,
        MMA_M16N8K16_C,
        LDMATRIX_8X8,
        LDMATRIX_8X8_TRANS,
    )
}


def ldmatrix_address_row(lane: int, matrices: int) -> tuple[int, int]:
    """(matrix, row) whose 16-byte row address ``lane`` supplies to ``ldmatrix.x{matrices}``.

    Lanes 0-7 give the rows of matrix 0, lanes 8-15 those of matrix 1, and so on. With .x1 and .x2
    the upper lanes' addresses are not used by the instruction, but must be valid; they repeat the
    lower ones here.
    """
    if matrices not in (1, 2, 4):
        raise ValueError(f"matrices={matrices} must be 1, 2 or 4")
    return lane // 8 % matrices, lane % 8

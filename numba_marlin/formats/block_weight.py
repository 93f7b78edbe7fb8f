"""``BlockWeight``: a weight of 4- or 8-bit floats with one scale per block, unpacked. It is to
NVFP4, MXFP4 and FP8 what ``QuantizedWeight`` is to integer grids.

    W[i, j] = decode(codes[i, j]) * scale[i // rows, j // columns] * factor
    factor  = global_scale, or 1 / global_scale if it divides

``quantizers.dequantize`` computes its numbers. Kernels multiply e2m1 weights whose blocks are 16 or
32 rows of one column, packed by ``fp4_marlin``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats.floats import is_single, number, two_sizes
from numba_marlin.formats.small_floats import BITS, decode, table
from numba_marlin.wording import byte_count

GRIDS = ("e2m1", "e4m3", "e5m2")
SCALE_GRIDS = (None, "e4m3", "e8m0")
SCALE_TYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, eq=False)
class BlockWeight:
    """A block-scaled weight [k, n]; the module's docstring has the formula.

    Fields are checked on construction: TypeError or ValueError, naming the value and the rule. NaN
    codes or scales are a ValueError.
    """

    #: Codes, uint8 [k, n], in number format ``grid``.
    codes: np.ndarray
    #: Number format of the codes: "e2m1", "e4m3" or "e5m2".
    grid: str
    #: Scales [ceil(k / rows), ceil(n / columns)], of a float type, or uint8 codes in number format
    #: ``scale_grid``.
    scales: np.ndarray
    #: Number format of the scales: "e4m3", "e8m0", or None if they are floats.
    scale_grid: str | None
    #: Shape (rows, columns) of a block, which shares one scale.
    block: tuple[int, int]
    #: Scale of the whole weight, a float32 number, or None.
    global_scale: float | None = None
    #: Whether the global scale divides instead of multiplying.
    divides: bool = False
    #: Scale of the activations as the file stores it; kept, not used.
    input_scale: float | None = None
    #: Whether ``input_scale`` divides.
    input_divides: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("grid", self.grid, GRIDS),
            ("scale_grid", self.scale_grid, SCALE_GRIDS),
        ):
            if value not in allowed:
                raise ValueError(f"{name}={value!r} must be one of {allowed}")
        for name, array, types in (
            ("codes", self.codes, ("uint8",)),
            ("scales", self.scales, ("uint8",) if self.scale_grid else SCALE_TYPES),
        ):
            if not isinstance(array, np.ndarray) or array.dtype.name not in types:
                raise TypeError(
                    f"{name} is {getattr(array, 'dtype', type(array).__name__)}, must be a"
                    f" numpy.ndarray of {' or '.join(types)}"
                )
            if array.ndim != 2 or array.size == 0:
                raise ValueError(f"{name}.shape={array.shape} must be 2 sizes above 0")
        k, n = self.codes.shape
        rows, columns = two_sizes("block", self.block, "(rows, columns)")
        if not (0 < rows <= k and 0 < columns <= n):
            raise ValueError(f"block={self.block} must be between (1, 1) and (k, n)=({k}, {n})")
        object.__setattr__(self, "block", (rows, columns))
        if self.scales.shape != (-(-k // rows), -(-n // columns)):
            raise ValueError(
                f"scales.shape={self.scales.shape} must be {(-(-k // rows), -(-n // columns))}:"
                f" codes are {k} x {n} in blocks of {rows} x {columns}"
            )
        self._check_values()

    def _check_values(self) -> None:
        values = {
            name: table(grid)
            for name, grid in (("codes", self.grid), ("scales", self.scale_grid))
            if grid
        }
        for name, array in (("codes", self.codes), ("scales", self.scales)):
            if name in values and len(values[name]) < 256 and int(array.max()) >= len(values[name]):
                raise ValueError(
                    f"{name} must be below {len(values[name])}: {self.grid} has {BITS[self.grid]}"
                    " bits"
                )
            bad = (
                np.isnan(values[name])[array]
                if name in values and np.isnan(values[name]).any()
                else ~np.isfinite(array)
            )
            if bad.any():
                row, column = np.argwhere(bad)[0]
                raise ValueError(f"{name}[{row}, {column}]={array[row, column]} must be finite")
        for name in ("global_scale", "input_scale"):
            if getattr(self, name) is None:
                continue
            value = number(name, getattr(self, name))
            if value == 0 or not is_single(value):
                raise ValueError(
                    f"{name}={value!r} must be a finite number of float32 other than 0"
                )
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, int]:
        """(k, n)"""
        return self.k, self.n

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays; a code takes one."""
        return self.codes.nbytes + self.scales.nbytes

    def __repr__(self) -> str:
        rows, columns = self.block
        of_all = "" if self.global_scale is None else ", a global scale"
        return (
            f"<BlockWeight [k={self.k}, n={self.n}], codes {self.grid}, scales"
            f" {self.scale_grid or self.scales.dtype.name} of blocks [{rows}, {columns}]{of_all};"
            f" {byte_count(self.nbytes)} on the host>"
        )

    @property
    def k(self) -> int:
        return self.codes.shape[0]

    @property
    def n(self) -> int:
        return self.codes.shape[1]

    @property
    def bits(self) -> int:
        return BITS[self.grid]

    def scale_values(self) -> np.ndarray:
        """The blocks' scales as float32 numbers, exact."""
        return (
            decode(self.scales, self.scale_grid)
            if self.scale_grid
            else self.scales.astype(np.float32)
        )

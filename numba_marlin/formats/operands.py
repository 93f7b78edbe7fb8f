"""``BlockScaled``: a matrix of 4- or 8-bit floats in which each block of a row shares a scale. It
is either operand of a block-scaled product, or its result.

    X[r, i] = decode(code(r, i), element) * decode(scales[r, i // block], scale_grid) * global_scale

    format      element  block  scales  global scale
    nvfp4       e2m1     16     e4m3    a float32 number
    mxfp4       e2m1     32     e8m0    none (1)
    mxfp8-e4m3  e4m3     32     e8m0    none (1)
    mxfp8-e5m2  e5m2     32     e8m0    none (1)

data: uint8 [rows, columns * bits / 8], C-contiguous; the low nibble of a byte holds the column with
the even number. scales: uint8, in one of two orders, ``scale_order``: "plain"
[rows, columns / block], or "128x4", flat, as block-scaled tensor cores read them
(``layout.block_scales``; tiles are padded with zeros). Blocks lie along a row: both operands of a
product have k as their columns, A [m, k] and B [n, k], as torch.nn.Linear stores its weight.

data and scales are NumPy arrays, or arrays of the same shapes with one-byte elements on a device.
The constructor checks types and shapes (TypeError or ValueError, naming the value and the rule) but
reads no elements; codes may be NaN or infinity where the format has them. Methods that read
elements need them on the host. Sources: NVIDIA's NVFP4 as ModelOpt writes it; OCP Microscaling
Formats 1.0 for MX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from numba_marlin.formats.block_weight import BlockWeight
from numba_marlin.formats.floats import as_numpy, is_single, number, two_sizes
from numba_marlin.formats.small_floats import BITS
from numba_marlin.layout import block_scales
from numba_marlin.wording import byte_count, did_you_mean

SCALE_ORDERS = ("plain", "128x4")


@dataclass(frozen=True)
class BlockFormat:
    """One row of the module's table."""

    name: str
    #: Number format of the codes (``small_floats``).
    element: str
    #: Columns that share a scale.
    block: int
    #: Number format of the scales.
    scale_grid: str
    #: Whether a float32 number multiplies the whole matrix.
    has_global_scale: bool = False

    @property
    def bits(self) -> int:
        return BITS[self.element]

    def data_shape(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, columns * self.bits // 8

    def scales_shape(self, rows: int, columns: int, order: str) -> tuple[int, ...]:
        """Shape of the scales in ``order``, one of SCALE_ORDERS."""
        if order not in SCALE_ORDERS:
            raise ValueError(f"scale_order={order!r} must be one of {', '.join(SCALE_ORDERS)}")
        return (
            (rows, columns // self.block)
            if order == "plain"
            else (block_scales.tiled_bytes(rows, columns // self.block),)
        )


BLOCK_FORMATS = {
    form.name: form
    for form in (
        BlockFormat("nvfp4", "e2m1", 16, "e4m3", has_global_scale=True),
        BlockFormat("mxfp4", "e2m1", 32, "e8m0"),
        BlockFormat("mxfp8-e4m3", "e4m3", 32, "e8m0"),
        BlockFormat("mxfp8-e5m2", "e5m2", 32, "e8m0"),
    )
}


def find_block_format(name: str) -> BlockFormat:
    if not isinstance(name, str) or name not in BLOCK_FORMATS:
        raise ValueError(
            f"format={name!r} must be one of {', '.join(BLOCK_FORMATS)}"
            f"{did_you_mean(name, BLOCK_FORMATS)}"
        )
    return BLOCK_FORMATS[name]


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 codes [rows, columns] -> data [rows, columns * bits / 8]."""
    return np.ascontiguousarray(
        codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    )


def unpack_codes(data: np.ndarray, bits: int) -> np.ndarray:
    """The inverse of ``pack_codes``."""
    return (
        data
        if bits == 8
        else np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=2).reshape(data.shape[0], -1)
    )


@dataclass(frozen=True, eq=False)
class BlockScaled:
    """A block-scaled matrix; the module's docstring has the formula, the formats and the shapes."""

    #: Name of one of BLOCK_FORMATS.
    format: str
    #: (rows, columns) of the matrix; columns are a multiple of the block.
    shape: tuple[int, int]
    #: Codes, uint8 [rows, columns * bits / 8], a NumPy array or one on a device.
    data: Any
    #: Scales, uint8, in ``scale_order``, a NumPy array or one on a device.
    scales: Any
    #: A positive float32 number; 1 if the format has no global scale.
    global_scale: float = 1.0
    #: Order of the scales: "plain" or "128x4".
    scale_order: str = "plain"

    def __post_init__(self) -> None:
        form = find_block_format(self.format)
        rows, columns = two_sizes("shape", self.shape, "(rows, columns)")
        if rows < 1 or columns < 1 or columns % form.block:
            raise ValueError(
                f"shape={self.shape} must be (rows, columns), at least 1 and a multiple of"
                f" {form.block}, the block of {self.format}"
            )
        object.__setattr__(self, "shape", (rows, columns))
        shapes = {
            "data": form.data_shape(rows, columns),
            "scales": form.scales_shape(rows, columns, self.scale_order),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if not hasattr(array, "shape") or not hasattr(array, "dtype"):
                raise TypeError(
                    f"{name} is a {type(array).__name__}, must be an array of one-byte elements"
                )
            if tuple(array.shape) != shape:
                raise ValueError(
                    f"{name}.shape={tuple(array.shape)} must be {shape}: {self.format} {rows} x"
                    f" {columns}, scale_order {self.scale_order!r}"
                )
            if isinstance(array, np.ndarray) and array.dtype != np.uint8:
                raise TypeError(
                    f"{name}.dtype={array.dtype} must be uint8; codes of another type are viewed as"
                    " such with .view(numpy.uint8)"
                )
        scale = number("global_scale", self.global_scale)
        if not (scale > 0 and is_single(scale)):
            raise ValueError(f"global_scale={scale!r} must be a finite number of float32 above 0")
        object.__setattr__(self, "global_scale", scale)
        if scale != 1 and not form.has_global_scale:
            raise ValueError(f"global_scale={scale!r} must be 1: {self.format} has none")

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales, of one byte an element."""
        return int(np.prod(self.data.shape)) + int(np.prod(self.scales.shape))

    def __repr__(self) -> str:
        rows, columns = self.shape
        library = type(self.data).__module__.partition(".")[0]
        device = getattr(self.data, "device", "a device")
        where = "the host" if library == "numpy" else f"{device} ({library})"
        scale = f", global scale {self.global_scale:g}" if self.form.has_global_scale else ""
        return (
            f"<BlockScaled [{rows}, {columns}], {self.format}, scales in {self.scale_order}"
            f" order{scale}; {byte_count(self.nbytes)} on {where}>"
        )

    @property
    def form(self) -> BlockFormat:
        return BLOCK_FORMATS[self.format]

    def codes(self) -> np.ndarray:
        """uint8 [rows, columns], one code per element."""
        return unpack_codes(self._on_host("data"), self.form.bits)

    def plain_scales(self) -> np.ndarray:
        """uint8 [rows, columns / block]"""
        (rows, columns), scales = self.shape, self._on_host("scales")
        return (
            scales
            if self.scale_order == "plain"
            else block_scales.from_tiles(scales, rows, columns // self.form.block)
        )

    def with_scales(self, order: str) -> BlockScaled:
        """The same matrix with its scales in ``order``."""
        self.form.scales_shape(*self.shape, order)
        if order == self.scale_order:
            return self
        return replace(
            self,
            scales=(
                block_scales.to_tiles(self.plain_scales())
                if order == "128x4"
                else self.plain_scales()
            ),
            scale_order=order,
        )

    def _on_host(self, name: str) -> np.ndarray:
        """data or scales, checked to be readable on the host."""
        array = getattr(self, name)
        host = as_numpy(name, array)
        if host.dtype != np.uint8:
            raise TypeError(
                f"{name} is a {type(array).__name__} of {array.dtype}, must be uint8 on the host to"
                " be read: bring it there first, as uint8"
            )
        return host


def from_weight(weight: BlockWeight) -> BlockScaled:
    """Convert a weight W [k, n] from a file to the operand B = W^T [n, k]. ValueError if its blocks
    are not those of a block-scaled format. A global scale that divides is replaced by its
    reciprocal, rounded to float32 (as ``formats.block_files`` does for files)."""
    if not isinstance(weight, BlockWeight):
        raise TypeError(
            f"weight is a {type(weight).__name__}, must be a BlockWeight, as load_checkpoint and"
            " unpack give it"
        )
    for form in BLOCK_FORMATS.values():
        if (weight.grid, weight.scale_grid, weight.block) == (
            form.element,
            form.scale_grid,
            (form.block, 1),
        ):
            break
    else:
        raise ValueError(
            f"a weight of {weight.grid} with {weight.scale_grid} scales for blocks of"
            f" {weight.block} is none of {', '.join(BLOCK_FORMATS)}"
        )
    if weight.k % form.block:
        raise ValueError(
            f"k={weight.k} must be a multiple of {form.block}, the block of {form.name}"
        )
    factor = 1.0 if weight.global_scale is None else weight.global_scale
    with np.errstate(over="ignore"):
        factor = float(np.float32(1) / np.float32(factor)) if weight.divides else factor
    return BlockScaled(
        form.name,
        (weight.n, weight.k),
        pack_codes(weight.codes.T, form.bits),
        np.ascontiguousarray(weight.scales.T),
        factor,
    )


def to_weight(operand: BlockScaled) -> BlockWeight:
    """The inverse of ``from_weight``: an operand [n, k] as a weight [k, n] with scales in plain
    order."""
    if not isinstance(operand, BlockScaled):
        raise TypeError(f"operand is a {type(operand).__name__}, must be a BlockScaled")
    form = operand.form
    factor = operand.global_scale if form.has_global_scale else None
    scales = np.ascontiguousarray(operand.plain_scales().T)
    return BlockWeight(
        np.ascontiguousarray(operand.codes().T),
        form.element,
        scales,
        form.scale_grid,
        (form.block, 1),
        factor,
    )

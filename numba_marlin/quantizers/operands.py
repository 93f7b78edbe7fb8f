"""Round to nearest in block-scaled formats: NVFP4, MXFP4, MXFP8. Kernels whose epilogue writes such
a result reproduce this arithmetic bit for bit.

``quantize_blocks(x, format)``: x [rows, columns] float, finite ->
``formats.operands.BlockScaled``. All arithmetic is float32, every operation rounded once to
nearest even, in this order (amax: the largest magnitude of a block):

NVFP4, with a global scale S (default: the largest magnitude of x / (6 * 448), so that no block's
scale saturates; 1 if x is all zeros) and inverse = 1 / S:

    scale = e4m3(amax * (inverse / 6))          saturates at 448
    factor = inverse * (1 / scale)              0 where the scale is 0: tiny blocks become zeros
    code = e2m1(x * factor)

MX, whose scales are powers of two: ``rounding="floor"``, the rule of OCP's specification, takes the
exponent of amax minus that of the element's largest number, and saturates what lies above that
number; "ceil" takes the smallest power with which nothing saturates.

    scale = 2 ** (floor(log2(amax)) - floor(log2(largest)))     floor; at least 2**-127
    scale = 2 ** ceil(log2(amax / largest))                     ceil; at least 2**-127
    code = element(x / scale)

``quantizers.dequantize`` turns the result back into numbers.

Sources: OCP Microscaling Formats 1.0, section 6.3; NVIDIA, "Introducing NVFP4" (the two levels of
scales).
"""

from __future__ import annotations

import numpy as np

from numba_marlin.formats.floats import number
from numba_marlin.formats.operands import BlockFormat, BlockScaled, find_block_format, pack_codes
from numba_marlin.formats.small_floats import LARGEST, decode, encode

ROUNDINGS = ("floor", "ceil")
_CHUNK_ELEMENTS = 1 << 22
_ONE = np.float32(1)


def default_global_scale(amax: float) -> float:
    """The default global scale of NVFP4 numbers up to ``amax``; 1 if it would underflow or its
    inverse overflow in float32."""
    with np.errstate(under="ignore", over="ignore", divide="ignore"):
        scale = np.float32(np.float32(amax) / np.float32(LARGEST["e2m1"] * LARGEST["e4m3"]))
        return float(scale) if scale > 0 and np.isfinite(_ONE / scale) else 1.0


def inverse_of(global_scale: float, name: str = "global_scale") -> np.float32:
    """1 / global_scale in float32. ValueError if that is not finite, TypeError if global_scale is
    not a number."""
    with np.errstate(over="ignore", divide="ignore"):
        inverse = _ONE / np.float32(number(name, global_scale))
    if not np.isfinite(inverse) or inverse <= 0:
        raise ValueError(
            f"{name}={global_scale!r} must be above 0, and its inverse finite in float32"
        )
    return inverse


def check_rounding(name: str, rounding: object) -> None:
    if rounding not in ROUNDINGS:
        raise ValueError(f"{name}={rounding!r} must be one of {', '.join(ROUNDINGS)}")


def power_offset(element: str, rounding: str) -> int:
    """Subtracting this from the bits of amax (float32) leaves the e8m0 code of the block's scale in
    the upper 9 bits."""
    check_rounding("rounding", rounding)
    largest = int(np.float32(LARGEST[element]).view(np.uint32))
    return (largest & ~0x7FFFFF if rounding == "floor" else largest - 0x7FFFFF) - (127 << 23)


def block_scales(
    amax: np.ndarray, form: BlockFormat, inverse: np.float32, rounding: str
) -> tuple[np.ndarray, np.ndarray]:
    """amax float32 -> (uint8 codes of the scales, float32 factors that multiply the numbers)."""
    if form.scale_grid == "e8m0":
        codes = np.clip(
            (amax.view(np.uint32).astype(np.int64) - power_offset(form.element, rounding)) >> 23,
            0,
            253,
        )
        return codes.astype(np.uint8), ((254 - codes) << 23).astype(np.uint32).view(np.float32)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        codes = encode(amax * (inverse / np.float32(LARGEST[form.element])), form.scale_grid)
        scales = decode(codes, form.scale_grid)
        return codes, np.where(scales == 0, np.float32(0), inverse * (_ONE / scales))


def quantize_blocks(
    x: np.ndarray,
    format: str = "nvfp4",
    *,
    global_scale: float | None = None,
    rounding: str = "floor",
) -> BlockScaled:
    """Quantise x [rows, columns] by the rules of the module's docstring. x: any float type, rounded
    to float32 first. global_scale: NVFP4 only. rounding: of MX scales. Raises TypeError or
    ValueError, also for numbers that are not finite."""
    form = find_block_format(format)
    x = np.asarray(x)
    if x.dtype.kind != "f" and x.dtype.name != "bfloat16":
        raise TypeError(f"x.dtype={x.dtype} must be a float type")
    if x.ndim != 2 or x.size == 0 or x.shape[1] % form.block:
        raise ValueError(
            f"x.shape={x.shape} must be (rows, columns), at least 1 and a multiple of {form.block},"
            f" the block of {format}"
        )
    if global_scale is not None and not form.has_global_scale:
        raise ValueError(f"global_scale={global_scale!r} must be None: {format} has none")
    check_rounding("rounding", rounding)
    largest = float(np.max([np.abs(chunk).max() for _, chunk in _rows_of(x)]))
    if not np.isfinite(largest):
        _refuse_nonfinite(x)
    if form.has_global_scale and global_scale is None:
        global_scale = default_global_scale(largest)
    return round_blocks(x, form, 1.0 if global_scale is None else global_scale, rounding)


def round_blocks(
    x: np.ndarray, form: BlockFormat, global_scale: float, rounding: str
) -> BlockScaled:
    """Quantise x [rows, columns], whose shape is checked already, by the same rules without a check
    for finite numbers, as a kernel rounds its accumulators: infinities saturate, NaN stays NaN in
    the formats that have it."""
    inverse = inverse_of(global_scale)
    rows, columns = x.shape
    data = np.empty(form.data_shape(rows, columns), np.uint8)
    scales = np.empty((rows, columns // form.block), np.uint8)
    for where, chunk in _rows_of(x):
        blocks = chunk.reshape(len(chunk), -1, form.block)
        scales[where], factors = block_scales(np.abs(blocks).max(axis=2), form, inverse, rounding)
        with np.errstate(under="ignore", over="ignore", invalid="ignore"):
            codes = encode(blocks * factors[:, :, None], form.element)
        data[where] = pack_codes(codes.reshape(chunk.shape), form.bits)
    return BlockScaled(form.name, x.shape, data, scales, float(np.float32(global_scale)))


def _refuse_nonfinite(x: np.ndarray) -> None:
    for where, chunk in _rows_of(x):
        if not np.isfinite(chunk).all():
            row, column = np.argwhere(~np.isfinite(chunk))[0] + (where.start, 0)
            raise ValueError(
                f"x[{row}, {column}]={x[row, column]} must be finite, in float32 too: there is no"
                " scale for NaN or infinity"
            )


def _rows_of(x: np.ndarray):
    """(slice, rows as float32), few enough that their copies are no burden"""
    step = max(1, _CHUNK_ELEMENTS // x.shape[1])
    for start in range(0, len(x), step):
        with np.errstate(over="ignore"):
            yield slice(start, start + step), x[start : start + step].astype(np.float32)

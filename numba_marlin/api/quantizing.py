"""``quantize`` and ``quantize_blocks``: from floats to codes and scales, on the host."""

from __future__ import annotations

import importlib

import numpy as np

from numba_marlin.execution import arrays
from numba_marlin.formats import BlockWeight, QuantizedWeight
from numba_marlin.formats.operands import BlockScaled, find_block_format, to_weight

# modules of ``quantizers``, imported on first use
_METHODS = ("rtn", "mse", "gptq")


def quantize(
    w,
    bits: int | None = None,
    group_size: int | None = None,
    symmetric: bool = True,
    method: str = "rtn",
    scale_dtype: str | None = None,
    *,
    format: str | None = None,
    **options,
) -> QuantizedWeight | BlockWeight:
    """Quantise a weight to integer codes with a scale per group, or to block-scaled floats.

    w: the weight [k, n], float16, bfloat16, float32 or float64, finite, of any array library.
    bits: 4 (default) or 8.
    group_size: rows of a column that share a scale; must divide k. -1: one scale per column.
        Default 128.
    symmetric: the zero point is the middle of the grid; if False, each group has its own.
    method: "rtn" rounds to nearest. "mse" rounds to nearest on the grid of least squared error.
        "gptq" minimises the change of the layer's outputs (Frantar et al. 2022, arXiv 2210.17323).
    scale_dtype: "float16" (default) or "bfloat16".
    format: None for integers; "nvfp4" or "mxfp4" (or another of ``quantize_blocks``) for floats in
        blocks of 16 or 32 rows, rounded to nearest. Then bits, group_size and scale_dtype are the
        format's, and options are ``global_scale`` and ``rounding`` of ``quantize_blocks``.
    options: else for "gptq" only. ``calibration`` (required): inputs [m, k] of the layer, an
        iterable of such batches, or a ``Hessian`` that they were added to, as ``calibrate`` and
        ``load_hessians`` have one for each layer. damping=0.01, clip=True, act_order=False (True:
        the result has a permutation), static_groups=False.

    Returns a QuantizedWeight, or a BlockWeight of the format. Raises TypeError or ValueError for
    wrong arguments and for weights that are not finite. ``quantizers.rtn``, ``mse`` and ``gptq``
    specify the methods and their edge cases.
    """
    if format is not None:
        given = {"bits": bits, "group_size": group_size, "scale_dtype": scale_dtype}
        return _quantize_to_floats(w, format, given, symmetric, method, options)
    if method not in _METHODS:
        raise ValueError(f"method={method!r} must be one of {list(_METHODS)}")
    room = importlib.import_module(f"numba_marlin.quantizers.{method}")
    known = room.quantize.__kwdefaults__ or {}
    for name in options.keys() - known.keys():
        raise TypeError(
            f"method {method!r} takes no {name}"
            + (f"; it takes {', '.join(known)}" if known else "")
        )
    if _is_array(options.get("calibration")):
        options["calibration"] = _on_host("calibration", options["calibration"])
    return room.quantize(
        _on_host("w", w),
        bits=4 if bits is None else bits,
        group_size=128 if group_size is None else group_size,
        symmetric=symmetric,
        scale_dtype="float16" if scale_dtype is None else scale_dtype,
        **options,
    )


def _quantize_to_floats(
    w, format: str, given: dict, symmetric: bool, method: str, options: dict
) -> BlockWeight:
    from numba_marlin.quantizers import grid

    form = find_block_format(format)
    fixed = {"bits": form.bits, "group_size": form.block}
    for name, value in given.items():
        if value is not None and value != fixed.get(name):
            rule = f"{fixed[name]}" if name in fixed else "left out"
            raise ValueError(f"{name}={value!r} must be {rule} for format={format!r}")
    if method != "rtn" or not symmetric:
        raise ValueError(
            f"method={method!r}, symmetric={symmetric!r} must be 'rtn' and True for"
            f" format={format!r}"
        )
    for name in options.keys() - {"global_scale", "rounding"}:
        raise TypeError(f"format={format!r} takes no {name}; it takes global_scale, rounding")
    w = grid.check_weights(_on_host("w", w))
    if w.shape[0] % form.block:
        raise ValueError(
            f"w.shape={w.shape} must be (k, n) with k a multiple of {form.block}, the rows of a"
            f" block of {format}"
        )
    grid.refuse_nonfinite(w)  # here w is not transposed yet
    # blocks lie along k: the operand is W^T
    return to_weight(quantize_blocks(np.ascontiguousarray(w.T), format, **options))


def quantize_blocks(
    x, format: str = "nvfp4", *, global_scale: float | None = None, rounding: str = "floor"
) -> BlockScaled:
    """Quantise a matrix to 4- or 8-bit floats in blocks that share a scale, on the host: an operand
    of ``block_scaled_matmul``.

    x: [rows, columns] of a float type, finite, of any array library. columns must be a multiple of
        the format's block (16 for NVFP4, 32 for the others); blocks lie along the columns.
    format: "nvfp4", "mxfp4", "mxfp8-e4m3" or "mxfp8-e5m2".
    global_scale: the fp32 scale of an NVFP4 matrix; default: the one at which no block's scale
        saturates. None for the other formats.
    rounding: how the scales of an MX format are rounded, "floor" or "ceil".

    Returns a BlockScaled with scales in plain order. Raises TypeError or ValueError for wrong
    arguments and for numbers that are not finite. ``quantizers.operands`` specifies the arithmetic.
    """
    from numba_marlin.quantizers import operands as block_scaled

    return block_scaled.quantize_blocks(
        _on_host("x", x), format, global_scale=global_scale, rounding=rounding
    )


def _on_host(name: str, value: object) -> object:
    """Convert an array of any library to NumPy; return anything else unchanged."""
    return (
        value
        if isinstance(value, np.ndarray) or not _is_array(value)
        else arrays.to_host(arrays.view(name, value))
    )


def _is_array(value: object) -> bool:
    return any(
        hasattr(value, name) for name in ("__cuda_array_interface__", "__dlpack__", "__array__")
    )

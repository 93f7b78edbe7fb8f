"""``quantize`` and ``quantize_blocks``: numbers to codes and scales, on the host."""

from __future__ import annotations

import importlib

import numpy as np

from numba_marlin.execution import arrays
from numba_marlin.formats import QuantizedWeight
from numba_marlin.formats.operands import BlockScaled

# each a module of the quantizers' package, imported when something is quantised
_METHODS = ("rtn", "mse", "gptq")


def quantize(
    w,
    bits: int = 4,
    group_size: int = 128,
    symmetric: bool = True,
    method: str = "rtn",
    scale_dtype: str = "float16",
    **options,
) -> QuantizedWeight:
    """w [k, n], float, finite -> codes and scales on a grid. ``group_size`` rows of a column share
    a scale (-1: all of them).

    bits: 4 or 8. symmetric: zero in the middle of the grid; else every group has a zero point.
    scale_dtype: "float16" or "bfloat16". method: "rtn" rounds to nearest; "mse" does, on the grid
    of least square error; "gptq" rounds so that the layer's outputs change least, for which it
    needs ``calibration``: inputs [m, k] of the layer, an iterable of such batches, or a ``Hessian``
    that was fed with them. Its other options are damping=0.01, clip=True, act_order=False (the
    result then has a permutation) and static_groups=False. The modules of these names in
    ``numba_marlin.quantize`` have the rules and their edge cases.
    """
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
        bits=bits,
        group_size=group_size,
        symmetric=symmetric,
        scale_dtype=scale_dtype,
        **options,
    )


def quantize_blocks(
    x, format: str = "nvfp4", *, global_scale: float | None = None, rounding: str = "floor"
) -> BlockScaled:
    """x [rows, columns], float, finite -> small floats in blocks that share a scale, on the host:
    an operand of ``block_scaled_matmul``.

    format: "nvfp4", "mxfp4", "mxfp8-e4m3" or "mxfp8-e5m2". global_scale: of NVFP4, default: so that
    no block's scale is cut off. rounding: of the scales of the others, "floor" or "ceil".
    ``quantize.block_scaled`` has the rules and their edge cases.
    """
    from numba_marlin.quantizers import operands as block_scaled

    return block_scaled.quantize_blocks(
        _on_host("x", x), format, global_scale=global_scale, rounding=rounding
    )


def _on_host(name: str, value: object) -> object:
    """An array of any library as one of NumPy; what is no array as it is."""
    return (
        value
        if isinstance(value, np.ndarray) or not _is_array(value)
        else arrays.to_host(arrays.view(name, value))
    )


def _is_array(value: object) -> bool:
    return any(
        hasattr(value, name) for name in ("__cuda_array_interface__", "__dlpack__", "__array__")
    )

"""``pack`` and ``unpack``: a quantised weight to the bytes that a kernel reads, and back."""

from __future__ import annotations

from numba_marlin.formats import (
    BlockWeight,
    PackedBlocks,
    PackedWeight,
    QuantizedWeight,
    find_format,
)
from numba_marlin.formats.operands import BlockScaled

# Weights from which on the compiled loops pay for loading Numba and, once, compiling them
# (seconds).
_MANY_WEIGHTS = 1 << 24


def pack(
    q: QuantizedWeight | BlockWeight, layout: str | None = None, *, dtype: str | None = None
) -> PackedWeight | PackedBlocks:
    """A quantised weight -> the bytes that a kernel reads. ``unpack`` gives the same weight back
    exactly; of a BlockWeight, its canonical form, the same numbers.

    layout: "marlin" for a QuantizedWeight, "marlin-fp4" for a BlockWeight of NVFP4 or MXFP4; None:
    the one that fits. dtype: of the activations that a BlockWeight is to multiply, "float16" (None)
    or "bfloat16"; a QuantizedWeight multiplies both.
    """
    if isinstance(q, BlockScaled):
        raise TypeError(
            "q is a BlockScaled, an operand of block_scaled_matmul; as a weight W = B^T for matmul:"
            " numba_marlin.formats.block_scaled.to_weight(q)"
        )
    layout = (
        ("marlin-fp4" if isinstance(q, BlockWeight) else "marlin") if layout is None else layout
    )
    form, options = find_format(layout), {}
    if layout == "marlin-fp4":
        options = {"dtype": "float16" if dtype is None else dtype}
    elif dtype is not None:
        raise ValueError(
            f"dtype={dtype!r} must be None: layout {layout!r} is the same for all types of"
            " activations"
        )
    if (
        isinstance(q, (QuantizedWeight, BlockWeight))
        and q.codes.size >= _MANY_WEIGHTS
        and layout in ("marlin", "marlin-fp4")
    ):
        from numba_marlin import hostloops

        if layout == "marlin":
            return hostloops.pack_marlin(q)
        options["pack_codes"] = hostloops.pack_marlin_codes
    return form.pack(q, **options)


def unpack(p: PackedWeight | PackedBlocks) -> QuantizedWeight | BlockWeight:
    """The inverse of ``pack``."""
    check_packed(p)
    form = find_format(p.layout)
    if p.layout in ("marlin", "marlin-fp4") and p.k * p.n >= _MANY_WEIGHTS:
        from numba_marlin import hostloops

        return (
            hostloops.unpack_marlin(p)
            if p.layout == "marlin"
            else form.unpack(p, hostloops.unpack_marlin_codes)
        )
    return form.unpack(p)


def check_packed(p: object) -> None:
    if isinstance(p, (QuantizedWeight, BlockWeight)):
        raise TypeError(f"p is a {type(p).__name__}, must be packed: pass nm.pack(q)")
    if not isinstance(p, (PackedWeight, PackedBlocks)):
        raise TypeError(
            f"p is a {type(p).__name__}, must be a PackedWeight (nm.pack(nm.quantize(w)))"
        )

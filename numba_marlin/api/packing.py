"""``pack`` and ``unpack``: from a quantised weight to the byte order that a kernel reads, and
back."""

from __future__ import annotations

from numba_marlin.formats import (
    BlockWeight,
    PackedBlocks,
    PackedWeight,
    QuantizedWeight,
    find_format,
)
from numba_marlin.formats.operands import BlockScaled

# From this number of weights on, the compiled loops are worth loading Numba and compiling them once
# (seconds).
_MANY_WEIGHTS = 1 << 24


def pack(
    q: QuantizedWeight | BlockWeight, layout: str | None = None, *, dtype: str | None = None
) -> PackedWeight | PackedBlocks:
    """Put a quantised weight [k, n] in the byte order that kernels read.

    q: a QuantizedWeight with codes of 4 or 8 bits, or a BlockWeight (NVFP4, MXFP4). k must be a
        multiple of 16, n of 8.
    layout: "marlin" for a QuantizedWeight (-> PackedWeight), "marlin-fp4" for a BlockWeight
        (-> PackedBlocks); None chooses by the type of q.
    dtype: type of the activations that will multiply a BlockWeight, "float16" (also None) or
        "bfloat16". A PackedWeight multiplies both; dtype must be None for it.

    ``unpack`` returns exactly q; for a BlockWeight it returns the canonical form, which has the
    same numbers. Raises TypeError or ValueError, naming the rule, for a weight that the layout
    cannot hold. ``formats.marlin`` and ``formats.fp4_marlin`` specify the bytes.
    """
    if isinstance(q, BlockScaled):
        raise TypeError(
            "q is a BlockScaled, an operand of block_scaled_matmul; as a weight W = B^T for matmul:"
            " numba_marlin.formats.operands.to_weight(q)"
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
    """The inverse of ``pack``: PackedWeight -> QuantizedWeight, PackedBlocks -> BlockWeight in its
    canonical form. A weight on a device is copied to the host first. TypeError if p is not
    packed."""
    check_packed(p)
    p = p.to("cpu")
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

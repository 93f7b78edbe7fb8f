"""``pack`` and ``unpack``: from a quantised weight to the byte order that a kernel reads, and
back."""

from __future__ import annotations

import logging

from numba_marlin.compiler import MissingCompiler
from numba_marlin.execution import packing, residence
from numba_marlin.formats import (
    BlockWeight,
    Format,
    PackedBlocks,
    PackedWeight,
    QuantizedWeight,
    find_format,
)
from numba_marlin.formats.marlin import MARLIN, check_packable, check_problem
from numba_marlin.formats.operands import BlockScaled
from numba_marlin.formats.residence import HOST, place_named
from numba_marlin.formats.stored import StoredWeight

log = logging.getLogger("numba_marlin")
# From this number of weights on, the compiled loops are worth loading Numba and compiling them once
# (seconds).
_MANY_WEIGHTS = 1 << 24
# From this number on, the kernels of a GPU are worth loading (milliseconds, once seconds to compile
# them).
_MANY_ON_DEVICE = 1 << 20


def pack(
    q: QuantizedWeight | BlockWeight | StoredWeight,
    layout: str | None = None,
    *,
    dtype: str | None = None,
    place: object = None,
) -> PackedWeight | PackedBlocks:
    """Put a quantised weight [k, n] in the byte order that kernels read.

    q: a QuantizedWeight with codes of 4 or 8 bits, or a BlockWeight (NVFP4, MXFP4). k must be a
        multiple of 16, n of 8. Or a StoredWeight (``checkpoint.stored(name)``), a QuantizedWeight
        whose codes are still in the words of their file.
    layout: "marlin" for a QuantizedWeight (-> PackedWeight), "marlin-fp4" for a BlockWeight
        (-> PackedBlocks); None chooses by the type of q.
    dtype: type of the activations that will multiply a BlockWeight, "float16" (also None) or
        "bfloat16". A PackedWeight multiplies both; dtype must be None for it.
    place: where the arrays shall be, as in ``p.to``: "cpu" (also None), "cuda", "cuda:1", or a
        torch device. On a device the codes of a QuantizedWeight are packed there, by a kernel; the
        words of a StoredWeight are uploaded as they are, and no loop of the host reads them. The
        bytes are the same.

    ``unpack`` returns exactly q; for a BlockWeight it returns the canonical form, which has the
    same numbers. Raises TypeError or ValueError, naming the rule, for a weight that the layout
    cannot hold, CapabilityMissing without the device. ``formats.marlin`` and ``formats.fp4_marlin``
    specify the bytes.
    """
    if isinstance(q, BlockScaled):
        raise TypeError(
            "q is a BlockScaled, an operand of block_scaled_matmul; as a weight W = B^T for matmul:"
            " numba_marlin.formats.operands.to_weight(q)"
        )
    where = HOST if place is None else place_named(place)
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
    there = _packed_there(q, where) if where != HOST and form is MARLIN else None
    if there is not None:
        return there
    if isinstance(q, StoredWeight):
        from numba_marlin.checkpoints.checkpoint import codec_for

        q = q.read(codec_for(q.k * q.n))
    here = _packed_here(q, form, options)
    return here if where == HOST else here.to(where)


def _packed_here(q, form: Format, options: dict) -> PackedWeight | PackedBlocks:
    if (
        isinstance(q, (QuantizedWeight, BlockWeight))
        and q.codes.size >= _MANY_WEIGHTS
        and form.name in ("marlin", "marlin-fp4")
    ):
        from numba_marlin import hostloops

        if form is MARLIN:
            return hostloops.pack_marlin(q)
        options["pack_codes"] = hostloops.pack_marlin_codes
    return form.pack(q, **options)


def _packed_there(q: QuantizedWeight | StoredWeight, place: str) -> PackedWeight | None:
    """The weight, packed on a device; None where the host had better do it."""
    words = None
    if isinstance(q, StoredWeight):
        words = packing.file_words(q.packing, q.bits)
        if words is None:
            return None
        check_problem(q.k, q.n, q.group_size)
    else:
        check_packable(q)
    put, ordinal = residence.uploader(place), residence.ordinal_of(place)
    if q.k * q.n < _MANY_ON_DEVICE:
        return None
    try:
        qweight = (
            packing.pack_codes(q.codes, q.bits, ordinal)
            if words is None
            else packing.pack_words(q.words, words, q.k, q.n, ordinal, q.rows)
        )
    except MissingCompiler as missing:
        log.warning("a weight is packed on the host, not on %s: %s", place, missing)
        return None
    return MARLIN.wrap(qweight, q, put)


def unpack(p: PackedWeight | PackedBlocks) -> QuantizedWeight | BlockWeight:
    """The inverse of ``pack``: PackedWeight -> QuantizedWeight, PackedBlocks -> BlockWeight in its
    canonical form, always of NumPy arrays. The codes of a PackedWeight on a device are unpacked
    there, by a kernel. TypeError if p is not packed."""
    check_packed(p)
    if p.place != HOST and p.layout == "marlin" and p.k * p.n >= _MANY_ON_DEVICE:
        try:
            return MARLIN.unwrap(packing.unpack_codes(p.qweight, p.bits, p.n), p)
        except MissingCompiler as missing:
            log.warning("a weight is unpacked on the host, not on %s: %s", p.place, missing)
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

"""mma.sp.sync: products whose A is stored without half of its places, which metadata name.

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma-sp

d, a, b, c, e, f: e is the register of metadata, f the sparsity selector (``layout.sparsity``). A, B
and C lie as in the dense products: A as that of half the depth, B as those of half the depth one
below the other. What is multiplied, and what is taken for granted of the sums: ``tensor.sparsity``.
Refused: .kind (floats of 8, 6 and 4 bits of sm_120a, with block scales or without).
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import BadMetadata
from numba_marlin.emulator.instructions import allow, mma_kinds, operands, unsupported
from numba_marlin.emulator.tensor import sparsity
from numba_marlin.emulator.tensor.integer_sums import DTYPES
from numba_marlin.emulator.tensor.tensor_sums import SMALL
from numba_marlin.layout.sparsity import Metadata

PLAIN, ORDERED = "sp", "sp::ordered_metadata"
ROWS, COLUMNS = 16, 8
BITS = {**mma_kinds.BITS, "f16": 16, "bf16": 16}
FAMILIES = (*mma_kinds.FAMILIES, {"f16"}, {"bf16"})
DEPTHS = {
    **dict.fromkeys(("f16", "bf16"), (16, 32)),
    "tf32": (8, 16),
    **dict.fromkeys(SMALL, (64,)),
    **dict.fromkeys(DTYPES, (32, 64)),
    **dict.fromkeys(("s4", "u4"), (64, 128)),
}
RESULTS = {
    "f16": ("f32", "f16"),
    **dict.fromkeys(("bf16", "tf32", *SMALL), ("f32",)),
    **dict.fromkeys((*DTYPES, "s4", "u4"), ("s32",)),
}
C_PLACES = mma_kinds.Kind((ROWS, COLUMNS, 4), 32).c_places


def find(ins) -> bool:
    return PLAIN in ins.modifiers or ORDERED in ins.modifiers


def multiply(ins, m, as_warps):
    out, a_kind, b_kind, depth = form_of(ins)
    allow(
        ins,
        *(PLAIN, ORDERED, "sync", "aligned", f"m16n8k{depth}", "row", "col"),
        *(out, a_kind, b_kind),
        *(("satfinite",) if out == "s32" else ()),
    )
    ordered, saturated = ORDERED in ins.modifiers, "satfinite" in ins.modifiers
    given = operands(ins, 6)
    metadata, selector = Metadata(BITS[a_kind], depth), m.immediate(ins, 5)
    if selector not in range(metadata.selectors):
        raise unsupported(
            ins, f"sparsity selector {selector} must be one of {tuple(range(metadata.selectors))}"
        )
    # of 32-bit words
    words = depth * BITS[a_kind] // 32
    stored, full = (mma_kinds.Kind((ROWS, COLUMNS, k), 32) for k in (words // 2, words))
    sums, wide = ("b32", 2) if out == "f16" else (out, 1)
    d = mma_kinds.bound(ins, 0, 4 // wide, sums, m.destination)
    a = mma_kinds.bound(ins, 1, stored.a_places.shape[1], "b32", m.source)
    b = mma_kinds.bound(ins, 2, full.b_places.shape[1], "b32", m.source)
    c = mma_kinds.bound(ins, 3, 4 // wide, sums, m.source)
    e = m.source(ins, given[4], "b32")

    def bits(held):
        return np.ascontiguousarray(held).view(np.uint32)

    def elements(held, kind):
        return mma_kinds.decode(np.ascontiguousarray(held).view(np.uint32), kind)

    def step(lanes):
        lanes.require_whole_warps(ins, "mma.sp")
        lanes = as_warps(lanes)
        codes = sparsity.codes_of(
            metadata, selector, np.broadcast_to(bits(e[lanes.sel]), lanes.shape)
        )
        refuse_undefined(ins, lanes, metadata, codes, selector, ordered)
        left = mma_kinds.gathered(a, lanes, stored.a_places, (ROWS, words // 2), bits)
        right = mma_kinds.gathered(b, lanes, full.b_places, (COLUMNS, words), bits)
        before = mma_kinds.gathered(
            c,
            lanes,
            C_PLACES,
            (ROWS, COLUMNS),
            lambda held: np.ascontiguousarray(held).view(mma_kinds.WORDS[out]),
        )
        dense = elements(sparsity.expand(left.view(np.uint8), codes), a_kind)
        columns = elements(right, b_kind)
        if sparsity.any_special(b_kind, columns):
            columns = elements(sparsity.met(right.view(np.uint8), codes), b_kind)
            # every row is a product of its own
            dense = dense.reshape(-1, 1, depth)
            columns = columns.reshape(-1, COLUMNS, depth)
            before = before.reshape(-1, 1, COLUMNS)
        kinds = a_kind, b_kind
        result = mma_kinds.product(kinds, dense, columns, before, m.adder, saturated, sparse=True)
        mma_kinds.scattered(result.reshape(-1, ROWS, COLUMNS), lanes, C_PLACES, d)

    return step


def form_of(ins) -> tuple[str, str, str, int]:
    """(type of C and D, of A, of B, k) of a product that the ISA has."""
    if any(mod.startswith("kind::") or mod == "block_scale" for mod in ins.modifiers):
        raise unsupported(ins, "sparse products with .kind, of sm_120a, are not implemented")
    types = [mod for mod in ins.modifiers if mod in BITS or mod in mma_kinds.WORDS]
    depth = next(
        (int(mod[6:]) for mod in ins.modifiers if mod.startswith("m16n8k") and mod[6:].isdigit()), 0
    )
    if (
        len(types) != 4
        or depth not in DEPTHS.get(types[1], ())
        or not any({types[1], types[2]} <= family for family in FAMILIES)
        or types[0] != types[3]
        or types[0] not in RESULTS[types[1]]
        or "row" not in ins.modifiers
        or "col" not in ins.modifiers
    ):
        raise unsupported(
            ins,
            "only m16n8kK.row.col of these types of A is implemented: "
            + ", ".join(f"{kind} (K = {' or '.join(map(str, k))})" for kind, k in DEPTHS.items())
            + "; C as D",
        )
    return types[0], types[1], types[2], depth


def refuse_undefined(ins, lanes, metadata: Metadata, codes, selector: int, ordered: bool) -> None:
    wrong = sparsity.undefined(metadata, codes, ordered)
    if wrong.any():
        first = int(wrong.any(axis=(1, 2)).argmax())
        bad = np.zeros(lanes.shape, bool)
        bad[first, metadata.places(selector)[0][wrong[first]]] = True
        raise lanes.fault(BadMetadata, sparsity.describe(codes[first], wrong[first]), ins, bad)

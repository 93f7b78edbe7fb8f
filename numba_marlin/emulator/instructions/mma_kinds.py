"""mma.sync of the kinds that ``tensor`` leaves out: tf32, 8-bit floats, integers of 8, 4 and 1
bits, fp64. No kernel of this package needs them; other compilers' kernels do.

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-1684
and the sections after it.

tf32 is added as in ``tensor_sums``, integers as in ``integer_sums``, fp64 by NumPy. 8-bit floats go
two ways:

- sm_89 has an instruction for them: 16 products at a time, cut off as in wgmma ("MMA-Sim", see
  ``tensor_sums``; not measured).
- sm_90 has none. ptxas (13.5, seen in its machine code) makes halves of the factors, multiplies
  those at k % 4 in 0, 1 by one mma of halves with accumulators of 0, those at 2, 3 by a second one
  that adds to the first, and adds the accumulators to that with an ordinary addition (an H200
  agrees). Of a sparse product these are pairs of stored codes: k % 8 in 0 to 3, and in 4 to 7. It
  is so for sm_100; sm_120, which has an instruction, is treated like them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from numba_marlin.emulator.instructions import allow, operands, unsupported
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.state.small_floats import HALVES
from numba_marlin.emulator.tensor.integer_sums import DTYPES, add_bits, add_integers
from numba_marlin.emulator.tensor.tensor_sums import SMALL, Adder, add_products
from numba_marlin.emulator.text.program import Vector

GROUP, MEMBER = np.arange(WARP)[:, None] // 4, np.arange(WARP)[:, None] % 4


@dataclass(frozen=True, eq=False)
class Kind:
    """``shape`` (m, n, k); ``bits`` of an element of A and B."""

    shape: tuple[int, int, int]
    bits: int

    @property
    def packed(self) -> int:
        """Elements to a register."""
        return max(1, 32 // self.bits)

    @property
    def word(self) -> str:
        """The type of a register of them."""
        return "f64" if self.bits == 64 else "b32"

    @property
    def a_places(self) -> np.ndarray:
        """Where in A, row-major, each element of a lane is: [lane, element]. Registers go down 8
        rows first, then 4 registers' columns on."""
        m, _, k = self.shape
        i = np.arange(m * k // WARP)
        register, within = i // self.packed, i % self.packed
        row = GROUP + 8 * (register % (m // 8))
        return row * k + MEMBER * self.packed + within + 4 * self.packed * (register // (m // 8))

    @property
    def b_places(self) -> np.ndarray:
        """The same of B's columns, [n, k]."""
        _, n, k = self.shape
        i = np.arange(n * k // WARP)
        return (
            GROUP * k
            + MEMBER * self.packed
            + i % self.packed
            + 4 * self.packed * (i // self.packed)
        )

    @property
    def c_places(self) -> np.ndarray:
        m, n, _ = self.shape
        i = np.arange(m * n // WARP)
        return (GROUP + 8 * (i // 2)) * n + MEMBER * 2 + i % 2


SHAPES = {
    "f64": ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
    "tf32": ((16, 8, 4), (16, 8, 8)),
    **dict.fromkeys(SMALL, ((16, 8, 16), (16, 8, 32))),
    **dict.fromkeys(DTYPES, ((8, 8, 16), (16, 8, 16), (16, 8, 32))),
    **dict.fromkeys(("s4", "u4"), ((8, 8, 32), (16, 8, 32), (16, 8, 64))),
    "b1": ((8, 8, 128), (16, 8, 128), (16, 8, 256)),
}
BITS = {"f64": 64, "tf32": 32, **dict.fromkeys((*SMALL, *DTYPES), 8), "s4": 4, "u4": 4, "b1": 1}
FAMILIES = ({"f64"}, {"tf32"}, set(SMALL), set(DTYPES), {"s4", "u4"}, {"b1"})
"""Types that may meet as A and B."""
KINDS = {
    (f"m{m}n{n}k{k}", name): Kind((m, n, k), BITS[name])
    for name, shapes in SHAPES.items()
    for m, n, k in shapes
}
# of d and c
RESULTS = {
    "f64": ("f64",),
    "tf32": ("f32",),
    **dict.fromkeys(SMALL, ("f32", "f16")),
    **dict.fromkeys((*DTYPES, "s4", "u4", "b1"), ("s32",)),
}
WORDS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "s32": np.int32}


def find(ins) -> tuple | None:
    """(Kind, type of A, type of B, type of C and D) if ``ins`` is one of these."""
    types = [mod for mod in ins.modifiers if mod in BITS or mod in WORDS]
    shape = next((mod for mod in ins.modifiers if mod[0] == "m" and "k" in mod), None)
    if (
        len(types) != 4
        or (shape, types[1]) not in KINDS
        or not any({types[1], types[2]} <= family for family in FAMILIES)
        or types[0] != types[3]
        or types[0] not in RESULTS[types[1]]
    ):
        return None
    return KINDS[shape, types[1]], types[1], types[2], types[0]


def decode(words: np.ndarray, kind: str) -> np.ndarray:
    """Registers [warps, lane, register] -> elements [warps, lane, element]: numbers of fp64 and
    integers, bit patterns of the others."""
    if kind in ("f64", "tf32"):
        return words
    if kind in ("f16", "bf16"):
        return np.ascontiguousarray(words).view(np.uint16)
    held = np.ascontiguousarray(words).view(np.uint8)
    if BITS[kind] == 8:
        return held.view(DTYPES.get(kind, np.uint8))
    if kind == "b1":
        return np.unpackbits(held, axis=-1, bitorder="little")
    nibbles = np.stack([held & 15, held >> 4], axis=-1).reshape(*held.shape[:-1], -1)
    return nibbles if kind == "u4" else ((nibbles ^ 8).astype(np.int8) - np.int8(8))


def add_small_floats(kinds, left, right, c, adder: Adder, pair: int) -> np.ndarray:
    """c + left @ right.T of codes [many, rows, k] and [many, columns, k], as the module says.
    pair: places of k that two neighbouring codes of left stand for."""
    rows = left.shape[1]
    if adder.small_floats is not None:
        codes = [
            each.astype(np.uint16) + np.uint16(SMALL[kind])
            for each, kind in zip((left, right), kinds)
        ]
        return add_products("f8", np.concatenate(codes, axis=1), rows, c, adder.small_floats)
    halves = [HALVES[kind][each] for each, kind in zip((left, right), kinds)]
    factors = np.concatenate(halves, axis=1).reshape(
        len(left), -1, left.shape[2] // (2 * pair), 2, pair
    )
    sums = np.zeros_like(c)
    for i in range(2):
        part = np.ascontiguousarray(factors[:, :, :, i]).reshape(*factors.shape[:2], -1)
        sums = add_products("f16", part, rows, sums, adder)
    total = c.astype(np.float64) + sums
    if c.dtype == np.float16:
        return numerics.half_bits(total).view(np.float16)
    return numerics.narrow32(total)


def bound(ins, position: int, count: int, word: str, bind) -> list:
    """What ``bind`` makes of the ``count`` registers that must be at this operand."""
    operand = ins.operands[position]
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise unsupported(ins, f"{len(items)} registers do not fit the shape")
    return [bind(ins, item, word) for item in items]


def gathered(sources, lanes, places, shape, values) -> np.ndarray:
    """A matrix [warps, *shape] of whole warps' registers, which ``values`` turns into elements;
    ``places`` [lane, element]."""
    count = lanes.shape[0]
    held = np.stack(
        [np.broadcast_to(source[lanes.sel], (count, WARP)) for source in sources], axis=-1
    )
    elements = values(held)
    result = np.empty((count, places.size), elements.dtype)
    result[:, places.reshape(-1)] = elements.reshape(count, -1)
    return result.reshape(count, *shape)


def scattered(result, lanes, places, targets) -> None:
    """Write a matrix [warps, m, n] into registers: the inverse of ``gathered``."""
    count = lanes.shape[0]
    held = np.ascontiguousarray(result.reshape(count, -1)[:, places.reshape(-1)])
    held = held.reshape(count, WARP, -1)
    if held.dtype == np.float16:
        held = held.view(np.uint32)
    for i, target in enumerate(targets):
        target[lanes.sel] = held[..., i]


def product(
    kinds, left, right, c, adder: Adder, saturated: bool, sparse: bool = False
) -> np.ndarray:
    """c + left @ right.T of decoded elements [many, rows, k] and [many, columns, k], of all types
    but fp64 and single bits. sparse: half of left are the zeros of a sparse one."""
    if sparse:
        adder = adder.of_sparse
    if kinds[0] in ("f16", "bf16", "tf32"):
        factors = np.concatenate([left, right], axis=1)
        return add_products(kinds[0], factors, left.shape[1], c, adder)
    if kinds[0] in SMALL:
        return add_small_floats(kinds, left, right, c, adder, 4 if sparse else 2)
    return add_integers(left, right, c, saturated)


def multiply(ins, m, as_warps):
    """#warp-level-matrix-instructions-mma, the kinds above."""
    kind, a_kind, b_kind, out = find(ins)
    rows, cols, depth = kind.shape
    allow(
        ins,
        "sync",
        "aligned",
        f"m{rows}n{cols}k{depth}",
        "row",
        "col",
        *(a_kind, b_kind, out),
        *(("satfinite",) if out == "s32" and a_kind != "b1" else ()),
        *(("and", "xor", "popc") if a_kind == "b1" else ()),
    )
    if "row" not in ins.modifiers or "col" not in ins.modifiers:
        raise unsupported(ins, "must be .row.col")
    operation = ins.modifiers[-2:]
    if a_kind == "b1" and operation not in (("and", "popc"), ("xor", "popc")):
        raise unsupported(ins, "must end in .and.popc or .xor.popc")
    saturated, wide = "satfinite" in ins.modifiers, 2 if out == "f16" else 1
    operands(ins, 4)
    sums = "b32" if out == "f16" else out
    d = bound(ins, 0, kind.c_places.shape[1] // wide, sums, m.destination)
    a = bound(ins, 1, kind.a_places.shape[1] // kind.packed, kind.word, m.source)
    b = bound(ins, 2, kind.b_places.shape[1] // kind.packed, kind.word, m.source)
    c = bound(ins, 3, kind.c_places.shape[1] // wide, sums, m.source)

    def result(left, right, before):
        if a_kind == "f64":
            return before + left @ right.swapaxes(1, 2)
        if a_kind == "b1":
            return add_bits(left, right, before, operation[0])
        return product((a_kind, b_kind), left, right, before, m.adder, saturated)

    def step(lanes):
        lanes.require_whole_warps(ins, "mma")
        lanes = as_warps(lanes)
        left = gathered(a, lanes, kind.a_places, (rows, depth), partial(decode, kind=a_kind))
        right = gathered(b, lanes, kind.b_places, (cols, depth), partial(decode, kind=b_kind))
        before = gathered(
            c,
            lanes,
            kind.c_places,
            (rows, cols),
            lambda words: np.ascontiguousarray(words).view(WORDS[out]),
        )
        scattered(result(left, right, before), lanes, kind.c_places, d)

    return step

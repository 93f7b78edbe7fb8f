"""mma.sync of the kinds that ``tensor`` leaves out: tf32, 8-bit integers, fp64. No kernel of this
package needs them; other compilers' kernels do.

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-1684
and the sections after it.

tf32 is fp32 whose low 13 bits are ignored; products are added in float64 and rounded once. Integers
wrap, or saturate with .satfinite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.emulator.instructions import allow, operands, unsupported
from numba_marlin.emulator.state import numerics
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.text.program import Vector

GROUP, MEMBER = np.arange(WARP)[:, None] // 4, np.arange(WARP)[:, None] % 4


@dataclass(frozen=True, eq=False)
class Kind:
    """``shape`` (m, n, k); ``packed`` elements of A and B to a register; ``word`` the type of a
    register of them."""

    shape: tuple[int, int, int]
    packed: int
    word: str

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
        """The same of B, row-major [k, n]."""
        _, n, k = self.shape
        i = np.arange(n * k // WARP)
        row = MEMBER * self.packed + i % self.packed + 4 * self.packed * (i // self.packed)
        return row * n + GROUP

    @property
    def c_places(self) -> np.ndarray:
        m, n, _ = self.shape
        i = np.arange(m * n // WARP)
        return (GROUP + 8 * (i // 2)) * n + MEMBER * 2 + i % 2


KINDS = {
    **{("m16n8k8", kind): Kind((16, 8, 8), 1, "b32") for kind in ("tf32",)},
    **{("m16n8k4", kind): Kind((16, 8, 4), 1, "b32") for kind in ("tf32",)},
    **{("m16n8k32", kind): Kind((16, 8, 32), 4, "b32") for kind in ("s8", "u8")},
    **{("m16n8k16", kind): Kind((16, 8, 16), 4, "b32") for kind in ("s8", "u8")},
    ("m8n8k4", "f64"): Kind((8, 8, 4), 1, "f64"),
}
# of d and c
TYPES = {"tf32": ("f32", "f32"), "s8": ("s32", "s32"), "u8": ("s32", "s32"), "f64": ("f64", "f64")}


def find(ins) -> tuple | None:
    """(Kind, type of A, type of B) if ``ins`` is one of these."""
    types = [mod for mod in ins.modifiers if mod in (*TYPES, "f32", "s32")]
    shape = next((mod for mod in ins.modifiers if mod[0] == "m" and "k" in mod), None)
    if (
        len(types) != 4
        or (shape, types[1]) not in KINDS
        or (shape, types[2]) not in KINDS
        or (types[0], types[3]) != TYPES[types[1]]
    ):
        return None
    return KINDS[shape, types[1]], types[1], types[2]


def decode(words: np.ndarray, kind: str, packed: int) -> np.ndarray:
    """Registers [warps, lane, register] -> elements [warps, lane, element], as float64 or int64."""
    if kind == "f64":
        return words
    if kind == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    return np.ascontiguousarray(words).view(np.int8 if kind == "s8" else np.uint8).astype(np.int64)


def multiply(ins, m, as_warps):
    """#warp-level-matrix-instructions-mma, the kinds above."""
    kind, a_kind, b_kind = find(ins)
    rows, cols, depth = kind.shape
    allow(
        ins,
        "sync",
        "aligned",
        f"m{rows}n{cols}k{depth}",
        "row",
        "col",
        a_kind,
        b_kind,
        *(("satfinite",) if a_kind in ("s8", "u8") else ()),
    )
    if "row" not in ins.modifiers or "col" not in ins.modifiers:
        raise unsupported(ins, "must be .row.col")
    out = TYPES[a_kind][0]

    given = operands(ins, 4)

    def registers(position, places, packed, word, bind):
        operand = given[position]
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) * packed != places.shape[1]:
            raise unsupported(ins, f"{len(items)} registers do not fit the shape")
        return [bind(ins, item, word) for item in items]

    d = registers(0, kind.c_places, 1, out, m.destination)
    a = registers(1, kind.a_places, kind.packed, kind.word, m.source)
    b = registers(2, kind.b_places, kind.packed, kind.word, m.source)
    c = registers(3, kind.c_places, 1, out, m.source)

    def matrix(sources, sel, count, places, shape, values):
        held = np.stack(
            [np.broadcast_to(source[sel], (count, WARP)) for source in sources], axis=-1
        )
        elements = values(held)
        result = np.empty((count, places.size), elements.dtype)
        result[:, places.reshape(-1)] = elements.reshape(count, -1)
        return result.reshape(count, *shape)

    def step(lanes):
        lanes.require_whole_warps(ins, "mma")
        lanes = as_warps(lanes)
        s, count = lanes.sel, lanes.shape[0]
        left = matrix(
            a,
            s,
            count,
            kind.a_places,
            (rows, depth),
            lambda words: decode(words, a_kind, kind.packed),
        )
        right = matrix(
            b,
            s,
            count,
            kind.b_places,
            (depth, cols),
            lambda words: decode(words, b_kind, kind.packed),
        )
        total = (
            matrix(
                c, s, count, kind.c_places, (rows, cols), lambda values: values.astype(left.dtype)
            )
            + left @ right
        )
        if out == "f32":
            result = numerics.canonical32(total.astype(np.float32))
        elif out == "s32":
            limits = np.iinfo(np.int32)
            result = (
                (np.clip(total, limits.min, limits.max) if "satfinite" in ins.modifiers else total)
                .astype(np.int64)
                .astype(np.int32)
            )
        else:
            result = total
        held = result.reshape(count, -1)[:, kind.c_places.reshape(-1)].reshape(count, WARP, -1)
        for i, target in enumerate(d):
            target[s] = held[..., i]

    return step

"""mma.sync with .block_scale: m16n8k64 of e2m1, every 16 or 32 of which share a scale (sm_120a).

https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-block-scaling
https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-fragment-mma-16864

Elements are where those of 4-bit integers are. Scales come in a register of A and one of B: in each
quad, lanes 2 t and 2 t + 1 (t: thread-id-a) have those of rows g and g + 8, lane t (thread-id-b)
those of column g; the bytes from byte-id on, k ascending. (Only a figure of the ISA says which of
the two lanes has which row.) The sum is made as in ``block_scales``, which is an assumption.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import BadDescriptor
from numba_marlin.emulator.instructions import allow, operands, unsupported
from numba_marlin.emulator.instructions.mma_kinds import Kind
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.emulator.tensor import block_scales
from numba_marlin.emulator.text.program import Immediate, Vector

SHAPE = Kind((16, 8, 64), 4)
# types by (kind, scale vector size)
SCALES = {
    ("mxf4nvf4", "4X"): ("ue4m3", "ue8m0"),
    ("mxf4nvf4", "2X"): ("ue8m0",),
    ("mxf4", "2X"): ("ue8m0",),
}
G = np.arange(8)


def find(ins) -> bool:
    return "block_scale" in ins.modifiers


def multiply(ins, m, as_warps):
    kind, size = (
        next((mod[len(prefix) :] for mod in ins.modifiers if mod.startswith(prefix)), "")
        for prefix in ("kind::", "scale_vec::")
    )
    scale = ins.modifiers[-1]
    if scale not in SCALES.get((kind, size), ()) or "m16n8k64" not in ins.modifiers:
        raise unsupported(
            ins,
            "only m16n8k64 of kind::mxf4nvf4 (scale_vec::4X, ::2X) and kind::mxf4 (scale_vec::2X),"
            " with a type of scales that they have, is implemented",
        )
    allow(
        ins,
        "sync",
        "aligned",
        "m16n8k64",
        "row",
        "col",
        f"kind::{kind}",
        "block_scale",
        f"scale_vec::{size}",
        "e2m1",
        scale,
    )
    given, vectors = operands(ins, 8), int(size[0])
    counts = tuple(len(operand.items) if isinstance(operand, Vector) else 1 for operand in given)
    if counts != (4, 4, 2, 4, 1, 2, 1, 2):
        raise unsupported(ins, f"{counts} registers do not fit the shape")
    d = [m.destination(ins, item, "f32") for item in given[0].items]
    a, b, c = (
        [m.source(ins, item, word) for item in operand.items]
        for operand, word in zip(given[1:4], ("b32", "b32", "f32"))
    )
    sfa, sfb = (m.source(ins, given[position], "b32") for position in (4, 6))
    (byte_a, thread_a), (byte_b, thread_b) = (
        selectors(ins, given[position], vectors, threads) for position, threads in ((5, 2), (7, 4))
    )
    # the lane that has the scales of each row of A
    rows = np.concatenate([4 * G + 2 * thread_a + half for half in (0, 1)])
    columns = 4 * G + thread_b

    def held(sources, lanes):
        return np.stack(
            [np.broadcast_to(source[lanes.sel], lanes.shape) for source in sources], axis=-1
        )

    def codes(sources, lanes, places, shape):
        nibbles = block_scales.codes_of(
            np.ascontiguousarray(held(sources, lanes)).view(np.uint8), 4
        )
        found = np.empty((lanes.shape[0], places.size), np.uint8)
        found[:, places.reshape(-1)] = nibbles.reshape(lanes.shape[0], -1)
        return found.reshape(-1, *shape)

    def scales(source, lanes, owners, first, what):
        words = np.ascontiguousarray(np.broadcast_to(source[lanes.sel], lanes.shape)[:, owners])
        found = words.view(np.uint8).reshape(*words.shape, 4)[..., first : first + vectors]
        if scale == "ue4m3" and (found & 0x80).any():
            bad = np.zeros(lanes.shape, bool)
            bad[:, owners] = (found & 0x80).any(axis=-1)
            raise lanes.fault(
                BadDescriptor,
                f"a scale of {what} has its highest bit set: ue4m3 has no sign",
                ins,
                bad,
            )
        return found

    def step(lanes):
        lanes.require_whole_warps(ins, "mma")
        lanes = as_warps(lanes)
        count = lanes.shape[0]
        total = np.empty((count, SHAPE.c_places.size), np.float32)
        total[:, SHAPE.c_places.reshape(-1)] = held(c, lanes).reshape(count, -1)
        left, right = (
            codes(a, lanes, SHAPE.a_places, (16, 64)),
            codes(b, lanes, SHAPE.b_places, (8, 64)),
        )
        result = block_scales.multiply(
            left,
            right,
            scales(sfa, lanes, rows, byte_a, "A"),
            scales(sfb, lanes, columns, byte_b, "B"),
            total.reshape(count, 16, 8),
            ("e2m1", "e2m1"),
            scale[1:],
        )
        back = result.reshape(count, -1)[:, SHAPE.c_places.reshape(-1)].reshape(count, WARP, -1)
        for i, target in enumerate(d):
            target[lanes.sel] = back[..., i]

    return step


def selectors(ins, operand, vectors: int, threads: int) -> tuple[int, int]:
    """(byte-id, thread-id), which must be literals that the scale vector size allows."""
    if not isinstance(operand, Vector) or not all(
        isinstance(item, Immediate) for item in operand.items
    ):
        raise unsupported(ins, "{byte-id, thread-id} must be two literals")
    byte, thread = (int(item.value) for item in operand.items)
    if byte not in range(0, 4, vectors) or thread not in range(threads):
        raise unsupported(
            ins,
            f"{{byte-id, thread-id}} = {{{byte}, {thread}}} must be one of"
            f" {tuple(range(0, 4, vectors))} and one below {threads}",
        )
    return byte, thread

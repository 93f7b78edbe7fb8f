"""st.async and red.async: a thread's store or reduction in the shared memory of a block of its
cluster, which an mbarrier there counts in bytes.

https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-st-async
https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red-async

A store lands when somebody waits for its barrier, as bulk copies do. A reduction is made at once:
several may be on their way to the same bytes, and in what order they come makes no difference. The
forms for global memory (.mmio, sm_100) are refused.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.asynchronous.mbarriers import BYTES
from numba_marlin.emulator.errors import BarrierMisuse
from numba_marlin.emulator.instructions import allow, instruction, operands, type_of, unsupported
from numba_marlin.emulator.instructions.atomics import OPERATIONS, take_turns
from numba_marlin.emulator.instructions.bulk_copy import one_by_one, positions
from numba_marlin.emulator.instructions.load_store import vector
from numba_marlin.emulator.text.program import TYPE_BITS

COUNTED = ("shared::cluster", "mbarrier::complete_tx::bytes")
NOWHERE = np.zeros(1, np.int64), 0  # what a copy touches of global memory
REDUCTIONS = {
    "inc": ("u32",),
    "dec": ("u32",),
    "min": ("u32", "s32"),
    "max": ("u32", "s32"),
    "and": ("b32",),
    "or": ("b32",),
    "xor": ("b32",),
    "add": ("u32", "s32", "u64", "s64"),
}


def require_same_block(ins, m, lanes, starts: np.ndarray, words: np.ndarray) -> None:
    """BarrierMisuse unless each lane's mbarrier is in the block that its bytes go to. ``starts``
    in bytes, ``words`` in mbarriers, of the shared array."""
    stride = m.memory.shared.stride
    bad = starts // stride != words * BYTES // stride
    if bad.any():
        raise lanes.fault(
            BarrierMisuse,
            "the mbarrier must be in the shared memory of the block that the bytes go to",
            ins,
            bad,
        )


@instruction("st.async")
def store(ins, m):
    """st.async.shared::cluster.mbarrier::complete_tx::bytes{.v2|.v4}.type [a], b, [mbar]"""
    allow(ins, "weak", *COUNTED, "v2", "v4")
    if not set(COUNTED) <= set(ins.modifiers):
        raise unsupported(ins, f"needs .{'.'.join(COUNTED)}")
    bits = TYPE_BITS[type_of(ins)]
    if bits < 32:
        raise unsupported(ins, "stores elements of 32 or 64 bits")
    address, value, barrier = operands(ins, 3)
    items = vector(value)
    if len(items) != next((int(mod[1]) for mod in ins.modifiers if mod in ("v2", "v4")), 1):
        raise unsupported(ins, "the number of registers does not fit")
    nbytes = bits // 8 * len(items)
    sources = [m.source(ins, item, f"u{bits}") for item in items]
    place, barriers = (
        positions(ins, m, address, nbytes),
        positions(ins, m, barrier, BYTES, "mbarrier"),
    )

    def step(lanes):
        starts, words = place(lanes) * nbytes, barriers(lanes)
        require_same_block(ins, m, lanes, starts, words)
        m.mbarriers.require_live(ins, lanes, words)
        values = np.stack(
            [np.broadcast_to(source[lanes.sel], lanes.shape) for source in sources], axis=-1
        )
        for index, lane in one_by_one(lanes):
            data = values[index].view(np.uint8)
            m.bulk.load(
                ins,
                lane,
                int(starts[index]),
                nbytes,
                int(words[index]),
                lambda data=data: data,
                NOWHERE,
            )

    return step


@instruction("red.async")
def reduce(ins, m):
    """red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.op.type [a], b,
    [mbar]"""
    allow(ins, "relaxed", "cluster", *COUNTED, *REDUCTIONS)
    name = next((mod for mod in ins.modifiers if mod in REDUCTIONS), "")
    kind = type_of(ins)
    if (
        ins.modifiers != ("relaxed", "cluster", *COUNTED, name, kind)
        or kind not in REDUCTIONS[name]
    ):
        raise unsupported(
            ins, f"is .relaxed.cluster.{'.'.join(COUNTED)}, an operation and its type"
        )
    address, value, barrier = operands(ins, 3)
    nbytes = TYPE_BITS[kind] // 8
    source, at = m.source(ins, value, kind), m.address(ins, address)
    place, barriers = (
        positions(ins, m, address, nbytes),
        positions(ins, m, barrier, BYTES, "mbarrier"),
    )

    def step(lanes):
        words = barriers(lanes)
        require_same_block(ins, m, lanes, place(lanes) * nbytes, words)
        m.mbarriers.require_live(ins, lanes, words)
        take_turns(
            m.memory,
            ins,
            lanes,
            "shared::cluster",
            at(lanes),
            kind,
            OPERATIONS[name],
            [source],
        )
        for index, lane in one_by_one(lanes):
            m.mbarriers.complete_tx(int(words[index]), nbytes, ins, lane)

    return step

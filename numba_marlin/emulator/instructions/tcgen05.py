"""tcgen05: what the instructions say; ``tensor.tensor_cores`` says when it happens,
``tensor.tensor_hazards`` who may touch tensor memory meanwhile.

https://docs.nvidia.com/cuda/parallel-thread-execution/#tensorcore-5th-generation-instructions

Products with block scales, A and B in shared memory; copies of scales; loads and stores of 32
lanes. One block at a time: .cta_group::1.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.errors import DivergentCollective, TensorMemoryMisuse
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.instructions.bulk_copy import one_by_one
from numba_marlin.emulator.instructions.mbarrier import barrier_at, value_of
from numba_marlin.emulator.instructions.wgmma import whole
from numba_marlin.emulator.tensor.tensor_hazards import NEVER, Use
from numba_marlin.emulator.text.program import Vector
from numba_marlin.layout import tcgen05

GROUP = "cta_group::1"
COUNTS = {f"x{1 << power}": 1 << power for power in range(8)}


def of_one_block(ins, *more: str) -> None:
    allow(ins, GROUP, *more)
    if GROUP not in ins.modifiers:
        raise unsupported(ins, f"only .{GROUP} is implemented")


def numbers(ins, m, *given):
    """Function: lanes -> an int64 array [*lanes.shape] for each operand, an address or a 64-bit
    register."""
    sources = [
        (
            m.address(ins, each)
            if hasattr(each, "base")
            else m.source(ins, each, "u64" if getattr(each, "width", 32) == 64 else "u32")
        )
        for each in given
    ]
    return lambda lanes: [
        source(lanes) if callable(source) else np.broadcast_to(source[lanes.sel], lanes.shape)
        for source in sources
    ]


def uniform(lanes, ins, values, what: str) -> np.ndarray:
    """The value of each warp; it must be the same for all its lanes."""
    if (values != values[:, :1]).any():
        raise lanes.fault(
            DivergentCollective,
            f"{what} differs between lanes of a warp",
            ins,
            values != values[:, :1],
        )
    return values[:, 0]


def warps_of(lanes):
    """(row, warp, its lanes) of whole warps."""
    for row, warp in enumerate(lanes.warps.tolist()):
        yield row, warp, type(lanes)(lanes.placement, np.array([warp]), None)


def collective(ins, *more: str) -> None:
    allow(ins, "sync", "aligned", *more)
    if not {"sync", "aligned"} <= set(ins.modifiers):
        raise unsupported(ins, "must be .sync.aligned")


@instruction("tcgen05.alloc")
def alloc(ins, m):
    """#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit"""
    of_one_block(ins, "sync", "aligned", "shared::cta")
    target, count = operands(ins, 2)
    at, counts = m.address(ins, target), value_of(ins, m, count)
    space = "shared" if "shared::cta" in ins.modifiers else "generic"

    def step(lanes):
        lanes.require_whole_warps(ins, "tcgen05.alloc")
        lanes = whole(lanes)
        address, columns = (
            uniform(lanes, ins, at(lanes), "the address"),
            uniform(lanes, ins, counts(lanes), "nCols"),
        )
        for row, warp, mine in warps_of(lanes):
            start = m.tensor_cores.tensor.allocate(ins, mine, warp, int(columns[row]))
            first = np.zeros(mine.shape, bool)
            first[0, 0] = True
            m.memory.store(
                ins,
                mine.narrow(first),
                space,
                address[row : row + 1].copy(),
                np.array([[tcgen05.address_of(0, start)]], np.uint32),
            )

    return step


@instruction("tcgen05.dealloc")
def dealloc(ins, m):
    """#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit"""
    of_one_block(ins, "sync", "aligned")
    read = numbers(ins, m, *operands(ins, 2))

    def step(lanes):
        lanes.require_whole_warps(ins, "tcgen05.dealloc")
        lanes = whole(lanes)
        address, columns = (
            uniform(lanes, ins, values, what)
            for values, what in zip(read(lanes), ("the address", "nCols"))
        )
        for row, warp, mine in warps_of(lanes):
            (lane, start), count, slot = (
                tcgen05.fields_of(int(address[row])),
                int(columns[row]),
                warp // m.placement.warps_per_block,
            )
            m.tensor_cores.hazards.check(
                Use(ins, "dealloc", warp, NEVER, writes=((start, start + count),)),
                mine,
                m.tensor_cores.of_block(warp),
            )
            m.tensor_cores.tensor.free(ins, mine, warp, lane, start, count)
            m.tensor_cores.hazards.freed(slot, start, start + count)

    return step


@instruction("tcgen05.relinquish_alloc_permit")
def relinquish(ins, m):
    """#tcgen05-instructions-tcgen05-alloc-dealloc-relinquish-alloc-permit"""
    of_one_block(ins, "sync", "aligned")
    operands(ins, 0)

    def step(lanes):
        lanes.require_whole_warps(ins, "tcgen05.relinquish_alloc_permit")
        for _, warp, _ in warps_of(whole(lanes)):
            m.tensor_cores.tensor.relinquish(ins, warp)

    return step


@instruction("tcgen05.mma")
def mma(ins, m):
    """#tcgen05-mma-instructions-mma: .cta_group::1.kind.block_scale.scale_vec [d], a-desc, b-desc,
    idesc, [scale-a], [scale-b], enable-input-d"""
    named, vectors = (
        next((mod[len(prefix) :] for mod in ins.modifiers if mod.startswith(prefix)), "")
        for prefix in ("kind::", "scale_vec::")
    )
    kind = tcgen05.KINDS.get((named, vectors))
    if kind is None or "block_scale" not in ins.modifiers:
        raise unsupported(
            ins,
            "only .block_scale of"
            f" {', '.join(f'.kind::{name}.scale_vec::{size}' for name, size in tcgen05.KINDS)} is"
            " implemented",
        )
    of_one_block(ins, f"kind::{named}", "block_scale", f"scale_vec::{vectors}")
    given = operands(ins, 7)
    if hasattr(given[1], "base"):
        raise unsupported(ins, "A in tensor memory is not implemented")
    read, adds = numbers(ins, m, *given[:6]), m.source(ins, given[6], "pred")

    def step(lanes):
        values, adding = read(lanes), np.broadcast_to(adds[lanes.sel], lanes.shape)
        for index, lane in one_by_one(lanes):
            m.tensor_cores.multiply(
                ins, lane, kind, *(int(each[index]) for each in values), bool(adding[index])
            )

    return step


@instruction("tcgen05.cp")
def cp(ins, m):
    """#tcgen05-instructions-tcgen05-cp: .cta_group::1.32x128b.warpx4 [taddr], s-desc"""
    of_one_block(ins, "32x128b", "warpx4")
    if ins.modifiers != (GROUP, "32x128b", "warpx4"):
        raise unsupported(ins, "only .32x128b.warpx4 is implemented")
    read = numbers(ins, m, *operands(ins, 2))

    def step(lanes):
        taddr, descriptor = read(lanes)
        for index, lane in one_by_one(lanes):
            m.tensor_cores.copy(ins, lane, int(taddr[index]), int(descriptor[index]))

    return step


@instruction("tcgen05.commit")
def commit(ins, m):
    """#tcgen-async-sync-operations-commit:
    .cta_group::1.mbarrier::arrive::one{.shared::cluster}.b64 [mbar], of a barrier of the block's
    own"""
    of_one_block(ins, "mbarrier::arrive::one", "shared::cluster")
    if "mbarrier::arrive::one" not in ins.modifiers:
        raise unsupported(ins, "must be .mbarrier::arrive::one")
    words = barrier_at(ins, m, operands(ins, 1)[0], ("shared::cluster",))

    def step(lanes):
        where = words(lanes)
        for index, lane in one_by_one(lanes):
            m.tensor_cores.commit(ins, lane, int(where[index]))

    return step


def moved(ins, m, address, values):
    """(count, function: lanes -> first column of each warp) of a load or store of 32 lanes."""
    count = next((COUNTS[mod] for mod in ins.modifiers if mod in COUNTS), 0)
    items = values.items if isinstance(values, Vector) else (values,)
    if "32x32b" not in ins.modifiers or len(items) != count:
        raise unsupported(
            ins, f"only .32x32b is implemented, and {len(items)} registers do not fit .x{count}"
        )
    collective(ins, "32x32b", f"x{count}")
    at = m.address(ins, address)

    def columns(lanes):
        found = uniform(lanes, ins, at(lanes), "the address")
        for row, warp, mine in warps_of(lanes):
            lane, start = tcgen05.fields_of(int(found[row]))
            own = warp % m.placement.warps_per_block % 4 * tcgen05.WARP_LANES
            if lane != own:
                raise mine.fault(
                    TensorMemoryMisuse,
                    f"begins in lane {lane}; this warp may touch lanes {own} to"
                    f" {own + tcgen05.WARP_LANES - 1} only, and must begin with the first",
                    ins,
                )
            m.tensor_cores.tensor.require_allocated(
                ins, mine, warp // m.placement.warps_per_block, start, start + count
            )
        return (found & 0xFFFF).tolist(), [
            slice(lane, lane + tcgen05.WARP_LANES)
            for lane in (found >> tcgen05.LANE_SHIFT).tolist()
        ]

    return count, items, columns


@instruction("tcgen05.ld")
def ld(ins, m):
    """#tcgen05-instructions-tcgen05-ld: .sync.aligned.32x32b.xN.b32 r, [taddr]. The registers are
    there at once; ``tensor_registers`` checks that none is touched before a wait."""
    values, address = operands(ins, 2)
    count, items, columns = moved(ins, m, address, values)
    targets, cores = [m.destination(ins, item, "b32") for item in items], m.tensor_cores

    def step(lanes):
        lanes.require_whole_warps(ins, "tcgen05.ld")
        lanes = whole(lanes)
        starts, rows = columns(lanes)
        for row, warp, mine in warps_of(lanes):
            slot, here = (
                warp // m.placement.warps_per_block,
                slice(starts[row], starts[row] + count),
            )
            use = Use(ins, "ld", warp, NEVER, reads=((here.start, here.stop),))
            cores.hazards.check(use, mine, cores.of_block(warp))
            cores.tensor.require_written(
                ins, mine, slot, rows[row], here, f"columns {here.start} to {here.stop - 1}"
            )
            cores.hazards.moved(use)
            held = cores.tensor.data[slot, rows[row], here]
            for i, target in enumerate(targets):
                target[mine.sel] = held[None, :, i]
            m.memory.announce(
                "tensor-load", "tensor", ins, mine, np.full(mine.shape, here.start), 4 * count
            )

    return step


@instruction("tcgen05.st")
def st(ins, m):
    """#tcgen05-instructions-tcgen05-st: .sync.aligned.32x32b.xN.b32 [taddr], r"""
    address, values = operands(ins, 2)
    count, items, columns = moved(ins, m, address, values)
    sources, cores = [m.source(ins, item, "b32") for item in items], m.tensor_cores

    def step(lanes):
        lanes.require_whole_warps(ins, "tcgen05.st")
        lanes = whole(lanes)
        starts, rows = columns(lanes)
        for row, warp, mine in warps_of(lanes):
            slot, here = (
                warp // m.placement.warps_per_block,
                slice(starts[row], starts[row] + count),
            )
            use = Use(ins, "st", warp, NEVER, writes=((here.start, here.stop),))
            cores.hazards.check(use, mine, cores.of_block(warp))
            cores.hazards.moved(use)
            for i, source in enumerate(sources):
                cores.tensor.data[slot, rows[row], here.start + i] = np.broadcast_to(
                    source[mine.sel], mine.shape
                )[0]
            cores.tensor.written[slot, rows[row], here] = True
            m.memory.announce(
                "tensor-store", "tensor", ins, mine, np.full(mine.shape, here.start), 4 * count
            )

    return step


def waits(ins, m, what: str):
    collective(ins)
    operands(ins, 0)

    def step(lanes):
        lanes.require_whole_warps(ins, ins.root)
        for _, warp, _ in warps_of(whole(lanes)):
            m.tensor_cores.hazards.waited(warp, what)
        if what == "ld":
            m.tensor_cores.registers.waited(lanes.warps)

    return step


@instruction("tcgen05.wait::ld")
def wait_ld(ins, m):
    """#tcgen05-instructions-tcgen05-wait"""
    return waits(ins, m, "ld")


@instruction("tcgen05.wait::st")
def wait_st(ins, m):
    """#tcgen05-instructions-tcgen05-wait"""
    return waits(ins, m, "st")


@instruction("tcgen05.fence::before_thread_sync")
def before_thread_sync(ins, m):
    """#tensorcore-5th-generation-instructions-tcgen05-fence"""
    allow(ins)
    operands(ins, 0)

    def step(lanes):
        for warp in np.unique(lanes.warps).tolist():
            m.tensor_cores.hazards.before_sync(warp, m.tensor_cores.of_block(warp))

    return step


@instruction("tcgen05.fence::after_thread_sync")
def after_thread_sync(ins, m):
    """#tensorcore-5th-generation-instructions-tcgen05-fence"""
    allow(ins)
    operands(ins, 0)
    return lambda lanes: m.tensor_cores.hazards.after_sync(lanes)

"""mbarrier: objects in shared memory that count arrivals and bytes.

https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier

What they do is in ``asynchronous.mbarriers``. A try_wait never suspends here: it lets others go on
by failing. The states that arrivals return are numbers of phases, and above bit 32, where the
kernel asks for it, how many arrivals the phase lacked before.
"""

from __future__ import annotations

import numpy as np

from numba_marlin.emulator.asynchronous.mbarriers import BYTES
from numba_marlin.emulator.errors import BarrierMisuse, OutOfBounds
from numba_marlin.emulator.instructions import allow, instruction, operands, unsupported
from numba_marlin.emulator.instructions.load_store import SPACES, space_of
from numba_marlin.emulator.text.program import Sink

SHARED = ("shared", "shared::cta")
ANYWHERE = (*SHARED, "shared::cluster")
ORDER = ("release", "acquire", "relaxed", "cta", "cluster")


def barrier_at(ins, m, operand, spaces=SHARED):
    """Function: lanes -> words of the mbarriers at the address."""
    if ins.types != ["b64"]:
        raise unsupported(ins, "type must be .b64")
    given = [modifier for modifier in ins.modifiers if modifier in SPACES]
    if len(given) > 1 or not set(given) <= set(spaces):
        raise unsupported(ins, f"state space {'.'.join(given)} is not one of {', '.join(spaces)}")
    at, memory, space = m.address(ins, operand), m.memory, space_of(ins)

    def words(lanes):
        address, where = at(lanes), space
        if space == "generic":
            (where, mask), *others = memory.windows(address)
            if where != "shared" or others:
                raise lanes.fault(OutOfBounds, "an mbarrier must lie in shared memory", ins)
        return memory.locate_own(ins, lanes, where, address, BYTES, "mbarrier")

    return words


def value_of(ins, m, operand):
    """Function: lanes -> int64 array of an operand's values."""
    source = m.source(ins, operand, "u32")
    return lambda lanes: np.broadcast_to(source[lanes.sel], lanes.shape).astype(np.int64)


@instruction("mbarrier.init")
def init(ins, m):
    """#...-mbarrier-init"""
    allow(ins, *SHARED)
    address, count = operands(ins, 2)
    words, counts = barrier_at(ins, m, address), value_of(ins, m, count)
    return lambda lanes: m.mbarriers.init(ins, lanes, words(lanes), counts(lanes))


@instruction("mbarrier.inval")
def inval(ins, m):
    """#...-mbarrier-inval"""
    allow(ins, *SHARED)
    words = barrier_at(ins, m, operands(ins, 1)[0])

    def busy(word: int) -> str:
        return (
            "bulk copies"
            if m.bulk.signals(word)
            else "tcgen05.commit"
            if m.tensor_cores.signals(word)
            else ""
        )

    return lambda lanes: m.mbarriers.invalidate(ins, lanes, words(lanes), busy)


@instruction("mbarrier.expect_tx")
def expect_tx(ins, m):
    """#...-mbarrier-expect-tx"""
    allow(ins, *ANYWHERE, "relaxed", "cta", "cluster")
    address, nbytes = operands(ins, 2)
    words, expected = barrier_at(ins, m, address, ANYWHERE), value_of(ins, m, nbytes)
    return lambda lanes: m.mbarriers.expect(ins, lanes, words(lanes), expected(lanes))


@instruction("mbarrier.complete_tx")
def complete_tx(ins, m):
    """#...-mbarrier-complete-tx: as if an asynchronous copy had brought so many bytes."""
    allow(ins, *ANYWHERE, "relaxed", "cta", "cluster")
    address, nbytes = operands(ins, 2)
    words, given = barrier_at(ins, m, address, ANYWHERE), value_of(ins, m, nbytes)

    def step(lanes):
        at, count = words(lanes), given(lanes)
        m.mbarriers.require_live(ins, lanes, at)
        for index in np.ndindex(*lanes.shape):
            m.mbarriers.complete_tx(int(at[index]), int(count[index]), ins, lanes)

    return step


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(ins, m):
    """#...-mbarrier-arrive, with .expect_tx too, and #...-mbarrier-arrive-drop, after which later
    phases wait for so many arrivals less. .noComplete promises that the phase does not end here."""
    allow(ins, *ANYWHERE, *ORDER, "expect_tx", "noComplete")
    drops, ends = ins.root.endswith("drop"), "noComplete" not in ins.modifiers
    if "acquire" in ins.modifiers:
        raise unsupported(ins, "modifier .acquire is not defined for arrivals")
    expects = "expect_tx" in ins.modifiers
    given = list(operands(ins, 3) if expects else operands(ins, 1, 2, 3))
    # The state may be left out where the address is of another block: then the first operand is the
    # address.
    state = given.pop(0) if expects or not hasattr(given[0], "base") else Sink()
    words = barrier_at(ins, m, given.pop(0), ANYWHERE)
    if "shared::cluster" in ins.modifiers and not isinstance(state, Sink):
        raise unsupported(ins, "an arrival at a barrier of the cluster returns no state: _")
    expected = value_of(ins, m, given.pop(0)) if expects else None
    counts = (
        value_of(ins, m, given.pop(0)) if given else lambda lanes: np.ones(lanes.shape, np.int64)
    )
    d = m.destination(ins, state, "b64")

    def step(lanes):
        m.proxy.announce(np.unique(lanes.warps).tolist())
        at, count = words(lanes), counts(lanes)
        if drops:
            m.mbarriers.drop(ins, lanes, at, count)
        lacked = m.mbarriers.lacking(at, count) if m.mbarriers.counting else np.uint64(0)
        before = m.mbarriers.arrive(ins, lanes, at, count, expected(lanes) if expects else None)
        if not ends and (m.mbarriers.phase[at] != before).any():
            raise lanes.fault(
                BarrierMisuse,
                "an arrival of .noComplete completes the phase",
                ins,
                m.mbarriers.phase[at] != before,
            )
        d[lanes.sel] = before.astype(np.uint64) | lacked << np.uint64(32)

    return step


@instruction("mbarrier.pending_count")
def pending_count(ins, m):
    """#...-mbarrier-pending-count: of a state, how many arrivals the phase lacked before it."""
    allow(ins)
    d, state = m.bind(ins, "u32", "b64")

    def step(lanes):
        s = lanes.sel
        d[s] = (np.asarray(state[s]) >> np.uint64(32)).astype(np.uint32)

    return step


@instruction("mbarrier.try_wait", "mbarrier.test_wait")
def wait(ins, m):
    """#...-mbarrier-test-wait-try-wait: by parity, or by the state that an arrival returned; a time
    limit changes nothing."""
    allow(ins, *SHARED, *ORDER, "parity")
    if "release" in ins.modifiers:
        raise unsupported(ins, "modifier .release is not defined for waits")
    target, address, phase, *_ = operands(ins, *((3, 4) if "try_wait" in ins.root else (3,)))
    words, p = barrier_at(ins, m, address), m.destination(ins, target, "pred")
    if "parity" in ins.modifiers:
        parity = value_of(ins, m, phase)

        def step(lanes):
            p[lanes.sel] = m.mbarriers.poll(ins, lanes, words(lanes), parity(lanes))

    else:
        state = m.source(ins, phase, "b64")

        def step(lanes):
            p[lanes.sel] = m.mbarriers.poll_state(
                ins, lanes, words(lanes), np.broadcast_to(state[lanes.sel], lanes.shape)
            )

    return step

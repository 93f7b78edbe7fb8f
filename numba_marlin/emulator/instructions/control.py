"""Control flow, block-wide barriers, fences.

https://docs.nvidia.com/cuda/parallel-thread-execution/#control-flow-instructions

Branches, exits and barriers end a basic block; their handlers return a description of it
(``emulator.state.ends``) that the scheduler acts upon.
"""

from __future__ import annotations

from numba_marlin.emulator.errors import Trap, UnknownInstruction
from numba_marlin.emulator.instructions import allow, instruction, operands, refuse, unsupported
from numba_marlin.emulator.ordering.messages import GPU, SCOPES
from numba_marlin.emulator.state.ends import Barrier, Branch, Leave
from numba_marlin.emulator.state.registers import Constant
from numba_marlin.emulator.text.cfg import EXIT
from numba_marlin.emulator.text.program import Address
from numba_marlin.hardware.limits import SETMAXNREG_LEAST, SETMAXNREG_MOST, SETMAXNREG_STEP


@instruction("bra")
def bra(ins, m):
    """#control-flow-instructions-bra"""
    allow(ins, "uni")
    # a label may stand behind the last instruction
    return Branch(
        ins, m.guard(ins), ins.target if ins.target < len(m.kernel.instructions) else EXIT
    )


@instruction("ret", "exit")
def leave(ins, m):
    """#control-flow-instructions-ret, -exit: a kernel has no caller, so both end the thread."""
    allow(ins, "uni")
    return Leave(ins, m.guard(ins))


@instruction("bar", "barrier")
def barrier(ins, m):
    """#parallel-synchronization-and-communication-instructions-bar: bar.sync, bar.arrive, bar.red,
    and barrier.*

    Lanes that have exited are not waited for. With .aligned, which bar has, the others of a warp
    must come together; without, each may be at a barrier instruction of its own.
    """
    allow(ins, "sync", "arrive", "red", "aligned", "cta", "popc", "and", "or")
    guard = m.guard(ins)
    given = list(operands(ins, 3, 4) if "red" in ins.modifiers else operands(ins, 0, 1, 2))
    if "red" in ins.modifiers:
        kind = next((mod for mod in ins.modifiers if mod in ("popc", "and", "or")), None)
        if kind is None:
            raise unsupported(ins, "names no reduction")
        result = m.destination(ins, given.pop(0), "u32" if kind == "popc" else "pred")
        value = m.source(ins, given.pop(), "pred")
    else:
        kind, result, value = "arrive" if "arrive" in ins.modifiers else "sync", None, None
    number = m.source(ins, given[0], "u32") if given else Constant(0)
    count = m.source(ins, given[1], "u32") if len(given) > 1 else None
    if kind == "arrive" and count is None:
        raise unsupported(ins, "needs a thread count")
    return Barrier(ins, guard, kind, number, count, result, value)


@instruction("barrier.cluster")
def cluster_barrier(ins, m):
    """#parallel-synchronization-and-communication-instructions-barrier-cluster"""
    allow(ins, "arrive", "wait", "acquire", "release", "relaxed", "aligned")
    kind = "arrive" if "arrive" in ins.modifiers else "wait"
    refuse(ins, kind, *(("acquire", "wait") if kind == "arrive" else ("release", "relaxed")))
    if kind not in ins.modifiers or ins.operands:
        raise unsupported(ins, "must be an arrive or a wait, and takes no operands")
    return Barrier(ins, m.guard(ins), f"cluster.{kind}", Constant(0), None)


@instruction("fence.proxy", "membar.proxy")
def proxy_fence(ins, m):
    """#parallel-synchronization-and-communication-instructions-membar: ordinary accesses before,
    asynchronous ones behind. Tensor maps are read when they are used here, so .tensormap::generic
    matters to ``races`` only: as a fence of its scope."""
    if "tensormap::generic" in ins.modifiers:
        allow(ins, "tensormap::generic", "acquire", "release", *SCOPES)
        acquires = ins.modifiers[1:2] == ("acquire",)
        if len(ins.modifiers) != 3 or ins.modifiers[-1] not in SCOPES:
            raise unsupported(ins, "is .tensormap::generic, .acquire or .release, and a scope")
        given = operands(ins, 2 if acquires else 0)
        if acquires and (not isinstance(given[0], Address) or m.immediate(ins, 1) != MAP_BYTES):
            raise unsupported(ins, f"acquires a tensor map, [address], {MAP_BYTES}")
        return fence_of(ins, m)
    spaces = ("global", "shared::cta", "shared::cluster")
    allow(ins, "async", "alias", *spaces)
    if (
        len(ins.modifiers) > 2
        or ins.modifiers[:1] not in (("async",), ("alias",))
        or ins.modifiers[:1] == ("alias",) != ins.modifiers
    ):
        raise unsupported(
            ins, "fences one proxy, async or alias; async for one state space at most"
        )
    if ins.modifiers == ("alias",):
        return lambda lanes: None
    of_shared = "global" not in ins.modifiers
    of_global = ins.modifiers in (("async",), ("async", "global"))

    def step(lanes):
        if of_shared:
            m.proxy.fence(lanes)
            m.mbarriers.fence(lanes)
        if of_global:
            m.global_proxies.fence(lanes)

    return step


@instruction("fence.mbarrier_init")
def fence_mbarrier_init(ins, m):
    """#parallel-synchronization-and-communication-instructions-membar"""
    allow(ins, "release", "cluster")
    if ins.modifiers != ("release", "cluster"):
        raise unsupported(ins, "is always .release.cluster")

    def step(lanes):
        m.mbarriers.fence(lanes)
        if m.races is not None:
            m.races.inits.fence(lanes)

    return step


@instruction("setmaxnreg")
def setmaxnreg(ins, m):
    """#miscellaneous-instructions-setmaxnreg: checked here and in ``state.register_pool``."""
    allow(ins, "inc", "dec", "sync", "aligned")
    if ins.modifiers not in (("inc", "sync", "aligned", "u32"), ("dec", "sync", "aligned", "u32")):
        raise unsupported(ins, "must be .inc or .dec, .sync.aligned.u32")
    count = m.immediate(ins, 0)
    if count % SETMAXNREG_STEP or not SETMAXNREG_LEAST <= count <= SETMAXNREG_MOST:
        raise unsupported(
            ins,
            f"{count} registers must be a multiple of {SETMAXNREG_STEP} between"
            f" {SETMAXNREG_LEAST} and {SETMAXNREG_MOST}",
        )
    if m.kernel.max_threads is not None or m.kernel.max_registers:
        return lambda lanes: m.register_pool.trade(ins, lanes, count)
    unbounded = (
        f"{ins.opcode}: {m.kernel.name} declares neither .maxntid nor .maxnreg, so its registers at"
        " entry are unknown"
    )

    def step(lanes):
        m.checks.report("setmaxnreg-bound", lanes.fault(UnknownInstruction, unbounded, ins))

    return step


FENCE = (
    "sc acq_rel acquire release cta cluster gpu gl sys sync_restrict::shared::cta"
    " sync_restrict::shared::cluster"
).split()
MAP_BYTES = 128
NOTHING = {"nanosleep": (), "pmevent": ("mask",)}


@instruction(*NOTHING)
def nothing(ins, m):
    """#miscellaneous-instructions: nothing to do."""
    allow(ins, *NOTHING[ins.root])
    return lambda lanes: None


@instruction("griddepcontrol")
def griddepcontrol(ins, m):
    """#parallel-synchronization-and-communication-instructions-griddepcontrol: one kernel at a time
    runs here, so this matters to ``races`` only."""
    allow(ins, "launch_dependents", "wait")

    def step(lanes):
        if m.races is not None and "wait" in ins.modifiers:
            m.races.kernel_before(lanes)

    return step


@instruction("membar", "fence")
def fence(ins, m):
    """#parallel-synchronization-and-communication-instructions-membar: memory is sequentially
    consistent here, so this matters to ``races``, and where a schedule makes it weak."""
    allow(ins, *FENCE)
    return fence_of(ins, m)


def fence_of(ins, m):
    """The step of a fence of the scope that ``ins`` names."""
    scope = next((SCOPES[mod] for mod in ins.modifiers if mod in SCOPES), GPU)
    consistent = "sc" in ins.modifiers or ins.root == "membar"

    def step(lanes):
        if m.weak is not None:
            m.weak.fence(lanes, scope, consistent)
        if m.races is not None:
            m.races.messages.fence(lanes, scope)

    return step


@instruction("trap", "brkpt")
def trap(ins, m):
    """#miscellaneous-instructions-trap"""
    allow(ins)

    def step(lanes):
        raise lanes.fault(Trap, f"the program executed {ins.opcode}", ins)

    return step

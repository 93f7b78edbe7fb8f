"""Which checks there are, of which kind, and what a run does about each: stop, warn or nothing.

``CHECKS`` lists them all. A check is of one of three kinds: WRONG on every machine; UNDEFINED by
the ISA, while chips go on, and how that is known; STYLE. ``Machine(..., checks=...)`` and
``machine run --checks`` take a level, "strict" (the default), "hardware" or "style", and behind it
any number of ``name=error``, ``name=warn`` and ``name=off``: "hardware,benign-race=off". A warning
is given once for a place, in ``RunResult.warnings``, and the run goes on.

docs/checks.md is ``table()``.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba_marlin.emulator.errors import MachineError
from numba_marlin.wording import did_you_mean

WRONG, UNDEFINED, STYLE = "wrong", "undefined", "style"
ERROR, WARN, OFF = "error", "warn", "off"
LEVELS = {
    "strict": {WRONG: ERROR, UNDEFINED: ERROR, STYLE: OFF},
    "hardware": {WRONG: ERROR, UNDEFINED: WARN, STYLE: OFF},
    "style": {WRONG: ERROR, UNDEFINED: ERROR, STYLE: WARN},
}
DEFAULT = "strict"
ISA = "https://docs.nvidia.com/cuda/parallel-thread-execution/"


@dataclass(frozen=True)
class Check:
    name: str
    kind: str
    """WRONG, UNDEFINED or STYLE."""
    says: str
    """What is looked for."""
    why: str
    """The section of the ISA that forbids it; of what works nevertheless, how that is known."""
    races: bool = False
    """Whether it takes ``races``."""


OWN = (
    Check(
        "uninitialized-shared",
        UNDEFINED,
        "a read of shared memory that nothing has written",
        "[the ISA](#shared-state-space) leaves the value open. Chips give what was there before:"
        " the published Marlin reads such bytes in 23 of the 35 problems of its own test (launched"
        " for three multiprocessors), and is right nevertheless",
    ),
    Check(
        "uninitialized-local",
        UNDEFINED,
        "a read of local memory that nothing has written",
        "[the ISA](#local-state-space) leaves the value open; chips give what was there before",
    ),
    Check(
        "uninitialized-register",
        UNDEFINED,
        "a guard, an address or a stored value of a register that nothing has written",
        "[the ISA](#register-state-space) leaves the value open; chips give what another kernel"
        " left in the register",
    ),
    Check(
        "shuffle-from-outside",
        UNDEFINED,
        "a guard, an address or a stored value that a shuffle took from a lane that has exited or"
        " that the member mask does not name",
        "[the ISA](#data-movement-and-conversion-instructions-shfl-sync) leaves the value open;"
        " chips give some register's",
    ),
    Check(
        "neighbouring-variable",
        UNDEFINED,
        "an address made from one shared or local variable that lies in another",
        "[the ISA](#state-spaces) does not say where variables lie; chips give the neighbour's"
        " bytes",
    ),
    Check(
        "lane-outside-mask",
        UNDEFINED,
        "a lane that executes vote, match, redux, shfl, elect or bar.warp with a member mask that"
        " does not name it",
        "[the ISA](#parallel-synchronization-and-communication-instructions-vote-sync) leaves the"
        " behaviour open; chips do as if it were named"
        " ([seen with shfl](https://forums.developer.nvidia.com/t/"
        "how-do-mask-work-in-warp-primitive/255040))",
    ),
    Check(
        "mbarrier-init-fence",
        UNDEFINED,
        "a bulk copy that signals an mbarrier, with no fence.mbarrier_init or fence.proxy.async"
        " since its mbarrier.init",
        "init writes by the generic proxy and a bulk copy signals by"
        " [the asynchronous one](#async-proxy), between which the memory model orders nothing"
        " without a proxy fence. What CUDA 13 makes of `cuda::barrier` with `cuda::memcpy_async`,"
        " and Triton of kernels without clusters, has mbarrier.init and bar.sync only, and runs on"
        " Hopper: seen in their code, not probed here",
    ),
    Check(
        "mbarrier-count-zero",
        UNDEFINED,
        "mbarrier.init with a count of 0",
        "[the ISA](#parallel-synchronization-and-communication-instructions-mbarrier) wants at"
        " least 1. Humming 0.1.19 initialises one like this that it never uses, and was right on an"
        " H200. Here there is no mbarrier afterwards, and any use of it is an error",
    ),
    Check(
        "mbarrier-parity",
        UNDEFINED,
        "a wait for a phase of an mbarrier whose parity is neither 0 nor 1",
        "[the ISA](#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-"
        "mbarrier-try-wait) has no other. Triton 3.9 waits with -1 for 1 in a loop with"
        " `warp_specialize`: seen in its code, not probed here. The lowest bit is taken",
    ),
    Check(
        "wgmma-fence",
        UNDEFINED,
        "a wgmma on registers that were written, or never fenced, since the last wgmma.fence of its"
        " warp",
        "[the ISA](#asynchronous-warpgroup-level-matrix-instructions-wgmma-fence) wants one before"
        " the first wgmma and behind every other access to its registers. CUTLASS's persistent"
        " examples of the CuTe DSL set their accumulators to zero and go without: seen in their"
        " code, not probed here",
    ),
    Check(
        "setmaxnreg-bound",
        UNDEFINED,
        "setmaxnreg in a kernel that declares neither .maxntid nor .maxnreg",
        "[the ISA](#miscellaneous-instructions-setmaxnreg) requires a kernel whose registers per"
        " thread are bounded; otherwise setmaxnreg may have no effect. ptxas then ignores it and"
        " says so (C7508), as of two kernels of ThunderKittens, and so does this machine",
    ),
    Check(
        "bulk-store-at-end",
        UNDEFINED,
        "a block that ends while a bulk store, never waited for, may be reading its shared memory",
        "[the ISA](#data-movement-and-conversion-instructions-cp-async-bulk-wait-group) wants"
        " cp.async.bulk.wait_group.read before the memory is given back. Kernels in the field go"
        " without: not probed here",
    ),
    Check(
        "benign-race",
        UNDEFINED,
        "two writes that nothing orders, of equal values",
        "a data race is [undefined](#data-races); in either order the value is the same",
        races=True,
    ),
    Check(
        "volatile-warp-sync",
        STYLE,
        "lanes of a warp that exchange values by volatile accesses, with no bar.warp.sync between",
        "volatile accesses do [not race](#data-races), but from sm_70 on lanes have no order of"
        " their own: which value is read is chance, unless the reader waits for it in a loop",
        races=True,
    ),
    Check(
        "lanes-overwrite",
        STYLE,
        "lanes of a warp that write different values to one place by one instruction",
        "one of the values stays, and [nobody says which](#data-races)",
        races=True,
    ),
)
"""Checks with names of their own; every other one has the name of its error."""

_WHY = {
    "PendingCopyRead": "#data-movement-and-conversion-instructions-asynchronous-copy",
    "OutOfBounds": "#state-spaces",
    "Misaligned": "#addresses-as-operands",
    "ReadOnlyWrite": "#state-spaces",
    "BarrierMisuse": "#parallel-synchronization-and-communication-instructions-mbarrier",
    "RegisterHazard": "#asynchronous-warpgroup-level-matrix-async-proxy",
    "ProxyHazard": "#async-proxy",
    "BadDescriptor": "#tcgen05-shared-memory-descriptor",
    "BadMetadata": "#warp-level-matrix-instructions-mma-sp",
    "TensorMemoryMisuse": "#tensor-memory",
    "TensorMemoryHazard": "#tcgen05-memory-consistency-model",
    "DivergentCollective": ("#parallel-synchronization-and-communication-instructions-barrier-cta"),
    "Deadlock": "#parallel-synchronization-and-communication-instructions-bar",
    "Trap": "#miscellaneous-instructions-trap",
    "Race": "#data-races",
    "UninitializedRead": "#tensor-memory",
}


def _of_errors() -> tuple[Check, ...]:
    """A check for each error about a program, by its docstring's first sentence."""
    found = []
    named = {error.__name__: error for error in MachineError.__subclasses__()}
    for name, section in _WHY.items():
        error = named[name]
        says = " ".join(error.__doc__.split()).split(". ")[0].rstrip(".")
        kind = error.kind if name != "Race" else "race"
        found.append(
            Check(
                kind, WRONG, says[0].lower() + says[1:], f"[ISA]({section})", races=name == "Race"
            )
        )
    return tuple(found)


CHECKS = {check.name: check for check in (*_of_errors(), *OWN)}


class Checks:
    """What one run does about each check; ``found`` are the warnings so far."""

    def __init__(self, chosen: str = DEFAULT) -> None:
        self.levels = levels_of(chosen)
        self.found: dict[tuple, MachineError] = {}

    def on(self, name: str) -> bool:
        return self.levels[name] != OFF

    def report(self, name: str, error: MachineError) -> None:
        """Raise ``error``, which check ``name`` has found, or keep it as a warning."""
        level, error.check = self.levels[name], name
        if level == ERROR:
            if CHECKS[name].kind == UNDEFINED:
                error.advise(
                    "the ISA leaves this undefined, and chips go on (docs/checks.md):"
                    " checks='hardware', --checks hardware, makes it a warning"
                )
            raise error
        if level == WARN:
            self.found.setdefault((name, error.line), error)


def levels_of(chosen: str) -> dict[str, str]:
    """Check -> "error", "warn" or "off". ValueError for a level, check or word that is none."""
    level, *others = [part.strip() for part in chosen.split(",")]
    if level not in LEVELS:
        raise ValueError(
            f"checks={chosen!r} must begin with one of {', '.join(LEVELS)}"
            f"{did_you_mean(level, LEVELS)}"
        )
    found = {name: LEVELS[level][check.kind] for name, check in CHECKS.items()}
    for part in others:
        name, _, wanted = part.partition("=")
        if name not in CHECKS:
            raise ValueError(
                f"checks={chosen!r}: there is no check {name!r}{did_you_mean(name, CHECKS)}"
            )
        if wanted not in (ERROR, WARN, OFF):
            raise ValueError(f"checks={chosen!r}: {part!r} must be {name}=error, =warn or =off")
        if CHECKS[name].kind == WRONG and wanted != ERROR:
            raise ValueError(
                f"checks={chosen!r}: {name} is wrong on every machine and always an error"
            )
        found[name] = wanted
    return found


def table() -> str:
    """docs/checks.md."""
    lines = [
        "# What the PTX machine checks",
        "",
        "Made from `numba_marlin/emulator/checks.py` by its `table`. `Machine(..., checks=...)` and"
        " `numba-marlin machine run --checks` take a level and, behind commas, `name=error`,"
        " `name=warn` or `name=off` for any check that is not wrong on every machine. A warning is"
        " given once for a place, and the run goes on. Checks marked with * take `races=True`.",
        "",
        "| level | wrong on every machine | undefined by the ISA, chips go on | style |",
        "|---|---|---|---|",
    ]
    for level, what in LEVELS.items():
        cells = (what[WRONG], what[UNDEFINED], what[STYLE])
        default = " (default)" if level == DEFAULT else ""
        lines.append(f"| `{level}`{default} | {' | '.join(cells)} |")
    lines += ["", "| check | kind | what | why |", "|---|---|---|---|"]
    for kind in (WRONG, UNDEFINED, STYLE):
        for check in CHECKS.values():
            if check.kind == kind:
                star = "*" if check.races else ""
                why = check.why.replace("(#", f"({ISA}#")
                lines.append(f"| `{check.name}`{star} | {kind} | {check.says} | {why} |")
    return "\n".join(lines) + "\n"

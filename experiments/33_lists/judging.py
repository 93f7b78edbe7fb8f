"""What became of one case: ``outcome`` is one of OUTCOMES, ``said`` why.

right: it ran to its end, races looked for, and every value is what was wanted. read: it has no
values; its text was read and its instructions were bound. wrong: a value differs. report: the
machine reports something that the case does wrong. refused: the machine says that it does not take
the text, by name. not compiled: the compiler takes it not, so that there is nothing to run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from numba_marlin.emulator import (
    LimitExceeded,
    Machine,
    MachineError,
    PtxSyntaxError,
    UnknownInstruction,
)

OUTCOMES = ("right", "read", "wrong", "report", "refused", "not compiled")
CHECKS = "hardware"  # what chips go on after is a warning, as in experiment 31
MOST_SAID = 240
MOST_INSTRUCTIONS = 2_000_000  # of a case, in warps
ENDLESS = 64  # of a kernel that is bound only


class NotCompiled(Exception):
    """The compiler says no."""


@dataclass(frozen=True)
class Found:
    """``outcomes``: how many had which, of a case that stands for many; its own is the worst."""

    outcome: str
    said: str = ""
    instructions: int = 0
    warnings: tuple[str, ...] = ()
    outcomes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """``run`` makes, runs and compares it."""

    group: str
    name: str
    run: Callable[[], Found]


def judged(run: Callable[[], Found]) -> Found:
    """What ``run`` finds, or what it raises."""
    try:
        return run()
    except NotCompiled as error:
        return Found("not compiled", short(str(error)))
    except (UnknownInstruction, PtxSyntaxError, LimitExceeded) as error:
        return Found("refused", short(str(error)))
    except MachineError as error:
        return Found("report", short(str(error)))


def short(text: str) -> str:
    line = " ".join(text.partition("\n  what to do")[0].split())
    return line if len(line) <= MOST_SAID else line[:MOST_SAID] + " ..."


def compared(got: np.ndarray, wanted: np.ndarray, result, ulps: int = 0) -> Found:
    """By value: the two zeros are the same, a NaN is as good as another, and a float may be off by
    ``ulps`` units in the last place."""
    wrong = np.flatnonzero(~same(got, wanted, ulps))
    warnings = tuple(sorted({each.check or each.kind for each in result.warnings}))
    if wrong.size:
        first = int(wrong[0])
        said = (
            f"{wrong.size} of {wanted.size} values, the first at {first}:"
            f" {got.ravel()[first]!r}, not {wanted.ravel()[first]!r}"
        )
        return Found("wrong", said, result.instructions, warnings)
    return Found("right", "", result.instructions, warnings)


def same(got: np.ndarray, wanted: np.ndarray, ulps: int) -> np.ndarray:
    equal = got == wanted
    if wanted.dtype.kind == "f":
        equal |= np.isnan(got) & np.isnan(wanted)
        if ulps:
            off = np.abs(got.astype(np.float64) - wanted)
            equal |= off <= ulps * np.spacing(np.abs(wanted)).astype(np.float64)
    return equal


def bound(machine: Machine, entry: str) -> Found:
    """What the machine says of a kernel when it is read and its instructions are bound. It begins
    to run, with zeros for arguments: what it does then is of no interest."""
    kernel = machine.kernel(entry)
    try:
        machine.run(
            entry,
            block=min(32, kernel.max_threads or 32),
            args=[bytes(each.size) for each in kernel.parameters],
            max_instructions=ENDLESS,
            shared_bytes=1024,
        )
    except (UnknownInstruction, PtxSyntaxError, LimitExceeded):
        raise
    except MachineError as error:
        if error.block is None and error.kind != "deadlock":
            raise
    return Found("read")

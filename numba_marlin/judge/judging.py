"""The checks of a kernel against a task.

A case is run in the usual order of warps, then in others: with other garbage in fresh memory, with
the arrays elsewhere, and at addresses that are only as aligned as the task says. All must give the
right elements, and the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from numba_marlin.emulator.errors import LimitExceeded, PtxSyntaxError, UnknownInstruction
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.judge import cases, explain
from numba_marlin.judge.explain import Defect
from numba_marlin.judge.launching import BUDGET, Kernel, Run, Way, run
from numba_marlin.judge.task import ALIGNED, Input, Problem, Task, problem
from numba_marlin.judge.verdict import CaseVerdict, Verdict
from numba_marlin.judge.watching import NOBODY

POISONS = (0xFF, 0xAA)  # NaN and -1; -3e-13 and a large negative number
ENDLESS_CASES = 2  # after which no more are tried: each takes long
UNJUDGED = (PtxSyntaxError, UnknownInstruction, LimitExceeded)


@dataclass(frozen=True)
class Options:
    """``cases``: drawn ones, behind the edges. ``schedules``: tried beside the usual one.
    ``budget``: instructions of a warp. ``seconds``: after which no new case begins."""

    cases: int = 10
    schedules: int = 3
    budget: int = BUDGET
    seconds: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("cases", "schedules"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative")
        for name in ("budget", "seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} must be positive")


@dataclass
class Judge:
    """One kernel, one task. ``tell`` is called with what is done next, ``done`` with each case."""

    task: Task
    kernel: Kernel
    options: Options = Options()
    tell: Callable[[str], object] = lambda what: None
    done: Callable[[CaseVerdict], object] = lambda case: None
    runs: int = 0
    instructions: int = 0
    read: set[str] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)

    def verdict(self) -> Verdict:
        """Raises what says that the kernel cannot be judged: PtxSyntaxError, UnknownInstruction,
        LimitExceeded; ValueError about the task."""
        begun = time.monotonic()
        tried: dict[cases.Case, CaseVerdict] = {}
        complete = True

        def over() -> bool:
            nonlocal complete
            complete = complete and time.monotonic() - begun <= self.options.seconds
            return not complete

        def fails(case: cases.Case) -> str:
            tried[case] = self.case(case)
            self.done(tried[case])
            return tried[case].kind

        endless = 0
        for case in cases.edges(self.task, self.options.seed):
            if over() or endless >= ENDLESS_CASES:
                break
            endless += fails(case) == "budget"
        failed = [case for case in tried if tried[case].kind]
        shrunk = None
        if not failed and not over():
            before = set(tried)
            shrunk = cases.drawn(self.task, self.options.cases, self.options.seed, fails, over)
            # of the drawn cases that fail, people want the smallest one
            tried = {
                case: found
                for case, found in tried.items()
                if case in before or not found.kind or case == shrunk
            }
        unread = () if any(tried[case].kind for case in tried) else self._never_read()
        return Verdict(
            title=self.task.title,
            kernel=self.kernel.name,
            cases=tuple(tried.values()),
            defects=unread,
            runs=self.runs,
            instructions=self.instructions,
            complete=complete,
        )

    def case(self, case: cases.Case) -> CaseVerdict:
        self.tell(f"making case {case}")
        given = problem(self.task, case.named, case.seed)
        self.tell(f"running case {case}")
        defect, ways = self._first_defect(given, case.seed), 1 + self.options.schedules
        return CaseVerdict(case.why, case.named, given.grid, given.block, ways, defect)

    def _first_defect(self, given: Problem, seed: int) -> Defect | None:
        usual: Run | None = None
        for number in range(1 + self.options.schedules):
            way = self._way(number, seed)
            made = self._run(given, way)
            defect = self._defect(made, given)
            if defect is None and usual is not None and self.task.deterministic:
                defect = differs(usual, made, given, way)
            if defect is not None:
                return replace(defect, schedule=_order(way.schedule))
            usual = usual or made
        return None

    def _way(self, number: int, seed: int) -> Way:
        odd = number % 2
        offsets = {
            each.name: max(each.alignment, np.dtype(each.dtype).itemsize)
            for each in self.task.arrays
            if each.alignment < ALIGNED and odd
        }
        schedule = None if not number else Schedule.drawn(1000 * seed + number)
        return Way(
            schedule, POISONS[odd], bool(odd), offsets, self.options.budget, self.task.checks
        )

    def _run(self, given: Problem, way: Way) -> Run:
        arrays = self.task.arrays
        made = run(
            self.kernel,
            given.values,
            given.grid,
            given.block,
            way,
            readonly=frozenset(each.name for each in arrays if each.readonly),
            poisoned=frozenset(each.name for each in arrays if each.poisoned),
            shared=given.shared,
            cluster=given.cluster,
        )
        self.runs += 1
        self.instructions += made.result.instructions if made.result else 0
        if isinstance(made.error, UNJUDGED):
            raise made.error
        if made.error is None:
            for name, each in made.watched.items():
                if each.array.size:
                    (self.read if each.read else self.unread).add(name)
        return made

    def _never_read(self) -> tuple[Defect, ...]:
        return tuple(
            Defect(
                "input-not-read",
                "no case read a byte of this input: where does the answer come from?",
                f"{each.name} was never read (Input(may_ignore=True) allows that)",
                array=each.name,
            )
            for each in self.task.arrays
            if isinstance(each, Input)
            and not each.may_ignore
            and each.name in self.unread - self.read
        )

    def _defect(self, made: Run, given: Problem) -> Defect | None:
        strange = made.watch.strange
        # the machine says more of a read that races than that nothing had been written
        if strange is not None and (made.error is None or strange.kind == "out-of-bounds"):
            return explain.strange(made, strange)
        if made.error is not None:
            return explain.stopped(made, made.error, made.watched)
        for name, expected in given.expected.items():
            found = wrong(made, name, expected, given.bounds[name])
            if found is not None:
                return found
        return None


def _order(schedule: Schedule | None) -> str:
    if schedule is None:
        return ""
    return f"{schedule.order!r} with copies {schedule.copies!r}, seed {schedule.seed}"


def judge(task: Task, kernel: Kernel, options: Options = Options()) -> Verdict:
    """The verdict, in this process and without a time limit of a run but its budget."""
    return Judge(task, kernel, options).verdict()


def wrong(made: Run, name: str, expected: np.ndarray, bound: np.ndarray) -> Defect | None:
    """The first element of an output that is not written or not right."""
    each = made.watched[name]
    got = each.array
    if each.poisoned and got.size:
        raw = np.ascontiguousarray(got).reshape(-1).view(np.uint8).reshape(got.size, -1)
        untouched = (each.writers == NOBODY) & (raw == raw[:, :1]).all(1)
        if untouched.any():
            index = np.unravel_index(int(np.argmax(untouched)), got.shape)
            return Defect(
                "not-written",
                "nothing wrote these elements: a grid that is too small, or a wrong index?",
                f"{int(untouched.sum())} of {got.size} elements of {name} were never written, the"
                f" first is {name}{_said(index)}",
                array=name,
                element=_said(index),
            )
    bad = ~right(got, expected, bound)
    if not bad.any():
        return None
    index = np.unravel_index(int(np.argmax(bad)), got.shape)
    flat = int(np.ravel_multi_index(index, got.shape)) if got.shape else 0
    allowed = f"; the bound is {float(bound[index]):.3g}" if bound[index] else ""
    where = explain.Place()
    if each.writers[flat] != NOBODY:
        ins = made.instructions[each.by[flat]]
        where = explain.of_thread(made, ins, int(each.writers[flat]))
    return Defect(
        "wrong-value",
        "the result is not the reference's" + (": this line wrote it last" * bool(where.ptx)),
        f"{int(bad.sum())} of {got.size} elements of {name} are wrong: {name}{_said(index)} is"
        f" {got[index]!s}, and should be {expected[index]!s}{allowed}",
        where,
        array=name,
        element=_said(index),
    )


def right(got: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Element by element: the reference rounded to the output's type, or within the bound."""
    if got.dtype.kind != "f":
        near = np.zeros(got.shape, bool)
        if bound.any():
            near = np.abs(got.astype(object) - expected.astype(object)) <= bound
        return (got == expected) | near.astype(bool)
    with np.errstate(all="ignore"):
        rounded = expected.astype(got.dtype)
        exact = got.astype(np.float64)
        near = np.abs(exact - expected) <= bound
    return (got == rounded) | (np.isnan(got) & np.isnan(rounded)) | near


def differs(usual: Run, made: Run, given: Problem, way: Way) -> Defect | None:
    """The first element of an output whose bits depend on the order of warps, or on what was in
    memory."""
    for name in given.expected:
        before, after = usual.arrays[name], made.arrays[name]
        if _same_bits(before, after):
            continue
        words = f"u{before.itemsize}"
        unequal = np.ascontiguousarray(before).view(words) != np.ascontiguousarray(after).view(
            words
        )
        index = np.unravel_index(int(np.argmax(unequal)), before.shape)
        flat = int(np.ravel_multi_index(index, before.shape)) if before.shape else 0
        each, where = made.watched[name], explain.Place()
        if each.writers[flat] != NOBODY:
            ins = made.instructions[each.by[flat]]
            where = explain.of_thread(made, ins, int(each.writers[flat]))
        return Defect(
            "nondeterministic",
            "right within the bound, but not the same bits in every order of warps"
            " (Task(deterministic=False) allows that)",
            f"{int(unequal.sum())} of {before.size} elements of {name} differ: {name}"
            f"{_said(index)} is {before[index]!s} in one order and {after[index]!s} in another",
            where,
            array=name,
            element=_said(index),
        )
    return None


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    return first.tobytes() == second.tobytes()


def _said(index) -> str:
    return f"[{', '.join(str(int(each)) for each in index) or '()'}]"

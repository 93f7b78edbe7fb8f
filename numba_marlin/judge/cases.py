"""Which sizes are tried: edges first, then drawn ones, which Hypothesis shrinks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from numba_marlin.errors import CapabilityMissing
from numba_marlin.hardware.limits import WARP_LANES
from numba_marlin.judge.task import Task, called, dimensions

MOST_EDGES = 24  # of a task, however many sizes it has
DRAWN = "drawn"


@dataclass(frozen=True)
class Case:
    """``why`` it is tried; ``sizes`` by name; ``seed`` of what fills the inputs."""

    why: str
    sizes: tuple[tuple[str, int], ...]
    seed: int

    @property
    def named(self) -> dict[str, int]:
        return dict(self.sizes)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.sizes) or "no sizes"


def valid(task: Task, sizes: dict[str, int]) -> bool:
    return bool(called(task.valid, sizes, "valid"))


def edges(task: Task, seed: int) -> list[Case]:
    """The smallest and largest of all sizes, and each size around warps, blocks and powers of two
    with the others in the middle. ValueError if no combination is valid."""
    found: dict[tuple[tuple[str, int], ...], str] = {}
    for why, chosen in _edges(task):
        sizes = tuple(chosen.items())
        if sizes not in found and valid(task, chosen):
            found[sizes] = why
    if not found:
        found = _any_valid(task, seed)
    kept = list(found.items())[:MOST_EDGES]
    return [Case(why, sizes, seed + number) for number, (sizes, why) in enumerate(kept)]


def _edges(task: Task) -> Iterator[tuple[str, dict[str, int]]]:
    values = {name: size.values() for name, size in task.sizes.items()}
    smallest = {name: each[0] for name, each in values.items()}
    middle = {name: each[len(each) // 2] for name, each in values.items()}
    yield "smallest", smallest
    yield "largest", {name: each[-1] for name, each in values.items()}
    yield "in the middle", middle
    marks = _marks(task, middle)
    for name, each in values.items():
        yield f"smallest {name}", middle | {name: each[0]}
        yield f"largest {name}", middle | {name: each[-1]}
        for edge in task.sizes[name].edges:
            yield f"edge of {name}", middle | {name: edge}
    for value, why in marks:
        for name, each in values.items():
            if value in each:
                yield f"{name} {why}", (smallest if len(values) == 1 else middle) | {name: value}


def _marks(task: Task, middle: dict[str, int]) -> list[tuple[int, str]]:
    threads = int(np.prod(dimensions("block", called(task.block, middle, "block"))))
    marks: dict[int, str] = {}
    for center, what in ((threads, "threads of a block"), (WARP_LANES, "lanes of a warp")):
        for step, word in ((1, "one more than the"), (-1, "one less than the"), (0, "the")):
            marks.setdefault(center + step, f"{word} {center} {what}")
    marks.setdefault(2 * threads + 1, f"one more than two blocks of {threads}")
    for prime in (7, 61, 131, 257):
        marks.setdefault(prime, "ragged")
    return list(marks.items())


def _any_valid(task: Task, seed: int) -> dict[tuple[tuple[str, int], ...], str]:
    rng = np.random.default_rng(seed)
    for _ in range(10_000):
        drawn = {
            name: int(size.values()[rng.integers(len(size.values()))])
            for name, size in task.sizes.items()
        }
        if valid(task, drawn):
            return {tuple(drawn.items()): "valid"}
    raise ValueError("valid refuses all sizes that were drawn: the task has no case")


def drawn(
    task: Task, count: int, seed: int, fails: Callable[[Case], str], over: Callable[[], bool]
) -> Case | None:
    """Try ``count`` drawn cases; the smallest one found for which ``fails`` says why ("" if it does
    not fail), None if none. Nothing new is tried once ``over``."""
    if not count or not task.sizes:
        return None
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError as error:
        raise CapabilityMissing(
            "drawing cases needs hypothesis: pip install 'numba-marlin[judge]', or --cases 0"
        ) from error
    known: dict[Case, str] = {}
    failed: list[Case] = []
    strategy = st.fixed_dictionaries(
        {name: st.sampled_from(size.values()) for name, size in task.sizes.items()}
    )

    def attempt(sizes, content) -> None:
        case = Case(DRAWN, tuple(sizes.items()), content)
        if case not in known:
            if over() or not valid(task, sizes):
                return
            known[case] = fails(case)
        if known[case]:
            failed.append(case)
            raise Failed

    given = hypothesis.given(strategy, st.integers(0, 1 << 16))
    settings = hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        report_multiple_bugs=False,
    )
    test = hypothesis.seed(seed)(settings(given(attempt)))
    assert not inspect.signature(test).parameters
    try:
        test()
    except Failed:
        return failed[-1]
    return None


class Failed(Exception):
    """A drawn case fails: for Hypothesis, which then looks for a smaller one."""

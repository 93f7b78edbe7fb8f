"""What work will take, said before it begins; what would take hours, or more memory than the
computer has, is refused with the sizes that would do. ``--anyway`` runs it all the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba_marlin.wording import byte_count, duration, number

if TYPE_CHECKING:
    from numba_marlin.execution.expected import Expected

MOST_SECONDS = 600.0
SAID_SECONDS = 10.0  # less is not worth a line
ROWS, COLUMNS, DEPTH = 1, 64, 128  # steps in which m, n and k may be smaller, for every kernel
# of a container: version 2 and version 1 of control groups
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def add_argument(parser) -> None:
    parser.add_argument(
        "--anyway",
        action="store_true",
        help=f"run also what is expected to take more than {duration(MOST_SECONDS)}, or more"
        " memory than this computer has",
    )


def check(
    args, report, problem: Any, expect: Callable[[Any], Expected], given: str | None = None
) -> Expected:
    """Say what ``expect(problem)`` says. ValueError if that is too much, unless --anyway was given.
    given: the file that decides n and k, None if they may be others."""
    found = expect(problem)
    report.data["expected"] = {
        "seconds": round(found.seconds, 1),
        "bytes": found.nbytes,
        "instructions": round(found.instructions),
    }
    text = f"about {duration(found.seconds)} and {byte_count(found.nbytes)} of memory"
    if found.instructions:
        text += f", {number(found.instructions)} warp instructions on the PTX machine"
    if args.anyway or _affordable(found):
        if found.seconds >= SAID_SECONDS:
            report.row("expected", text)
        return found
    limit = f"more than {duration(MOST_SECONDS)}"
    if found.nbytes > memory():
        limit = f"more than this computer's {byte_count(memory())}"
    least = _smaller(problem, expect, ("m",) if given else ("m", "n", "k"))
    advice = f"{given} is too large for any m" if given else "no smaller sizes would do"
    if least is not None:
        smaller, takes = least
        advice = (
            f"m={smaller.m}, n={smaller.n}, k={smaller.k} would take about"
            f" {duration(takes.seconds)} and {byte_count(takes.nbytes)}"
        )
    raise ValueError(
        f"m={problem.m}, n={problem.n}, k={problem.k} would take {text}, {limit}; {advice};"
        " --anyway runs it all the same"
    )


def _affordable(found: Expected) -> bool:
    return found.seconds <= MOST_SECONDS and found.nbytes <= memory()


def _smaller(
    problem: Any, expect: Callable[[Any], Expected], movable: tuple[str, ...]
) -> tuple[Any, Expected] | None:
    """(the problem with the largest of its sizes halved until it can be afforded, what it takes);
    None if there is none."""
    least = {"m": ROWS, "n": COLUMNS, "k": max(DEPTH, problem.group_size)}
    sizes = {name: getattr(problem, name) for name in movable}
    while any(sizes[name] > least[name] for name in movable):
        name = max(movable, key=lambda each: sizes[each] / least[each])
        sizes[name] = max(least[name], sizes[name] // 2 // least[name] * least[name])
        with contextlib.suppress(ValueError):  # a size that no kernel takes
            smaller = replace(problem, **sizes)
            found = expect(smaller)
            if _affordable(found):
                return smaller, found
    return None


def memory() -> float:
    """Bytes of this computer, or of the container; infinite if it does not say."""
    found = [float("inf")]
    with contextlib.suppress(AttributeError, ValueError, OSError):  # not on every system
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max"
            found.append(float(Path(path).read_text()))
    return min(found)

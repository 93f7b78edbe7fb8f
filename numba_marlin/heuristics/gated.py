"""Where the activation of a mixture's experts is computed: in the launch of the kernel that
multiplies, or in a pass of its own behind it.

The kernel is the one that is chosen for the same product without an activation: a pass over the
result costs less than a kernel for few rows that multiplies many. So a kernel that does not take
the activation (``TakesExperts``) leaves the columns of gate and up, and a pass follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numba_marlin.hardware.devices import Device
from numba_marlin.heuristics.candidates import Candidate, candidate, rank
from numba_marlin.kernels.registry import find_kernel
from numba_marlin.problems import EXPERTS, Problem


def launched(problem: Problem, chosen: Callable[[Problem], str]) -> tuple[Problem, str | None]:
    """(what the launch computes: the problem, or that without its activation; why the activation is
    a pass of its own, None if it is not). chosen: (a problem without an activation) -> kernel."""
    if problem.kind != EXPERTS or problem.activation is None:
        return problem, None
    plain = replace(problem, activation=None)
    why = pass_of_its_own(problem, chosen(plain))
    return (problem, None) if why is None else (plain, why)


def pass_of_its_own(problem: Problem, kernel: str) -> str | None:
    """Why it is one with this kernel, in words; None if it is not."""
    refusals = find_kernel(kernel).takes.refusals(problem)
    if not refusals:
        return None
    return (
        f"{problem.activation} is a pass of its own behind the launch: {kernel} does not take"
        f" {'; nor '.join(refusals)}"
    )


def with_reason(found: Candidate, why: str) -> Candidate:
    return replace(found, reasons=(*found.reasons, why))


def ranked(problem: Problem, device: Device) -> tuple[Candidate, ...]:
    """``rank``, of an activation that is a pass of its own the candidates without it: those that
    have it in their launch, with it."""
    plain, why = launched(problem, lambda plain: rank(plain, device)[0].kernel)
    if why is None:
        return rank(problem, device)
    found = {}
    for each in rank(plain, device):
        why = pass_of_its_own(problem, each.kernel)
        if why is not None:
            found[each.kernel, each.config] = with_reason(each, why)
        else:
            own = candidate(problem, device, each.kernel)
            found[own.kernel, own.config] = own
    return tuple(found.values())

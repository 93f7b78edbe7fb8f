"""Heuristics: choose kernel, configuration and grid for a problem, and explain the choice. Pure
functions of numbers; no CUDA, no GPU.

In:  a problem (``problems``: a weight's, or that of two block-scaled operands) and a ``Device``
     (``hardware.devices``).
Out: ``rank`` -> tuple of ``Candidate``, best first.

The kernels propose their configurations and predict their times themselves
(``KernelDefinition.chooser``), from figures measured on an H200; for another device, only times
that memory limits are scaled, by its bandwidth. This room collects the proposals, drops those that
the device cannot hold or run, and sorts the rest. If ``bench --autotune`` has measured the
candidates on this computer, its winner comes first (``tuned``). ``invariance`` has the rule for
problems with ``batch_invariant``.

``explain`` returns the same as an ``Explanation``, with ``str()`` for people and ``to_dict()`` for
programs.

Every figure in ``Candidate.figures`` follows from the shapes and the device's numbers: it is
modelled. An impossible problem raises ValueError, naming the value and the rule. May import
compiler (cache and digest), hardware, kernels and problems. ``Problem`` is an alias of
``WeightProblem``.
"""

from numba_marlin.heuristics.candidates import (
    LADDER,
    Candidate,
    candidate,
    check_config,
    check_device,
    check_takes,
    configured,
    default_config,
    devices_for,
    find_kernel,
    has_instructions,
    kernel_of,
    rank,
)
from numba_marlin.problems import WeightProblem as Problem

__all__ = [
    "LADDER",
    "Candidate",
    "Explanation",
    "Problem",
    "candidate",
    "check_config",
    "check_device",
    "check_takes",
    "configured",
    "default_config",
    "devices_for",
    "explain",
    "explain_problem",
    "find_kernel",
    "has_instructions",
    "kernel_of",
    "rank",
]


def __getattr__(name):
    # A product needs the candidates, but not their explanation.
    if name not in ("Explanation", "explain", "explain_problem"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numba_marlin.heuristics import explanation

    return getattr(explanation, name)

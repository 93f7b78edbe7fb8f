"""Which kernel, in which configuration, on which grid, and why. Pure: numbers in, ranked candidates
out; no CUDA, no GPU.

In:  a problem (``problems``: a weight's, or that of two block-scaled operands) and a ``Device``
     (``hardware.devices``).
Out: ``rank`` -> tuple of ``Candidate``, best first.

The kernels propose their configurations and predict their times themselves
(``KernelDefinition.chooser``), from figures that were measured on an H200; another device's memory
scales what memory limits, nothing else. This room asks them, leaves out what the device cannot hold
or run, and sorts. Where ``bench --autotune`` has measured the candidates on this machine, its
winner leads (``tuned``). A problem may ask to be ``batch_invariant``: ``invariance`` has the rule.

``explain`` wraps the same in an ``Explanation`` whose ``str()`` is for people and whose
``to_dict()`` is for programs.

Every figure in ``Candidate.figures`` follows from the shapes and the device's numbers: it is
modelled. Impossible problems are ValueErrors that name the value and the rule. May import compiler
(cache and digest), hardware, kernels and problems. ``Problem`` is here for who chooses for weights:
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
    # A product needs the candidates, and not the words for them.
    if name not in ("Explanation", "explain", "explain_problem"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numba_marlin.heuristics import explanation

    return getattr(explanation, name)

"""Which kernel, in which configuration, on which grid, and why. Pure: numbers in, ranked candidates
out; no CUDA, no GPU.

In:  a ``Problem`` (sizes and types) and a ``Device`` (``hardware/devices.py``).
Out: ``rank`` -> tuple of ``Candidate``, best first. Every kernel has a module here that proposes
    configurations and predicts their times, from figures
     that were measured on an H200; another device's memory scales what memory limits, nothing else.
         A configuration that the device cannot hold
     or run is left out. Where ``bench --autotune`` has measured the candidates on this machine, its
         winner leads (``tuned``).
A problem may ask to be ``batch_invariant``: ``invariance`` has the rule.
``explain`` wraps the same in an ``Explanation`` whose ``str()`` is for people and whose
    ``to_dict()`` is for programs.

Every figure in ``Candidate.figures`` follows from the shapes and the device's numbers: it is
modelled. Impossible problems are ValueErrors that name the value and the rule. May import devices,
compiler (cache and digest), formats, kernels and layout.
"""

from numba_marlin.heuristics.candidates import (
    LADDER,
    Candidate,
    candidate,
    check_config,
    check_takes,
    default_config,
    find_kernel,
    kernel_of,
    rank,
)
from numba_marlin.heuristics.problem import Problem

__all__ = [
    "LADDER",
    "Candidate",
    "Explanation",
    "Problem",
    "candidate",
    "check_config",
    "check_takes",
    "default_config",
    "explain",
    "find_kernel",
    "kernel_of",
    "rank",
]


def __getattr__(name):
    # A product needs the candidates, and not the words for them.
    if name not in ("Explanation", "explain"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numba_marlin.heuristics import explanation

    return getattr(explanation, name)

"""Problems: the checked sizes and types of a product. Pure numbers; no kernel, no device.

``WeightProblem`` (``weights``): activations times a quantised weight. ``BlockProblem``
(``operands``): two matrices of small floats whose blocks share a scale. ``ActivationsProblem``
(``activations``): activations in 8 bits times a quantised weight. ``ExpertsProblem`` (``experts``):
activations times the weights of a mixture's experts. All are frozen dataclasses that raise
ValueError, naming the value and the rule, for problems that no kernel supports. All implement the
``Problem`` protocol (``protocol``), on which the rooms above the compiler depend.

May import formats.
"""

from numba_marlin.problems.protocol import ACTIVATIONS, EXPERTS, KINDS, OPERANDS, WEIGHTS, Problem
from numba_marlin.problems.weights import LARGEST_DIMENSION, WeightProblem

__all__ = [
    "ACTIVATIONS",
    "EXPERTS",
    "KINDS",
    "LARGEST_DIMENSION",
    "OPERANDS",
    "WEIGHTS",
    "ActivationsProblem",
    "BlockProblem",
    "ExpertsProblem",
    "Problem",
    "WeightProblem",
]


# A product with a weight needs nothing of the other kinds.
_LATE = {
    "BlockProblem": "operands",
    "ActivationsProblem": "activations",
    "ExpertsProblem": "experts",
}


def __getattr__(name):
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)

"""Problems: the checked sizes and types of a product. Pure numbers; no kernel, no device.

``WeightProblem`` (``weights``): activations times a quantised weight. ``BlockProblem``
(``operands``): two matrices of small floats whose blocks share a scale. Both are frozen dataclasses
that raise ValueError, naming the value and the rule, for problems that no kernel supports. Both
implement the ``Problem`` protocol (``protocol``), on which the rooms above the compiler depend.

May import formats.
"""

from numba_marlin.problems.protocol import KINDS, OPERANDS, WEIGHTS, Problem
from numba_marlin.problems.weights import LARGEST_DIMENSION, WeightProblem

__all__ = [
    "KINDS",
    "LARGEST_DIMENSION",
    "OPERANDS",
    "WEIGHTS",
    "BlockProblem",
    "Problem",
    "WeightProblem",
]


def __getattr__(name):
    # A product with a weight needs nothing of block-scaled operands.
    if name != "BlockProblem":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numba_marlin.problems.operands import BlockProblem

    return BlockProblem

"""What is to be multiplied: sizes and types, checked. Pure numbers; no kernel, no device.

``WeightProblem`` (``weights``): activations times a quantised weight. ``BlockProblem``
(``operands``): two matrices of small floats whose blocks share a scale. Both are frozen dataclasses
that refuse with a ValueError, naming the value and the rule, what no kernel takes; both keep the
``Problem`` protocol (``protocol``), and what stands above the compiler asks for nothing else.

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

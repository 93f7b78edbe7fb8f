"""Bounds of rounding errors for ``Task.bound``."""

from __future__ import annotations

import numpy as np


def sum_bound(terms, magnitude, dtype: str = "float32"):
    """How far a sum of ``terms`` products, added in ``dtype`` in any order, may be from the exact
    one: ``(t + 2) u / (1 - (t + 2) u) * magnitude`` with u the unit roundoff, and what underflow
    may lose (N. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1: the
    two more are the product's rounding and the result's).

    ``magnitude``: the sum of the terms' absolute values, an array of the result's shape or a
    number. Returns the same. ValueError if the sum is so long that there is no bound.
    """
    info = np.finfo(dtype)
    steps = np.asarray(terms, np.float64) + 2
    share = steps * float(info.eps) / 2
    if (share >= 1).any():
        raise ValueError(f"a sum of {terms} terms has no bound in {dtype}")
    return share / (1 - share) * np.asarray(magnitude) + steps * float(info.smallest_subnormal)

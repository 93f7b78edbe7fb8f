"""The arrays of a weight, by the names that kernels have for them."""

from __future__ import annotations

import numpy as np


def operands(weight) -> dict[str, np.ndarray]:
    """The arrays of a packed weight, by the names that kernels have for them."""
    arrays_of = {"b": weight.qweight, "scales": weight.scales} | {
        name: getattr(weight, name, None) for name in ("zeros", "factors")
    }
    return {name: array for name, array in arrays_of.items() if array is not None}

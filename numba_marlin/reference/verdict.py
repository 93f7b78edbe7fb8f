"""``check``: compares a kernel's result with the bounds of ``weights.bounds``, element by
element."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numba_marlin.formats.floats import HALF_TYPES, round_to
from numba_marlin.reference.weights import Bounds, Weight, bounds


@dataclass(frozen=True)
class Report:
    """The verdict of ``check``. ``worst``: (row, column) of the largest error / bound."""

    ok: bool
    failures: int
    size: int
    max_error: float
    max_ratio: float
    worst: tuple[int, int]
    actual_at_worst: float
    expected_at_worst: float
    bound_at_worst: float

    def __str__(self) -> str:
        verdict = "within bounds" if self.ok else f"{self.failures} of {self.size} out of bounds"
        return (
            f"{verdict}: largest error {self.max_error:.3g}; worst error/bound {self.max_ratio:.3g}"
            f" at {self.worst}: got {self.actual_at_worst:.6g}, expected"
            f" {self.expected_at_worst:.6g} +- {self.bound_at_worst:.3g}"
        )


def check(
    actual: np.ndarray,
    x: np.ndarray,
    weight: Weight,
    bias: np.ndarray | None = None,
    *,
    order: str = "any",
    method: str | None = None,
) -> Report:
    """Check a kernel's result ``actual`` [m, n], float16, bfloat16 or float32, elementwise against
    its error bound -> Report. NaN never passes.

    x, weight, bias, order, method: as in ``weights.error_bound``. ``max_error`` and ``max_ratio``
    ignore correct infinities, and are inf if a NaN or an infinity is wrong. Raises TypeError or
    ValueError for another dtype or shape. ``assert report.ok, report`` prints the worst element.
    """
    actual = _checked_type(actual)
    return judged(
        actual, bounds(x, weight, bias, order=order, method=method, out_dtype=actual.dtype)
    )


def _checked_type(actual: np.ndarray) -> np.ndarray:
    actual = np.asarray(actual)
    if actual.dtype.name not in (*HALF_TYPES, "float32"):
        raise TypeError(f"actual.dtype={actual.dtype} must be float16, bfloat16 or float32")
    return actual


def judged(actual: np.ndarray, allowed: Bounds) -> Report:
    """``check`` for bounds that are there already, made for the type of ``actual``."""
    actual = _checked_type(actual)
    if actual.shape != allowed.product.shape:
        raise ValueError(f"actual.shape={actual.shape} must be (m, n)={allowed.product.shape}")
    low = round_to(allowed.product - allowed.accumulated, actual.dtype).astype(np.float64)
    high = round_to(allowed.product + allowed.accumulated, actual.dtype).astype(np.float64)
    values = actual.astype(np.float64)
    passed = (low <= values) & (values <= high)  # False for NaN.
    with np.errstate(invalid="ignore"):
        error = np.abs(values - allowed.product)
    infinite = ~np.isfinite(values)
    error[infinite & passed] = 0
    error[infinite & ~passed] = np.inf
    ratio = error / allowed.rounded
    # A wrong element comes first, even if another one has the larger ratio.
    worst = np.unravel_index(
        int(np.argmax(np.where(passed, 0, 2.0**64) + np.minimum(ratio, 2.0**60))), ratio.shape
    )
    return Report(
        ok=bool(passed.all()),
        failures=int((~passed).sum()),
        size=actual.size,
        max_error=float(error.max()),
        max_ratio=float(ratio.max()),
        worst=(int(worst[0]), int(worst[1])),
        actual_at_worst=float(values[worst]),
        expected_at_worst=float(allowed.product[worst]),
        bound_at_worst=float(allowed.rounded[worst]),
    )

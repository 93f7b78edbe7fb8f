"""Summary of repeated timings: median and spread. Pure.

The spread is given by the quartiles: one disturbed round in nine moves neither them nor the median.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """``low`` and ``high`` are the first and third quartile (linear between neighbours), ``least``
    and ``most`` the extremes."""

    median: float
    low: float
    high: float
    least: float
    most: float
    count: int


def summarise(values) -> Summary:
    """Summarise times or ratios of times. ValueError if there are no values, or if one is not
    positive and finite."""
    values = [float(each) for each in values]
    if not values:
        raise ValueError("values must hold at least one number")
    for each in values:
        if not 0 < each < float("inf"):
            raise ValueError(f"values must be positive and finite, one is {each}")
    low, _, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    return Summary(statistics.median(values), low, high, min(values), max(values), len(values))

"""What drawing needs in text and in HTML alike: numbers as people write them, ticks of an axis,
what a cell says."""

from __future__ import annotations

import math
import re

from numba_marlin.views.page import Cell

NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(e[-+]?\d+)?( ?(%|x|[kMGT]?B|[KMG]iB|us|ms|s))?")


def short(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else str(cell)


def numeric(texts: list[str]) -> bool:
    """Whether a column holds numbers, and perhaps blanks."""
    filled = [text for text in texts if text.strip(" -")]
    return bool(filled) and all(NUMBER.fullmatch(text.strip()) for text in filled)


def number(value: float) -> str:
    """Three figures, with thousands' commas; integers whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def engineering(value: float) -> str:
    """1.2e12 -> "1.2 T"."""
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers from low to high, about ``count``."""
    if high <= low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if raw <= power * factor * (1 + 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, int(high / step + 1e-9) + 1)]


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high."""
    return [
        10.0**i
        for i in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    ]

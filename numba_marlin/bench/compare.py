"""Compares two files of rows: a verdict on every cell that both have. Pure.

The rule. A time is its median ``us`` and the quartiles ``us_spread`` (without them the extremes, or
the median alone). The change is median B / median A - 1; its interval goes from (B's lower quartile
/ A's upper) - 1 to (B's upper / A's lower) - 1. With the tolerance t (2% unless told):

    faster      the change is below -t, and its whole interval below 0
    slower      the change is above t, and its whole interval above 0
    same        the change is within t, and its whole interval within 2 t
    ambiguous   anything else: measure again, with more rounds

``by="speedup"`` compares speed-ups over cuBLAS of the same rounds instead (inverted, so that less
is better, as with times): what drifts from run to run, mainly clocks, then cancels. Per file and
cell, the row of the heuristics' choice counts, else the fastest; ``each=True`` matches kernel,
configuration and compiler one by one. The last of several repetitions counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from numba_marlin.bench import rows as rows_module

VERDICTS = ("faster", "slower", "same", "ambiguous")
MEASURES = ("us", "speedup")


@dataclass(frozen=True)
class Verdict:
    """``change``: of the time, -0.1 is 10% less; ``interval``: of the change."""

    cell: tuple
    a: dict
    b: dict
    change: float
    interval: tuple[float, float]
    verdict: str

    def to_dict(self) -> dict:
        return {
            **dict(self.cell),
            "verdict": self.verdict,
            "change": round(self.change, 5),
            "interval": [round(each, 5) for each in self.interval],
            "a": _brief(self.a),
            "b": _brief(self.b),
        }


@dataclass(frozen=True)
class Comparison:
    verdicts: tuple[Verdict, ...]
    only_a: int
    only_b: int
    notes: tuple[str, ...]

    @property
    def counts(self) -> dict[str, int]:
        counted = Counter(each.verdict for each in self.verdicts)
        return {name: counted[name] for name in VERDICTS}


def judge(change: float, low: float, high: float, tolerance: float) -> str:
    """The verdict by the rule above."""
    if change < -tolerance and high < 0:
        return "faster"
    if change > tolerance and low > 0:
        return "slower"
    if abs(change) <= tolerance and -2 * tolerance <= low and high <= 2 * tolerance:
        return "same"
    return "ambiguous"


def compare(
    a: list[dict], b: list[dict], tolerance: float = 0.02, by: str = "us", each: bool = False
) -> Comparison:
    """Compare rows a and b. ValueError if they share no cell, or if a row lacks the measure
    ``by``."""
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance={tolerance} must be from 0 to below 1")
    if by not in MEASURES:
        raise ValueError(f"by={by!r} must be one of {', '.join(MEASURES)}")
    pick = _one_by_one if each else _one_a_cell
    left, right = pick(a), pick(b)
    shared = [key for key in left if key in right]
    if not shared:
        raise ValueError("the files have no cell in common: nothing can be compared")
    verdicts = []
    for key in shared:
        (median_a, low_a, high_a), (median_b, low_b, high_b) = (
            _measure(side[key], by) for side in (left, right)
        )
        change, low, high = median_b / median_a - 1, low_b / high_a - 1, high_b / low_a - 1
        verdicts.append(
            Verdict(
                rows_module.cell(left[key]),
                left[key],
                right[key],
                change,
                (low, high),
                judge(change, low, high, tolerance),
            )
        )
    return Comparison(
        tuple(verdicts), len(left) - len(shared), len(right) - len(shared), _notes(verdicts)
    )


def _one_by_one(rows: list[dict]) -> dict[tuple, dict]:
    return rows_module.newest(rows)


def _one_a_cell(rows: list[dict]) -> dict[tuple, dict]:
    chosen = {rows_module.cell(row): row for row in rows if row.get("chosen")}
    best: dict[tuple, dict] = {}
    for (cell, _), row in rows_module.newest(rows).items():
        if cell not in best or row["us"] < best[cell]["us"]:
            best[cell] = row
    return {cell: chosen.get(cell, row) for cell, row in best.items()}


def _measure(row: dict, by: str) -> tuple[float, float, float]:
    """(median, lower, upper) of a time, or of one over a speed-up."""
    value = row.get(by)
    if not value:
        raise ValueError(
            f"by={by!r}: the row of {row['kernel']} m={row['m']} n={row['n']} k={row['k']} has none"
        )
    low, high = row.get(f"{by}_spread") or (
        (row["us_min"], row["us_max"]) if by == "us" and "us_min" in row else (value, value)
    )
    return (value, low, high) if by == "us" else (1 / value, 1 / high, 1 / low)


def _notes(verdicts: list[Verdict]) -> tuple[str, ...]:
    notes = []
    for name in ("device", "driver"):
        sides = [sorted({str(getattr(each, side).get(name)) for each in verdicts}) for side in "ab"]
        if sides[0] != sides[1]:
            notes.append(f"{name}s differ: {', '.join(sides[0])} and {', '.join(sides[1])}")
    throttled = sum(
        bool((getattr(each, side).get("clocks") or {}).get("throttle"))
        for each in verdicts
        for side in "ab"
    )
    if throttled:
        notes.append(
            f"{throttled} of {2 * len(verdicts)} measurements were made while the GPU held its"
            " clocks back"
        )
    return tuple(notes)


def _brief(row: dict) -> dict:
    return {
        name: row[name]
        for name in ("kernel", "config", "us", "us_spread", "speedup", "commit", "date")
        if name in row
    }

"""Rows: a measurement as a dict, stored as a line of JSON. Reading, appending, resuming, and the
identity of rows. Pure.

A cell is a problem (``PROBLEM_FIELDS``). A row of it has the contender (kernel, config, compiler),
the times (``us``: the median, ``us_spread``: the quartiles, ``us_min``, ``us_max``,
microseconds per launch; ``cublas_us`` and ``speedup`` alike, from the same rounds), the work
(``bytes`` that must move at least once, ``flops``), the shares of the ceilings measured in the same
run (``bandwidth_share``, ``compute_share``; ``limit_share``: the larger term's time over
``us``), and the environment (``device``, ``driver``, ``versions``, ``clocks``, ``date``,
``commit``, ``sources``: digest of the kernels' sources). ``dependent``: the kernel uses
programmatic dependent launch, so that its time is what a launch adds to a sequence of launches.

Files are JSON lines, appended whole and flushed row by row, so that an interrupted run keeps its
rows; an incomplete last line is dropped.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

# those of problems.WeightProblem, of problems.BlockProblem and of problems.experts.ExpertsProblem
PROBLEM_FIELDS = (
    "m",
    "n",
    "k",
    "group_size",
    "dtype",
    "bits",
    "zeros",
    "scale_dtype",
    "bias",
    "batch_invariant",
    "codes",
    "format",
    "result",
    "source",
    "activation",
    "rounding",
    "experts",
    "top_k",
    "x_of_pairs",
    "combine",
)
# of rows that do not say
DEFAULTS = {
    "dtype": "float16",
    "bits": 4,
    "zeros": None,
    "scale_dtype": "float16",
    "bias": False,
    "batch_invariant": False,
    "codes": "integer",
}
REQUIRED = ("kernel", "m", "n", "k", "group_size", "us")


def cell(row: dict) -> tuple:
    """The problem of a row, hashable and sortable."""
    return tuple((name, row.get(name, DEFAULTS.get(name))) for name in PROBLEM_FIELDS)


def contender(row: dict) -> tuple:
    """The contender of a row: kernel, configuration and compiler, hashable."""
    return row["kernel"], json.dumps(row.get("config"), sort_keys=True), row.get("compiler")


def identity(row: dict) -> tuple:
    """Rows with equal identity are repetitions of the same measurement in the same environment."""
    return cell(row), contender(row), row.get("device"), row.get("driver"), row.get("sources")


def check(row: object, where: str) -> dict:
    """``row``, or ValueError that names ``where`` and what is wrong."""
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a row must be a JSON object, not {type(row).__name__}")
    missing = [name for name in REQUIRED if name not in row]
    if missing:
        raise ValueError(
            f"{where}: a row must have {', '.join(REQUIRED)}; {', '.join(missing)} is missing"
        )
    for name, rule, holds in _RULES:
        if name in row and not holds(row[name]):
            raise ValueError(f"{where}: {name}={_short(row[name])} must be {rule}")
    return row


def _positive(value: object) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and 0 < value <= sys.float_info.max
    )


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _interval(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(map(_positive, value))
        and value[0] <= value[1]
    )


def _scalar(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float))


def _clocks(value: object) -> bool:
    return not value or isinstance(value, dict)


def _plain_fields(value: object) -> bool:
    return value is None or isinstance(value, dict) and all(map(_scalar, value.values()))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


_SHOWN = 60  # characters of a wrong value
_COUNTS = ("m", "n", "k", "group_size")
# (field, what it must be in words, whether it is): of fields that a row may have
_RULES = (
    ("kernel", "a string", lambda value: isinstance(value, str)),
    *((name, "a whole number", _count) for name in _COUNTS),
    *(
        (name, "a string, a number or null", _scalar)
        for name in (*PROBLEM_FIELDS, "compiler", "device", "driver", "sources")
        if name not in _COUNTS
    ),
    *((name, "positive and finite", _positive) for name in ("us", "us_min", "us_max")),
    *(
        (name, "positive and finite, or null", lambda value: value is None or _positive(value))
        for name in ("cublas_us", "speedup")
    ),
    *(
        (
            name,
            "two positive numbers, the lower first, or null",
            lambda value: value is None or _interval(value),
        )
        for name in ("us_spread", "cublas_us_spread", "speedup_spread")
    ),
    ("clocks", "an object", _clocks),
    ("config", "an object of plain values, or null", _plain_fields),
    *((name, "a string, a number or null", _scalar) for name in ("commit", "date")),
)


def read(path: str | os.PathLike) -> list[dict]:
    """The rows of a JSON-lines file, or of the object that ``numba-marlin bench --json`` prints.
    ValueError if it is neither."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: must be a text file of JSON ({error})") from error
    try:
        whole = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"{path}: JSON is nested too deeply ({error})") from error
    except ValueError:
        return _lines(path, text)
    if isinstance(whole, dict) and "rows" in whole:
        if not isinstance(whole["rows"], list):
            raise ValueError(f"{path}: rows must be a list, not {type(whole['rows']).__name__}")
        return [
            check(each, f"{path}, row {number}")
            for number, each in enumerate(whole["rows"], start=1)
        ]
    return [check(whole, f"{path}, line 1")]


def _lines(path: Path, text: str) -> list[dict]:
    rows = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines) and not text.endswith("\n"):
                break  # incomplete: the run that wrote it was killed
            raise ValueError(f"{path}, line {number}: {error}") from error
        rows.append(check(row, f"{path}, line {number}"))
    return rows


class Recorder:
    """Appends rows to a file (``path`` None: only keeps them in memory).

    ``done(row)`` finds a row of the same identity in the file. ``rows`` holds the rows of this run.
    """

    def __init__(self, path: str | os.PathLike | None):
        self.path = None if path is None else Path(path)
        self.rows: list[dict] = []
        self._file = None
        self._known: dict[tuple, dict] = {}
        if self.path is not None and self.path.exists():
            self._known = {identity(row): row for row in read(self.path)}
            _drop_torn_line(self.path)

    def done(self, row: dict) -> dict | None:
        """The newest row of the same identity that the file had, or None."""
        return self._known.get(identity(row))

    def write(self, row: dict) -> None:
        self.rows.append(row)
        if self.path is None:
            return
        if self._file is None:
            self._file = open(self.path, "a", encoding="utf-8")
        self._file.write(json.dumps(row, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def _drop_torn_line(path: Path) -> None:
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return
    start = data.rfind(b"\n") + 1
    try:
        json.loads(data[start:])
    except ValueError:
        os.truncate(path, start)
    else:  # complete, only its newline is missing
        with open(path, "ab") as file:
            file.write(b"\n")


def newest(rows) -> dict[tuple, dict]:
    """(cell, contender) -> the last row, in order of first appearance."""
    found: dict[tuple, dict] = {}
    for row in rows:
        found[cell(row), contender(row)] = row
    return found

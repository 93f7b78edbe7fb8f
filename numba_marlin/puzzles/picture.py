"""Which thread wrote which element, as text."""

from __future__ import annotations

import numpy as np

from numba_marlin.judge.watching import NOBODY

ROWS = 16
ONE_ROW = 16  # elements of an array of one dimension are shown in rows
WIDTH = 100
NOTHING = -2  # past the end of the array
SIGNS = {NOBODY: ".", NOTHING: ""}


def draw(name: str, writers: np.ndarray, wrong: np.ndarray, block_threads: int) -> str:
    """writers: int [shape], as in ``launch.Run``; wrong: bool, of the same shape. An element is
    shown by its thread's number in the block; ``.``: never written; ``!``: a wrong value."""
    digits = len(str(block_threads - 1))
    most = (WIDTH - 6) // (digits + 2)
    width = writers.shape[-1] if writers.ndim > 1 else ONE_ROW
    if writers.ndim > 1:
        flat, bad = writers.reshape(-1, width), wrong.reshape(-1, width)
    else:
        rows = -(-writers.size // width)
        flat = np.full((rows, width), NOTHING)
        bad = np.zeros((rows, width), bool)
        flat.flat[: writers.size], bad.flat[: writers.size] = writers, wrong
    columns = min(width, most)
    lines = [f"{name}: who wrote it (thread of its block; . nobody, ! a wrong value)"]
    for row, (threads, faults) in enumerate(zip(flat[:ROWS, :columns], bad[:ROWS])):
        cells = "".join(
            " " + SIGNS.get(thread, str(thread % block_threads)).rjust(digits) + " !"[fault]
            for thread, fault in zip(threads.tolist(), faults.tolist())
        )
        first = row if writers.ndim > 1 else row * width
        lines.append(f"  {first:>4}{cells}".rstrip())
    cut = [
        f"{kind} {shown} of {total}"
        for kind, shown, total in (
            ("rows", min(ROWS, len(flat)), len(flat)),
            ("columns", columns, width),
        )
        if shown < total
    ]
    return "\n".join(lines + ([f"  (the first {', '.join(cut)})"] if cut else []))

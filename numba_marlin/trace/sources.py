"""The kernel's source, as it was when the kernel was recorded: the lines that instructions come
from, and a few around each. A trace keeps them, header["source"]: {file: {line: text}}."""

from __future__ import annotations

from pathlib import Path

from numba_marlin.trace.record import Trace

AROUND = 3  # lines before and behind
PACKAGE = Path(__file__).resolve().parents[1]
LONGEST = 200  # characters of a line


def lines_of(places: list[str | None]) -> dict[str, dict[str, str]]:
    """The source at "file:line" and around it; of files that are not here, nothing. Files of this
    package are named from the folder that it lies in."""
    wanted: dict[str, set[int]] = {}
    for place in {each for each in places if each}:
        file, _, line = place.rpartition(":")
        if line.isdigit():
            wanted.setdefault(file, set()).update(range(int(line) - AROUND, int(line) + AROUND + 1))
    found = {}
    for file, numbers in wanted.items():
        path = PACKAGE.parent / file
        if path.suffix == ".py" and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace").splitlines()
            found[file] = {
                str(number): text[number - 1][:LONGEST]
                for number in sorted(numbers)
                if 0 < number <= len(text)
            }
    return found


def around(trace: Trace, pc: int) -> list[tuple[int, str, bool]]:
    """(number, text, whether the instruction is of it) of the lines of source around that of an
    instruction; [] if the trace has none."""
    place = trace.instructions[pc]["source"]
    file, _, line = (place or "").rpartition(":")
    known = trace.header.get("source", {}).get(file, {})
    if not line.isdigit() or line not in known:
        return []
    here = int(line)
    return [
        (number, known[str(number)], number == here)
        for number in range(here - AROUND, here + AROUND + 1)
        if str(number) in known
    ]

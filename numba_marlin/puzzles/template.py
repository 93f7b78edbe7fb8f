"""A puzzle's file, and what a learner gets of it.

A file of ``tasks/`` has this form (NN_name.py; the kernel is its last ``@cuda.jit`` function that
no other one calls: ``KERNEL`` names it):

    \"\"\"Title.

    Text: one idea, and the task.
    \"\"\"
    imports, spec, kernel
        # >>> solution
        lines that solve it
        # >>> start
        #: lines that the learner begins with
        # <<<

    # ---- how it is checked
    KERNEL, HINT, CASES, RULES

The learner's file ends before the last line of dashes, and has the start's lines in place of the
solution's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from numba_marlin.wording import did_you_mean

TASKS = Path(__file__).parent / "tasks"
CHECK = "puzzles.check("  # what the cell of a notebook that checks has in it
_CHECKS = "\n# ---- how it is checked"
_PART = re.compile(
    r"^ *# >>> solution\n(?P<solution>.*?)^ *# >>> start\n(?P<start>.*?)^ *# <<<\n",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Puzzle:
    """number: from 1; name: of the file; text: the whole file of ``tasks``."""

    number: int
    name: str
    text: str

    @property
    def title(self) -> str:
        return self.text.partition('"""')[2].partition("\n")[0].rstrip(".")

    @property
    def statement(self) -> str:
        """The text that a learner reads, with its title."""
        return self.text.split('"""')[1].strip()

    @property
    def file(self) -> str:
        """The name of the learner's file."""
        return f"{self.number:02}_{self.name}.py"

    def start(self) -> str:
        """The file to complete."""
        return _PART.sub(lambda part: re.sub(r"#: ?", "", part["start"]), self._learners())

    def solved(self) -> str:
        """The same file, completed."""
        return _PART.sub(lambda part: part["solution"], self._learners())

    def solution(self) -> str:
        """The lines that solve it."""
        return "\n".join(part["solution"].rstrip("\n") for part in _PART.finditer(self.text))

    def notebook(self) -> str:
        """The file to complete as a notebook (nbformat 4): text, code, check."""
        code = self.start().split('"""', 2)[2].strip("\n") + "\n"
        check = f"from numba_marlin import puzzles\n\nprint({CHECK}{self.checks().KERNEL}))\n"
        help = f"numba-marlin puzzles hint {self.number}"
        text = f"# {self.statement}\n\nThe last cell checks it; `{help}` helps.\n"
        cells = [_cell("markdown", text)]
        cells += [_cell("code", code), _cell("code", check)]
        python = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {
            "cells": cells,
            "metadata": {"kernelspec": python},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        return json.dumps(notebook, indent=1) + "\n"

    def checks(self) -> ModuleType:
        """The file of ``tasks`` as a module: KERNEL, HINT, CASES, RULES and spec. It needs no
        compiler but to be imported: numba's names must exist."""
        return _module(self)

    def _learners(self) -> str:
        return self.text.rpartition(_CHECKS)[0].rstrip() + "\n"


def _cell(kind: str, source: str) -> dict:
    cell = {"cell_type": kind, "id": kind + str(len(source)), "metadata": {}, "source": source}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def code_cells(path: Path) -> list[str]:
    """The sources of a notebook's cells of code. A cell's text is one string or a list of lines."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@cache
def _module(puzzle: Puzzle) -> ModuleType:
    module = ModuleType(f"{__package__}.tasks.{puzzle.name}")
    module.__file__ = str(TASKS / puzzle.file)
    exec(compile(puzzle.text, module.__file__, "exec"), module.__dict__)
    return module


@cache
def puzzles() -> tuple[Puzzle, ...]:
    """All puzzles, in order."""
    found = []
    for path in sorted(TASKS.glob("[0-9][0-9]_*.py")):
        number, _, name = path.stem.partition("_")
        found.append(Puzzle(int(number), name, path.read_text(encoding="utf-8")))
    return tuple(found)


def find(which: str | int) -> Puzzle:
    """The puzzle with this number, name, file or kernel. ValueError if there is none."""
    word = Path(str(which)).stem
    for puzzle in puzzles():
        if word in (str(puzzle.number), puzzle.name, Path(puzzle.file).stem):
            return puzzle
        if re.search(rf'^KERNEL = "{re.escape(word)}"$', puzzle.text, re.MULTILINE):
            return puzzle
    names = [puzzle.name for puzzle in puzzles()]
    raise ValueError(
        f"there is no puzzle {which!r}; they are numbered 1 to {len(names)}"
        f"{did_you_mean(word, names)}"
    )

"""Is a learner's kernel right? If not: what it did, where, and what to look at."""

from __future__ import annotations

import inspect
import linecache
import runpy
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numba_marlin.emulator.errors import MachineError, Race, ranges
from numba_marlin.emulator.scheduling.schedules import Schedule
from numba_marlin.emulator.state.lanes import WARP
from numba_marlin.errors import CapabilityMissing
from numba_marlin.judge.compiling import in_words
from numba_marlin.judge.explain import meaning
from numba_marlin.judge.watching import NOBODY
from numba_marlin.puzzles.launch import NotAKernel, Run, run
from numba_marlin.puzzles.picture import draw
from numba_marlin.puzzles.rules import BUT
from numba_marlin.puzzles.template import CHECK, Puzzle, code_cells, find

SHUFFLED = 3  # orders of warps that are tried, after the first


def halves(word) -> str:
    """The two fp16 numbers of an int32."""
    low, high = np.array([word], np.int32).view(np.float16).tolist()
    return f"({low}, {high})"


SHOWN: dict[str, Callable] = {"": str, "halves": halves}


@dataclass(frozen=True)
class Case:
    """One launch: ``inputs`` by the kernel's parameters; outputs are the parameters that ``spec``
    does not take, in the order in which it returns them. ``zeroed``: those that begin as zeros."""

    inputs: dict[str, np.ndarray | int]
    grid: tuple[int, ...] = (1,)
    block: tuple[int, ...] = (32,)
    zeroed: tuple[str, ...] = ()

    def __str__(self) -> str:
        given = ", ".join(
            f"{name} {value.dtype} {'x'.join(map(str, value.shape))}"
            if isinstance(value, np.ndarray)
            else f"{name}={value}"
            for name, value in self.inputs.items()
        )
        blocks = "one block" if self.grid == (1,) else f"{_times(self.grid)} blocks"
        return f"{given}; {blocks} of {_times(self.block)} threads"


@dataclass(frozen=True)
class Verdict:
    """passed; message: a few lines for the learner; picture: what their kernel did."""

    puzzle: Puzzle
    passed: bool
    message: str
    picture: str = ""

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        head = f"{self.puzzle.number}. {self.puzzle.title}: {'right' if self.passed else 'not yet'}"
        return "\n".join(part for part in (head, self.message, self.picture) if part)


def check_file(path: str | Path) -> Verdict:
    """Check a learner's file or notebook. Raises ValueError if its name is no puzzle's; whatever
    importing it raises is worded into the verdict."""
    puzzle = find(Path(path).name)
    try:
        module = _cells(Path(path)) if Path(path).suffix == ".ipynb" else runpy.run_path(str(path))
    except Exception as error:
        return Verdict(puzzle, False, f"the file cannot be imported: {in_words(error)}")
    name = puzzle.checks().KERNEL
    if name not in module:
        return Verdict(puzzle, False, f"the file has no {name} any more: `def {name}(...)`")
    return check(module[name], puzzle)


def _cells(path: Path) -> dict:
    """The names that a notebook's cells define, up to the cell that checks them. A line is that of
    its cell, as in a notebook that runs."""
    names: dict = {"__name__": "__main__"}
    for number, source in enumerate(code_cells(path), start=1):
        if CHECK in source:
            break
        file = f"<cell {number} of {path.name}>"
        # without a time, linecache keeps what no file holds
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
    return names


def check(kernel: Callable, puzzle: Puzzle | str | int | None = None) -> Verdict:
    """Check a ``@cuda.jit`` kernel. puzzle: found by the kernel's name if it is not given."""
    if not isinstance(puzzle, Puzzle):
        name = getattr(getattr(kernel, "py_func", kernel), "__name__", "?")
        puzzle = find(name if puzzle is None else puzzle)
    task = puzzle.checks()
    counted, largest = 0, ""
    for number, case in enumerate(task.CASES, start=1):
        of = f"launch {number} of {len(task.CASES)}: {case}"
        for schedule in (None, *(Schedule.drawn(seed) for seed in range(SHUFFLED))):
            try:
                wanted, made = _launch(kernel, task.spec, case, schedule)
            except NotAKernel as error:
                return Verdict(puzzle, False, str(error))
            except CapabilityMissing:
                raise
            except Exception as error:
                return Verdict(puzzle, False, f"it does not compile: {in_words(error)}")
            rules = task.RULES if schedule is None else ()
            complaint = _complaint(made, wanted, rules, SHOWN[getattr(task, "SHOW", "")])
            if complaint:
                picture = "" if complaint.startswith(BUT) else _pictures(made, wanted)
                return Verdict(puzzle, False, f"{of}\n{complaint}", picture)
            counted += made.result.instructions if made.result else 0
        drawn = _pictures(made, wanted)
        largest = max(largest, drawn, key=len)
    launches = len(task.CASES) * (1 + SHUFFLED)
    message = f"{launches} launches, {counted:,} warp instructions, no race, no hazard"
    return Verdict(puzzle, True, message, largest)


def _launch(kernel, spec, case: Case, schedule) -> tuple[dict[str, np.ndarray], Run]:
    given = list(inspect.signature(spec).parameters)
    wanted = spec(*(case.inputs[name] for name in given))
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    names = [
        name
        for name in inspect.signature(getattr(kernel, "py_func", kernel)).parameters
        if name not in case.inputs
    ]
    if len(names) != len(wanted):
        raise NotAKernel(f"it must have {len(wanted)} outputs beside {', '.join(case.inputs)}")
    results = dict(zip(names, (np.ascontiguousarray(each) for each in wanted)))
    outputs = {}
    for name, each in results.items():
        outputs[name] = np.empty_like(each)
        outputs[name].view(np.uint8).fill(0 if name in case.zeroed else 0xFF)  # NaN, or -1
    inputs = {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in case.inputs.items()
    }
    return results, run(kernel, inputs, outputs, case.grid, case.block, schedule)


def _complaint(
    made: Run, wanted: dict[str, np.ndarray], rules: Sequence, show: Callable = str
) -> str:
    if made.error is not None:
        return _stopped(made)
    for name, right in wanted.items():
        got, writers = made.watched[name].array, _writers(made, name)
        if (writers == NOBODY).any():
            places = np.argwhere(writers == NOBODY)
            return (
                f"{len(places)} of {right.size} elements of {name} were never written, the first is"
                f" {name}{_index(places[0])}"
            )
        bad = ~_same(got, right)
        if bad.any():
            return _wrong(made, name, right, bad, show)
    for rule in rules:
        found = rule(made)
        if found:
            return found
    return ""


def _wrong(made: Run, name: str, right: np.ndarray, bad: np.ndarray, show: Callable) -> str:
    place = tuple(np.argwhere(bad)[0])
    flat = np.ravel_multi_index(place, right.shape)
    block, thread = made.made.thread(int(made.watched[name].writers[flat]))
    line = made.line(name, flat)
    text = linecache.getline(made.kernel.__code__.co_filename, line).strip()
    return (
        f"{int(bad.sum())} of {right.size} elements of {name} are wrong:"
        f" {name}{_index(place)} is {show(made.watched[name].array[place])}, and should be"
        f" {show(right[place])}\n"
        f"  thread {thread} of block {block} wrote it, line {line}: {text}"
    )


def _stopped(made: Run) -> str:
    """What stopped it, in the learner's lines; then the machine's own sentence."""
    error = made.error
    if not isinstance(error, MachineError):
        return f"the machine refused it: {error}"
    lines = [meaning(error)]
    if isinstance(error, Race):
        block, warp, lane = error.first_thread
        first = error.first.source[1] if error.first.source else 0
        lines.append(_place(made, first, block, warp, (lane,), "first "))
    source = made.made.source(error.line)
    if error.block is not None and source:
        then = "then " if isinstance(error, Race) else ""
        lines.append(_place(made, source, error.block, error.warp or 0, error.lanes or (), then))
    first, _, rest = error.detail.partition("\n")
    more = rest.partition("\n")[0].strip() if first.endswith(("only", ",", ":")) else ""
    said = f"{type(error).__name__}: {first} {more}".rstrip()
    lines.append(textwrap.fill(said, 98, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(line for line in lines if line)


def _place(made: Run, line: int, block, warp: int, lanes: Sequence[int], word: str) -> str:
    text = linecache.getline(made.kernel.__code__.co_filename, line).strip()
    threads = ("thread " if len(lanes) == 1 else "threads ") + ranges(
        [WARP * warp + lane for lane in lanes]
    )
    of = f"block {_times(block[:1] if not any(block[1:]) else block)}, {threads}"
    return f"  {word}line {line}: {text}    ({of})"


def _pictures(made: Run, wanted: dict[str, np.ndarray]) -> str:
    """Of the outputs that anything was written to."""
    pictures = []
    for name, right in wanted.items():
        writers = _writers(made, name)
        wrong = ~_same(made.watched[name].array, right) & (writers != NOBODY)
        if (writers != NOBODY).any():
            pictures.append(draw(name, writers, wrong, made.made.watch.threads))
    return "\n".join(pictures)


def _writers(made: Run, name: str) -> np.ndarray:
    each = made.watched[name]
    return each.writers.reshape(each.array.shape)


def _same(got: np.ndarray, right: np.ndarray) -> np.ndarray:
    return (got == right) | ((got != got) & (right != right))


def _index(place: Sequence) -> str:
    return f"[{', '.join(str(int(each)) for each in place)}]"


def _times(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))

"""Long work of every verb shows on stderr how far it is: a bar with the time left on a terminal,
elsewhere one line when it is done, and one a minute until then. Nothing of it goes to stdout.

    with bar("reading", "bytes") as advance:
        advance(done, total, name)  # as often as one likes; total None: nobody knows

``machine_bar`` counts the warp instructions of the PTX machine. What prints on the terminal while a
bar may be there does so within ``aside``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator

from numba_marlin.wording import byte_count, duration, number, printable

REPORTED = 60.0  # seconds between lines, where there is no terminal
DRAWN = 0.1  # seconds between pictures of a bar: the machine tells of every basic block
# columns: of a bar; of all that stands left of the words; of a part of these, at least
BAR, BESIDE, LEAST = 16, 16 + 20, 6
_bars: list = []  # on the terminal now


@contextlib.contextmanager
def bar(what: str, unit: str = "", least: float = 0.0) -> Iterator[Callable]:
    """Show that ``what`` is in progress. Gives a function of (done, total or None, name of what is
    being done); unit: of done and total, such as "bytes". least: seconds below which nobody waits,
    and where there is no terminal nothing is said."""
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        shown = _drawn(printable(what), unit)
    else:
        shown = _reported(printable(what), unit, least)
    with shown as advance:
        yield advance


@contextlib.contextmanager
def machine_bar(what: str, expected: float | None = None) -> Iterator[None]:
    """A bar of the warp instructions that the PTX machine executes within, in one run or several.
    expected: how many they will be, about; None if nobody knows."""
    from numba_marlin.emulator.state.listener import watched

    before = last = 0

    def heard(done: int) -> None:
        nonlocal before, last
        if done < last:  # another run
            before += last
        last = done
        total = None if expected is None or before + done > expected else expected
        advance(before + done, total, "")

    with bar(what, "warp instructions") as advance, watched(heard):
        yield


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Take the bar off the terminal while something else is printed. (rich would do that by itself,
    and print on stderr what was meant for stdout.)"""
    for each in _bars:
        each.stop()
    try:
        yield
    finally:
        for each in _bars:
            each.start()


def _amount(done: float, total: float | None, unit: str) -> str:
    """As in "2 of 36", "1.2 MiB of 3.4 GiB", "3 of 5 million weights"."""
    given = [each for each in (done, total) if each is not None]
    if unit == "bytes":
        return " of ".join(byte_count(int(each)) for each in given)
    said = [number(each) for each in given]
    if all(each.endswith(" million") for each in said):
        said = [*(each.removesuffix(" million") for each in said[:-1]), said[-1]]
    return f"{' of '.join(said)} {unit}".strip()


def _line(what: str, amount: str, name: str, width: int) -> str:
    """What stands beside a bar, in ``width`` columns: how much whole, else the beginning of
    ``what``, then the end of ``name`` if there is room."""
    amount = f", {amount}" if amount else ""
    room = max(LEAST, width - len(amount))
    text = (what if len(what) <= room else what[: room - 2] + "..") + amount
    room = width - len(text) - 2
    if name and room >= LEAST:
        text += ", " + (name if len(name) <= room else ".." + name[2 - room :])
    return text[:width]


@contextlib.contextmanager
def _reported(what: str, unit: str, least: float) -> Iterator[Callable]:
    start = line = time.monotonic()
    reached = 0.0

    def advance(done: float, total: float | None, name: str) -> None:
        nonlocal line, reached
        reached, now = done, time.monotonic()
        if now - line < REPORTED:
            return
        line = now
        text = f"{what}: {_amount(done, total, unit)}"
        if total and done:
            text += f", {duration((now - start) * (total - done) / done)} left"
        print(text + (f": {printable(name)}" if name else ""), file=sys.stderr, flush=True)

    yield advance
    if time.monotonic() - start < least:
        return
    taken = duration(time.monotonic() - start)
    text = f"{_amount(reached, None, unit)} in {taken}" if reached else taken
    print(f"{what}: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _drawn(what: str, unit: str) -> Iterator[Callable]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    shown = Progress(
        SpinnerColumn(),
        BarColumn(BAR),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        # no markup: a name in brackets is a name
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        redirect_stdout=False,
    )

    def line(amount: str = "", name: str = "") -> str:
        return _line(what, amount, name, max(LEAST, console.width - BESIDE))

    task, drawn = shown.add_task(line(), total=None), 0.0

    def advance(done: float, total: float | None, name: str) -> None:
        nonlocal drawn
        now = time.monotonic()
        if now - drawn < DRAWN and done != total:
            return
        drawn = now
        text = line(_amount(done, total, unit), printable(name))
        shown.update(task, completed=done, total=total, description=text)

    with shown:
        _bars.append(shown)
        try:
            yield advance
        finally:
            _bars.remove(shown)

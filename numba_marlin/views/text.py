"""A page as text for a terminal, with rich: any width from 50 columns, with or without colour, with
or without line-drawing characters.

Control characters become their escapes: what a page says may come from anybody's file, and a
terminal obeys what it is sent. Letters or patterns repeat what colours show: spans of a timeline
are drawn with a letter per kind, chosen cells stand in brackets.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable

from numba_marlin.views.page import (
    Bars,
    Bits,
    Facts,
    Grid,
    Levels,
    Lines,
    Page,
    Roofline,
    Section,
    Table,
    Text,
    Timeline,
    in_printable_words,
)
from numba_marlin.views.palette import palette
from numba_marlin.views.scales import numeric, short
from numba_marlin.views.text_figures import bars, bits, curves, grid, levels, roofline, timeline

STYLES = (
    "blue",
    "yellow",
    "green",
    "magenta",
    "cyan",
    "red",
    "bright_blue",
    "bright_yellow",
    "bright_green",
    "bright_magenta",
    "bright_cyan",
    "bright_red",
    "white",
    "bright_black",
)
TONES = {"good": "green", "bad": "bold red", "hot": "bold reverse", "dim": "dim"}
RULE = {True: "\u2500", False: "-"}


class Terminal:
    """Where to, and with what: handed to everything that draws."""

    def __init__(self, width: int, colour: bool, unicode: bool, colours: dict[str, int]) -> None:
        self.width, self.colour, self.unicode, self.colours = width, colour, unicode, colours

    def style(self, kind: str, tone: str = "") -> str:
        return TONES.get(tone, "") or (
            STYLES[self.colours[kind] % len(STYLES)] if kind in self.colours else ""
        )


def render(
    page: Page,
    width: int = 80,
    colour: bool = False,
    unicode: bool = True,
    steps: int | None = None,
) -> str:
    """The whole page; lines end where they end, without trailing blanks. ``steps``: at most this
    many steps of a section at most (and a word about the others), None for all. TypeError if a part
    of it that must be text is none."""
    from rich.console import Console
    from rich.errors import ConsoleError

    page = in_printable_words(page)
    out = Terminal(width, colour, unicode, palette(page))
    written = io.StringIO()
    console = Console(
        file=written,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
        _environ={},
    )
    try:
        console.print(page.title, style="bold")
        if page.subtitle:
            console.print(page.subtitle, style="dim")
        for section in page.sections:
            _section(section, console, out, len(section.steps) if steps is None else steps)
    except ConsoleError as error:
        raise TypeError(f"a part of the page is no text: {error}") from error
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _section(section: Section, console, out: Terminal, steps: int) -> None:
    head = f"{section.title} [{section.key}]"
    console.print()
    console.print(head, style="bold")
    console.print(RULE[out.unicode] * min(len(head), out.width), style="dim")
    for note in section.notes:
        console.print("\n".join(textwrap.wrap(note, out.width)))
    for part in section.parts:
        _part(part, console, out)
    for number, step in enumerate(section.steps[:steps], 1):
        console.print()
        console.print(f"{number}/{len(section.steps)} {step.title}", style="bold")
        for part in step.parts:
            _part(part, console, out)
    if len(section.steps) > steps:
        console.print()
        console.print(
            f"({len(section.steps) - steps} more of {len(section.steps)} steps)", style="dim"
        )


def cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: max(width - 3, 0)] + "..."


def _part(part, console, out: Terminal) -> None:
    console.print()
    if isinstance(part, Text):
        lines = [
            "  " + (cut(line, out.width - 2) if part.style == "source" else line)
            for line in part.text.splitlines()
        ]
        if part.style not in ("code", "source"):
            lines = textwrap.wrap(part.text, out.width)
        console.print(
            "\n".join(lines),
            style="bold red" if part.style == "warning" else None,
            soft_wrap=True,
        )
        return
    if part.title or part.source:
        console.print(part.title + (f" ({part.source})" if part.source else ""), style="bold")
    console.print(
        DRAW[type(part)](part, out), soft_wrap=not isinstance(part, (Table, Facts)), end="\n"
    )
    if part.note:
        console.print("\n".join(textwrap.wrap(part.note, out.width)), style="dim")


def facts(part: Facts, out: Terminal):
    from rich.table import Table as RichTable

    table = RichTable.grid(padding=(0, 2))
    table.add_column(
        style="bold",
        min_width=min(12, max((len(row[0]) for row in part.rows), default=0)),
        max_width=out.width // 3,
    )
    table.add_column(overflow="fold")
    sources = any(len(row) > 2 and row[2] for row in part.rows)
    if sources:
        table.add_column(style="dim")
    for row in part.rows:
        table.add_row(*row[:2], *([row[2] if len(row) > 2 else ""] if sources else []))
    return table


def table(part: Table, out: Terminal):
    """Columns that do not fit fold their cells; numbers are never folded."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    # ascii and simple boxes are as wide; a table of many columns goes without air
    wide = (
        sum(
            max(len(str(short(row[i]))) for row in (part.heads, *part.rows)) + 3
            for i in range(len(part.heads))
        )
        > out.width
    )
    result = RichTable(
        box=box.SIMPLE_HEAD if out.unicode else box.ASCII2,
        padding=(0, 0) if wide else (0, 1),
        pad_edge=False,
        show_edge=False,
        header_style="bold",
    )
    for position, head in enumerate(part.heads):
        right = numeric([short(row[position]) for row in part.rows])
        result.add_column(
            head, justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in part.rows:
        result.add_row(
            *(
                RichText(
                    short(cell),
                    style=out.style(getattr(cell, "kind", ""), getattr(cell, "tone", "")),
                )
                for cell in row
            )
        )
    return result


DRAW: dict[type, Callable] = {
    Facts: facts,
    Table: table,
    Grid: grid,
    Bits: bits,
    Timeline: timeline,
    Bars: bars,
    Levels: levels,
    Lines: curves,
    Roofline: roofline,
}

"""How values are said: sizes, text that is safe to print, the names nearest to a wrong one, tables
in a notebook. Imports nothing of the package."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence


def byte_count(nbytes: int) -> str:
    """As in "1.5 MiB": three digits, in the smallest unit of which there are less than 1000 (bytes:
    1024)."""
    if nbytes < 1024:
        return f"{nbytes} bytes"
    size = float(nbytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000 or unit == "GiB":
            break
    return f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def number(value: float) -> str:
    """As in "12,345", "1.2 million", "3,400 million"."""
    if value < 1e5:
        return f"{value:,.0f}"
    millions = value / 1e6
    return f"{millions:.3g} million" if millions < 1000 else f"{millions:,.0f} million"


def duration(seconds: float) -> str:
    """As in "1.5 s", "12 min", "3.5 h"."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.3g} h"


def printable(text: str) -> str:
    """Text of a file that is safe to print: control characters, other than tabs and line ends,
    become their escapes."""
    return (
        text
        if text.isprintable()
        else "".join(
            each if each.isprintable() or each in "\n\t" else repr(each)[1:-1] for each in text
        )
    )


def natural_order(name: str) -> list:
    """A key to sort names by in which numbers count as such: l.2 before l.10."""
    parts = re.split("([0-9]+)", name)
    digits = [part.lstrip("0") for part in parts[1::2]]  # of any length: hostile names are long
    return [*zip(parts[::2], [(len(each), each) for each in digits] + [()]), name]


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The known name nearest to ``name``, as "; did you mean 'gptq'?"; "" if none is near."""
    import difflib

    found = difflib.get_close_matches(str(name), list(known), 1, 0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def html_table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """A table for a notebook's ``_repr_html_``; every cell is escaped."""

    def line(cells, tag):
        return (
            "<tr>"
            + "".join(
                f'<{tag} style="text-align: left">{html.escape(str(cell))}</{tag}>'
                for cell in cells
            )
            + "</tr>"
        )

    head = [line(header, "th")] if header else []
    return f"<table>{''.join([*head, *(line(row, 'td') for row in rows)])}</table>"

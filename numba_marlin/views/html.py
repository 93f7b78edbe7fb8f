"""A page as one HTML file: style, script and figures inside, nothing fetched (its own policy
forbids it).

Arrow keys (or the buttons) go from step to step and on to the next section, PageUp and PageDown
from section to section, "a" shows all at once; the address names section and step. Without script,
and printed, everything is shown. Light or dark as the reader's system, or by "t".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from importlib.resources import files

from numba_marlin.views.page import (
    Bars,
    Bits,
    Cell,
    Facts,
    Figure,
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
from numba_marlin.views.scales import number, numeric, short
from numba_marlin.views.svg import curves, roofline, timeline

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
KEYS = (
    "<kbd>\u2190</kbd> <kbd>\u2192</kbd> step<br>"
    "<kbd>PgUp</kbd> <kbd>PgDn</kbd> section<br>"
    "<kbd>a</kbd> all at once<br>"
    "<kbd>t</kbd> light or dark"
)
DENSE = 12  # columns from which a grid's cells stand closer, so that 16 fit on a laptop
TOOLS = (
    '<button type="button" id="all" aria-pressed="false"'
    ' title="Show all sections and steps (a)">all</button>\n'
    '<button type="button" id="theme" title="Light or dark (t)">light / dark</button>'
)


def render(page: Page) -> str:
    """The whole file, as text; write it as UTF-8. Control characters become their escapes."""
    page = in_printable_words(page)
    colours = palette(page)
    here = files("numba_marlin.views")
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    index = "".join(
        f'<li><a href="#{escape(section.key)}">{escape(section.title)}</a></li>'
        for section in page.sections
    )
    body = "\n".join(_section(section, colours) for section in page.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<link rel="icon" href="data:,">
<title>{escape(page.title)}</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">To the content</a>
<header><div><h1>{escape(page.title)}</h1><p>{escape(page.subtitle)}</p></div>
<div class="tools">{TOOLS}</div></header>
<div class="frame">
<nav aria-label="Sections"><ol>{index}</ol><p class="keys">{KEYS}</p></nav>
<main id="main" tabindex="-1">
{body}
</main>
</div>
<p id="said" class="unseen" aria-live="polite"></p>
<script>
{script}</script>
</body>
</html>
"""


def _section(section: Section, colours: dict[str, int]) -> str:
    notes = "".join(f"<p>{prose(note)}</p>" for note in section.notes)
    parts = "".join(part_html(part, colours) for part in section.parts)
    steps = ""
    if section.steps:
        count = len(section.steps)
        bodies = "".join(
            f'<div class="step" data-title="{escape(step.title)}">'
            f'<h3><span class="count">{number}/{count}</span> {escape(step.title)}</h3>'
            + "".join(part_html(part, colours) for part in step.parts)
            + "</div>"
            for number, step in enumerate(section.steps, 1)
        )
        bar = (
            '<div class="stepbar" role="group" aria-label="Steps">'
            '<button type="button" class="back" aria-label="Step back">\u2190</button>'
            f'<input type="range" min="1" max="{count}" value="1"'
            f' aria-label="Step of {escape(section.title)}">'
            '<button type="button" class="on" aria-label="Step on">\u2192</button>'
            "<output></output></div>"
        )
        steps = f'<div class="steps">{bar}{bodies}</div>'
    key = escape(section.key)
    return (
        f'<section id="{key}" aria-labelledby="h-{key}">'
        f'<h2 id="h-{key}">{escape(section.title)}</h2>{notes}{parts}{steps}</section>'
    )


def part_html(part, colours: dict[str, int]) -> str:
    if isinstance(part, Text):
        tag = "pre" if part.style in ("code", "source") else "p"
        warning = " class=warning role=note" if part.style == "warning" else ""
        words = escape(part.text) if tag == "pre" else prose(part.text)
        return f"<{tag}{warning}>{words}</{tag}>"
    drawn = DRAW[type(part)](part, colours)
    return (
        f'<figure class="{type(part).__name__.lower()}">{caption(part)}'
        f'<div class="scroll">{drawn}</div>{_note(part)}</figure>'
    )


def prose(text: str) -> str:
    """A sentence, what is between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def caption(part: Figure) -> str:
    if not (part.title or part.source):
        return ""
    return f"<figcaption>{escape(part.title)} {badge(part.source)}</figcaption>"


def badge(source: str) -> str:
    return f'<span class="source {source}">{source}</span>' if source else ""


def _note(part: Figure) -> str:
    return f'<p class="note">{prose(part.note)}</p>' if part.note else ""


def classes(*names: str) -> str:
    found = " ".join(name for name in names if name)
    return f' class="{found}"' if found else ""


def colour(kind: str, colours: dict[str, int]) -> str:
    return f"k{colours[kind]}" if kind in colours else ""


def facts(part: Facts, colours: dict[str, int]) -> str:
    return f"<table>{fact_rows(part.rows)}</table>"


def fact_rows(rows) -> str:
    """Of (name, value) and (name, value, source)."""
    return "".join(
        f"<tr><th scope=row>{escape(row[0])}</th>"
        f"<td>{prose(row[1])} {badge(row[2] if len(row) > 2 else '')}</td></tr>"
        for row in rows
    )


def cell_html(
    cell: Cell | str, colours: dict[str, int], tag: str = "td", right: bool = False
) -> str:
    if not isinstance(cell, Cell):
        return f"<{tag}{classes('n' if right else '')}>{prose(str(cell))}</{tag}>"
    more = "".join(
        f' {name}="{escape(value)}"'
        for name, value in (("title", cell.tip), ("data-key", cell.key))
        if value
    )
    kind = colour(cell.kind, colours)
    named = classes("n" if right else "", cell.tone, kind and f"k {kind}")
    return f"<{tag}{named}{more}>{prose(cell.text)}</{tag}>"


def table(part: Table, colours: dict[str, int]) -> str:
    right = [numeric([short(row[i]) for row in part.rows]) for i in range(len(part.heads))]
    head = "".join(
        f"<th scope=col{classes('n' if side else '')}>{escape(each)}</th>"
        for each, side in zip(part.heads, right)
    )
    rows = "".join(row_html(row, colours, right) for row in part.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def row_html(row, colours: dict[str, int], right) -> str:
    cells = (cell_html(cell, colours, right=side) for cell, side in zip(row, right))
    return f"<tr>{''.join(cells)}</tr>"


def grid(part: Grid, colours: dict[str, int]) -> str:
    head = ""
    if part.column_labels:
        corner = f"<td>{escape(part.corner)}</td>" if part.row_labels else ""
        labels = "".join(f"<th scope=col>{escape(each)}</th>" for each in part.column_labels)
        head = f"<thead><tr>{corner}{labels}</tr></thead>"
    rows = []
    for position, row in enumerate(part.cells):
        label = (
            f"<th scope=row>{escape(part.row_labels[position])}</th>"
            if position < len(part.row_labels)
            else ""
        )
        rows.append(f"<tr>{label}{''.join(cell_html(cell, colours) for cell in row)}</tr>")
    columns = max(map(len, part.cells), default=0)
    dense = classes("dense" if columns >= DENSE else "")
    return f"<table{dense}>{head}<tbody>{''.join(rows)}</tbody></table>"


def bits(part: Bits, colours: dict[str, int]) -> str:
    rows = []
    for row in part.rows:
        cells = []
        for position, bit in enumerate(row.bits):
            kind = colour(row.kinds[position], colours) if row.kinds else ""
            first = position and (row.width - position) % 4 == 0
            named = classes(
                "gap" if first else "", kind and f"k {kind}", "set" if bit == "1" else ""
            )
            cells.append(f"<td{named}>{bit}</td>")
        hexadecimal = f"0x{row.value & (1 << row.width) - 1:0{row.width // 4}x}"
        rows.append(
            f"<tr><th scope=row>{escape(row.label)}</th>{''.join(cells)}"
            f"<td class=hex>{hexadecimal}</td><td class=say>{escape(row.note)}</td></tr>"
        )
    kinds = list(dict.fromkeys(kind for row in part.rows for kind in row.kinds if kind))
    return f"<table>{''.join(rows)}</table>{legend(kinds, colours)}"


def legend(kinds: list[str], colours: dict[str, int]) -> str:
    items = "".join(
        f"<li><i{classes(colour(kind, colours))}></i>{escape(kind)}</li>" for kind in kinds
    )
    return f"<ul class=legend>{items}</ul>" if kinds else ""


def bars(part: Bars, colours: dict[str, int]) -> str:
    largest = max((abs(bar.value) for bar in part.bars), default=0) or 1
    rows = []
    for bar in part.bars:
        share = min(100 * abs(bar.value) / (bar.of or largest), 100)
        said = bar.text or f"{number(bar.value)} {part.unit}".rstrip()
        fill = f'<div{classes("fill", colour(bar.kind, colours))} style="width:{share:.2f}%"></div>'
        track = f'<div class="track{"" if bar.of else " open"}">{fill}</div>'
        rows.append(
            f"<tr><th scope=row>{escape(bar.label)}</th>"
            f"<td class=bar>{track}</td><td class=n>{escape(said)}</td></tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def levels(part: Levels, colours: dict[str, int]) -> str:
    found = []
    for position, level in enumerate(part.levels):
        size = f"<span class=size>{escape(level.size)} {badge(level.source)}</span>"
        found.append(
            f"<div{classes('level', colour(level.kind, colours))}><h4>{escape(level.name)}"
            f" {size}</h4>{filling(level.filled)}<table>{fact_rows(level.rows)}</table></div>"
        )
        if position + 1 < len(part.levels):
            passing = [
                f"<span>{mark} {escape(words)}</span>"
                for mark, words in (("\u2193", level.down), ("\u2191", level.up))
                if words
            ]
            found.append(f'<div class="passing">{"".join(passing)}</div>')
    return "".join(found)


def filling(share: float | None) -> str:
    if share is None:
        return ""
    width = f"{min(100 * share, 100):.2f}%"
    return f'<div class="track"><div class="fill" style="width:{width}"></div></div>'


def timeline_with_legend(part: Timeline, colours: dict[str, int]) -> str:
    kinds = dict.fromkeys(span.kind for lane in part.lanes for span in lane.spans if span.kind)
    return timeline(part, colours) + legend(list(kinds), colours)


DRAW: dict[type, Callable] = {
    Facts: facts,
    Table: table,
    Grid: grid,
    Bits: bits,
    Bars: bars,
    Levels: levels,
    Timeline: timeline_with_legend,
    Lines: curves,
    Roofline: roofline,
}

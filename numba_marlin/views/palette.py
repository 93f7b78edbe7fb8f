"""Kinds -> numbers of colours, in the order in which a page first names them; a page's legend and its figures agree because they ask here."""

from __future__ import annotations

from numba_marlin.views.page import Bars, Bits, Cell, Grid, Page, Roofline, Table, Timeline

COLOURS = 10  # what the style sheet and the terminal have; beyond, colours return


def kinds_of(part) -> list[str]:
    """The kinds that a part names, in order, with repetitions."""
    if isinstance(part, Timeline):
        return [span.kind for lane in part.lanes for span in lane.spans]
    if isinstance(part, (Table, Grid)):
        rows = part.rows if isinstance(part, Table) else part.cells
        return [cell.kind for row in rows for cell in row if isinstance(cell, Cell)]
    if isinstance(part, Bits):
        return [kind for row in part.rows for kind in row.kinds]
    if isinstance(part, Bars):
        return [bar.kind for bar in part.bars]
    if isinstance(part, Roofline):
        return [point.kind for point in part.points]
    return []


def palette(page: Page) -> dict[str, int]:
    """Kind -> 0 .. COLOURS - 1."""
    found: dict[str, int] = {}
    for section in page.sections:
        for part in section.all_parts:
            for kind in kinds_of(part):
                if kind:
                    found.setdefault(kind, len(found) % COLOURS)
    return found

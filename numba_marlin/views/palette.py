"""Kinds -> numbers of colours, in the order in which a page first names them, each family of
numbered ones for itself; a page's legend and its figures agree because they ask here."""

from __future__ import annotations

from numba_marlin.views.page import Bars, Bits, Cell, Grid, Levels, Page, Roofline, Table, Timeline

COLOURS = 14  # what the style sheet and the terminal have; beyond, colours return


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
    if isinstance(part, Levels):
        return [level.kind for level in part.levels]
    if isinstance(part, Roofline):
        return [point.kind for point in part.points]
    return []


def family(kind: str) -> str:
    """What numbered kinds have in common: "block" of "block 3", so that "row 0" does not take a
    colour from the verbs. Others are of one family."""
    name, _, number = kind.rpartition(" ")
    return name if number[:1].isdigit() else ""


def palette(page: Page) -> dict[str, int]:
    """Kind -> 0 .. COLOURS - 1."""
    found: dict[str, int] = {}
    taken: dict[str, int] = {}
    for section in page.sections:
        for part in section.all_parts:
            for kind in kinds_of(part):
                if kind and kind not in found:
                    found[kind] = taken.get(family(kind), 0) % COLOURS
                    taken[family(kind)] = taken.get(family(kind), 0) + 1
    return found
